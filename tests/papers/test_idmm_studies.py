"""The entries of IDMM's tables, against figures and settings that were read off the paper by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.resolved import resolve_for
from vitling.methods.idmm.settings import IDMMConfig, finetune_recipe
from vitling.papers.stages import FinetuneTask
from vitling.papers.studies import find_study
from vitling.papers.study import RunContext
from vitling.views.policies import idmm_finetune

NAMES = ("200", "200-released", "t3", "t4", "t7", "t8", "t8-released", "t9", "f3")
STUDIES = {name: find_study(f"idmm-{name}") for name in NAMES}


def entry(study: str, name: str):
    return next(run for run in STUDIES[study].runs if run.name == name)


def figures(study: str, *names: str) -> list[float | None]:
    return [entry(study, name).paper for name in names]


def folders(study: str, name: str, seed: int = 0) -> list[str]:
    run = entry(study, name)
    context = RunContext(
        Path("out"), seed, "a", "b", run.weights, data=run.data, pretrain_data=run.pretrain_data, pretrain_source="c"
    )
    return [stage.out.name for stage in run.task.stages(context)]


def test_how_many_runs():
    counts = {"200": 28, "200-released": 28, "t3": 140, "t4": 8, "t7": 10, "t8": 5, "t8-released": 4, "t9": 20, "f3": 8}
    assert {name: len(study.runs) for name, study in STUDIES.items()} == counts
    assert len(find_study("idmm-t1").runs) == 14


def test_what_is_shown_first():
    first = [(run.name, run.paper) for run in STUDIES["200"].runs[:4]]
    assert first == [
        ("deit-tiny-flowers102-random-200", 58.1),
        ("deit-tiny-flowers102-idmm-200", 79.9),
        ("pvtv2-b0-flowers102-random-200", 76.3),
        ("pvtv2-b0-flowers102-idmm-200", 92.4),
    ]
    assert [run.note for run in STUDIES["200"].runs[:4]] == ["Table 2", "Table 2", "Table 5", "Table 5"]


def test_figures_for_200_epochs():
    cars, aircraft = (f"deit-tiny-{data}" for data in ("cars", "aircraft"))
    assert figures("200", f"{cars}-random-200", f"{cars}-idmm-200", f"{aircraft}-idmm-200") == [12.3, 66.4, 43.2]
    of_pvt = [entry("200", f"pvtv2-b0-{data}-idmm-200").paper for data in ("pets", "dtd", "indoor67", "cub", "cars")]
    assert of_pvt == [83.2, 66.9, 68.5, 69.8, 87.8]  # the diagonal of Table 5
    assert figures("200", "pvtv2-b0-aircraft-random-200", "pvtv2-b0-aircraft-idmm-200") == [41.7, 73.4]


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("deit-tiny-flowers102", [97.3, 67.8, 83.4, 85.6]),
        ("deit-base-cars", [92.6, 33.3, 64.5, 70.7]),
        ("pvtv2-b0-dtd", [75.9, 57.7, 69.3, 73.2]),
        ("pvtv2-b3-flowers102", [98.7, 90.5, 95.9, 96.7]),
        ("t2t-vit-7-cub", [79.0, 35.7, 59.0, 63.2]),
    ],
)
def test_figures_of_table_3(base, expected):
    methods = ("imagenet-200", "random-800", "idmm-800", "idmm-800-448")
    assert figures("t3", *(f"{base}-{method}" for method in methods)) == expected


def test_figures_of_the_other_tables():
    counts = {run.name: run.paper for run in find_study("idmm-t1").runs}
    assert (counts["pets-train"], counts["indoor67-test"], counts["cars-test"]) == (3680, 1340, 8041)
    assert {run.name: run.task.classes for run in find_study("idmm-t1").runs}["cub-train"] == 200
    assert figures("t4", "pvtv2-b0-flowers102-pretrain", "t2t-vit-7-pets-finetune") == [92.5, 70.3]
    assert entry("t4", "t2t-vit-7-flowers102-pretrain").note == "the paper: ± 0.3 over 3"
    assert figures("t7", "pvtv2-b0-sin-total10k-100", "deit-tiny-random-300", "deit-tiny-sin10k-300") == [
        *(69.5, 72.2, 72.9)
    ]
    assert [run.paper for run in STUDIES["t8"].runs] == [69.6, 70.4, 73.1, 76.9, 79.9]
    assert figures("t9", "deit-tiny-sin10k-cub", "deit-tiny-sin10k-cub-mlp", "deit-tiny-flowers102") == [
        *(47.6, 48.0, None)
    ]
    assert figures("t7", "pvtv2-b0-sin10k-moco-v3-100", "pvtv2-b0-sin10k-100") == [68.8, 69.5]
    simclr = "deit-tiny-sin10k-dtd-simclr"
    assert figures("t9", simclr, f"{simclr}-mlp", "deit-tiny-flowers102-simclr-mlp") == [57.8, 58.9, None]
    assert figures("f3", "pvtv2-b0-small-flowers102-idmm-800", "pvtv2-b3-flowers102-idmm-800-448") == [93.8, 96.7]


def test_what_the_stages_are():
    larger = entry("t3", "t2t-vit-7-pets-idmm-800-448").task
    assert (larger.pretrain.epochs, larger.pretrain.size, larger.pretrain.batch) == (800, 112, 256)
    assert (larger.finetune.epochs, larger.finetune.size, larger.finetune.keep_head) == (800, 224, False)
    large = larger.enlarge
    assert (large.epochs, large.size, large.batch, large.optim.lr, large.keep_head) == (100, 448, 32, 1.25e-5, True)
    assert entry("t3", "deit-base-dtd-idmm-800-448").task.enlarge.batch == 128
    imagenet = entry("t3", "pvtv2-b0-cub-imagenet-200")
    assert (imagenet.weights, imagenet.task.pretrain, imagenet.task.finetune.epochs) == ("pvt_v2_b0", None, 200)
    assert entry("t3", "pvtv2-b0-cub-random-800").task.pretrain is None
    assert entry("t9", "deit-tiny-sin10k-dtd-mlp").task.pretrain.idmm.projection == "mlp"
    assert entry("t9", "deit-tiny-sin10k-dtd-simclr").task.pretrain.simclr.projection == "none"
    assert entry("t9", "deit-tiny-sin10k-dtd-simclr-mlp").task.pretrain.simclr.projection == "mlp"
    assert entry("t7", "pvtv2-b0-sin10k-moco-v3-100").task.pretrain.method == "moco-v3"
    assert entry("t7", "deit-tiny-sin10k-300").needed_data == ("sin10k", "imagenet1k")
    assert entry("t7", "deit-tiny-random-300").needed_data == ("imagenet1k",)


def test_table_8_by_the_released_code_does_not_smooth():
    assert [run.task.pretrain.idmm.smoothing for run in STUDIES["t8"].runs] == [0.0, 0.1, 0.1, 0.1, 0.1]
    assert [run.task.pretrain.size for run in STUDIES["t8"].runs] == [224, 224, 112, 112, 112]
    released = [run.task.pretrain.idmm for run in STUDIES["t8-released"].runs]
    assert {idmm.smoothing for idmm in released} == {0.0}
    assert [(idmm.multi_crop, idmm.cutmix) for idmm in released] == [
        *((False, False), (False, False), (True, False), (True, True))
    ]


@pytest.mark.parametrize(("net", "study"), [("deit-tiny", "200"), ("pvtv2-b0", "200-released")])
def test_mixed_as_on_four_cards_both_stages_are_otherwise_the_tables(net, study):
    causes = {run.name: run for run in find_study("idmm-200-causes").runs}
    for start in ("random", "idmm"):
        run, plain = causes[f"{net}-flowers102-{start}-200-parts4"], entry(study, f"{net}-flowers102-{start}-200")
        stages = [(run.task.finetune, plain.task.finetune), (run.task.pretrain, plain.task.pretrain)]
        for changed, usual in stages if start == "idmm" else stages[:1]:
            assert (changed.views.mix_parts, usual.views.mix_parts) == (4, 1)
            assert replace(changed, views=usual.views) == usual
        assert run.paper == plain.paper
    assert causes[f"{net}-flowers102-random-200-parts4"].task.pretrain is None


def test_one_pre_training_serves_several_tables():
    full, *_ = folders("200", "deit-tiny-flowers102-idmm-200")
    others = [
        ("t3", "deit-tiny-flowers102-idmm-800"),
        ("t3", "deit-tiny-flowers102-idmm-800-448"),
        ("t8", "deit-tiny-flowers102-cutmix"),
        ("t9", "deit-tiny-flowers102"),
    ]
    assert {folders(*name)[0] for name in others} == {full}
    assert folders("t8", "deit-tiny-flowers102-cutmix") == folders("200", "deit-tiny-flowers102-idmm-200")
    assert folders("t3", "deit-tiny-flowers102-idmm-800-448")[:2] == folders("t3", "deit-tiny-flowers102-idmm-800")
    assert folders("f3", "pvtv2-b3-flowers102-idmm-800") == folders("t3", "pvtv2-b3-flowers102-idmm-800")
    assert folders("t4", "pvtv2-b0-pets-finetune", 2)[0] == folders("200", "pvtv2-b0-pets-idmm-200")[0]
    assert folders("200-released", "deit-tiny-flowers102-idmm-200")[0] != full
    assert folders("200-released", "deit-tiny-flowers102-idmm-200") == folders(
        "t8-released", "deit-tiny-flowers102-cutmix"
    )
    assert folders("200", "deit-tiny-flowers102-idmm-200", seed=1)[0] != full


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_out_is_what_the_preset_says(name):
    """A stage is known by what is written, so nothing may change when it is trained."""
    for run in STUDIES[name].runs:
        task = run.task
        assert isinstance(task, FinetuneTask)
        if task.pretrain is not None:
            resolved = replace(resolve_for(task.pretrain), store_size=task.pretrain.store_size, watch_every=None)
            assert resolved == task.pretrain
            assert task.pretrain.val == "none"
            assert task.pretrain.idmm.classifier == IDMMConfig().classifier
        for config in (task.finetune, task.enlarge):
            if config is not None:
                preset = finetune_recipe(config.backbone, config.preset, config.epochs, config.size)
                assert resolve_for(config).optim == config.optim == preset.optim
                assert config.views.plan(config.size) == idmm_finetune(config.size)
                assert (config.batch, config.val) == (preset.batch, "none")
