"""The tables of the IDMM paper that compare methods, against figures that were read off the paper by hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.resolved import resolve_for
from vitling.methods import METHODS
from vitling.papers.idmm_recipes import COLUMNS
from vitling.papers.ledger import Ledger, fingerprint
from vitling.papers.reproduce import _select_runs
from vitling.papers.studies import find_study
from vitling.papers.study import RunContext
from vitling.papers.tsne import TsneTask
from vitling.settings.config import PretrainConfig

NAMES = ("t2", "t5", "t5-corner", "t6", "f2", "f4")
STUDIES = {name: find_study(f"idmm-{name}") for name in (*NAMES, "t2-causes", "200", "t3", "t9")}


def entry(study: str, name: str):
    return next(run for run in STUDIES[study].runs if run.name == name)


def paper(study: str, *names: str) -> list[float | None]:
    return [entry(study, name).paper for name in names]


def task(run):
    return run.task.task if isinstance(run.task, TsneTask) else run.task


def folders(study: str, name: str, seed: int = 0) -> list[str]:
    run = entry(study, name)
    context = RunContext(
        Path("out"), seed, "a", "b", data=run.data, pretrain_data=run.pretrain_data, pretrain_source="c"
    )
    return [stage.out.name for stage in task(run).stages(context)]


def test_how_many_runs():
    counts = {"t2": 8 * 7, "t5": 22 * 7, "t5-corner": 7 * 2, "t6": 12 * 7, "f2": 8, "f4": 25}
    assert {name: len(STUDIES[name].runs) for name in NAMES} == counts


def test_table_2():
    runs = STUDIES["t2"].runs
    assert [run.name.removeprefix("deit-tiny-flowers102-") for run in runs[:8]] == [
        *("random", "simclr", "supcon", "moco-v2", "moco-v3", "dino", "idmm", "byol")
    ]
    assert [run.paper for run in runs[:8]] == [58.1, 71.1, 72.3, 61.8, 67.0, 64.1, 79.9, None]
    of_cub = [run.paper for run in runs if run.data == "cub"]
    assert of_cub == [23.8, 36.2, 37.8, 31.6, 20.5, 41.8, 43.1, None]
    assert {run.baseline for run in runs if run.data == "cub"} == {"", "deit-tiny-cub-random"}


def test_what_may_lie_between_table_2_and_us():
    def changed(method, name):
        plain = entry("t2", f"deit-tiny-flowers102-{method}").task.pretrain
        config = entry("t2-causes", f"deit-tiny-flowers102-{method}-{name}").task.pretrain
        assert replace(resolve_for(config), store_size=None, watch_every=None) == config
        now, before = ({**asdict(one.optim), **asdict(one.moco_v2)} for one in (config, plain))
        assert replace(config, optim=plain.optim, moco_v2=plain.moco_v2) == plain
        return {key: value for key, value in now.items() if value != before[key]}

    runs = {run.name.removeprefix("deit-tiny-flowers102-"): run for run in STUDIES["t2-causes"].runs}
    assert list(runs) == [
        *("simclr", "simclr-adamw", "simclr-sgd0.03", "simclr-adamw-t0.5"),
        *("supcon", "supcon-adamw", "supcon-sgd0.03", "supcon-adamw-t0.5"),
        *("moco-v2", "moco-v2-adamw", "moco-v2-sgd0.03", "moco-v2-mask-own"),
        *("dino", "dino-256"),
    ]
    for method in ("simclr", "supcon", "moco-v2"):
        assert fingerprint(runs[method]) == fingerprint(entry("t2", f"deit-tiny-flowers102-{method}"))
        idmm = entry("200", "deit-tiny-flowers102-idmm-200").task.pretrain.optim
        assert runs[f"{method}-adamw"].task.pretrain.optim == replace(idmm, name="adamw")
        assert runs[f"{method}-adamw"].baseline == runs[method].name
    assert (changed("supcon", "sgd0.03"), changed("moco-v2", "sgd0.03")) == ({"lr": 0.06}, {"lr": 0.03})
    assert changed("moco-v2", "mask-own") == {"mask_own": True}
    papers = {name: run.paper for name, run in runs.items() if run.paper}
    assert papers == {"simclr": 71.1, "supcon": 72.3, "moco-v2": 61.8, "dino": 64.1}


def test_methods_are_compared_on_the_same_pixels():
    for run in (
        *STUDIES["t2"].runs,
        *STUDIES["t5"].runs,
        *find_study("idmm-t8").runs,
        *find_study("frozen-small").runs,
    ):
        config = getattr(run.task, "pretrain", None) or getattr(run.task, "network", None)
        if isinstance(config, PretrainConfig):
            assert max(config.store_least, config.make_views(config.size).store_side(2040)) >= 320


def test_small_images_are_not_enlarged_for_that():
    configs = [
        entry("t5-corner", f"pvtv2-b0-{method}-cifar100-10k-to-flowers102").task.pretrain
        for method in ("idmm", "simclr")
    ]
    assert configs[1].store_least == 320
    assert [resolve_for(config, images=30, side=32).store_size for config in configs] == [32, 32]


def test_table_5():
    def row(method, source):
        return [entry("t5", f"pvtv2-b0-{method}-{source}-to-{data}").paper for data in COLUMNS]

    assert row("idmm", "flowers102") == [92.4, 83.1, 64.8, 66.3, 69.9, 77.1, 87.3]
    assert row("supcon", "pets") == [90.4, 84.7, 63.5, 64.6, 69.6, 76.1, 87.8]
    assert row("simclr", "aircraft") == [87.0, 78.3, 60.6, 62.9, 65.2, 74.4, 86.2]
    assert row("supcon", "cars") == [91.1, 84.6, 65.1, 68.3, 70.4, 79.3, 90.6]
    assert paper("t5", "pvtv2-b0-idmm-indoor67-to-aircraft", "pvtv2-b0-simclr-cub-to-dtd") == [79.7, 63.9]
    assert paper("t5", "pvtv2-b0-random-to-aircraft") == [41.7]
    assert entry("t5", "pvtv2-b0-supcon-cub-to-pets").needed_data == ("cub", "pets")
    assert entry("t5", "pvtv2-b0-supcon-cub-to-cub").needed_data == ("cub",)


def test_a_part_of_table_5_can_be_chosen():
    def chosen(part):
        return {run.name.removeprefix("pvtv2-b0-") for run in _select_runs(STUDIES["t5"], (part,))}

    assert len(chosen("to-cars")) == 22
    assert len(chosen("cars-to")) == 21
    assert len(chosen("cars")) == 22 + 21 - 3
    assert len(chosen("simclr")) == 49


def test_tables_6_and_figure_4():
    assert paper("t6", "pvtv2-b3-sin10k-cub-moco-v3", "t2t-vit-7-sin10k-cars-supervised") == [63.7, 59.9]
    assert paper("t6", "pvtv2-b0-sin10k-aircraft-idmm", "pvtv2-b3-sin10k-indoor67-dino") == [81.3, 73.4]
    failed = entry("t6", "t2t-vit-7-sin10k-pets-dino")
    assert failed.paper is None
    assert "does not converge" in failed.note
    assert {run.pretrain_data for run in STUDIES["t6"].runs} == {"sin10k"}
    assert paper("f4", "deit-tiny-flowers102-dino-800", "deit-tiny-flowers102-dino-400") == [64.1, None]
    assert entry("f4", "deit-tiny-flowers102-dino-400").task.pretrain.epochs == 400


def test_what_exists_keeps_its_folders():
    """A finished stage is reused as long as its settings are unchanged."""
    tiny, pets = "deit_tiny_patch16_224-flowers102-seed1", "t2t_vit_7-pets-seed1"
    assert folders("200", "deit-tiny-flowers102-idmm-200", 1) == [
        *(f"pretrain-{tiny}-dbb10168", f"finetune-{tiny}-8dd0d9e2")
    ]
    assert folders("t3", "t2t-vit-7-pets-idmm-800-448", 1) == [
        *(f"pretrain-{pets}-e29dc869", f"finetune-{pets}-4f9a1cc2", f"enlarge-{pets}-49b55a35")
    ]
    assert fingerprint(entry("200", "deit-tiny-flowers102-idmm-200")) == "f4e455ff"


def test_stages_are_shared():
    for data in COLUMNS:
        for method in ("idmm", "random"):
            there = folders("200", f"deit-tiny-{data}-{method}-200")
            assert folders("t2", f"deit-tiny-{data}-{method}") == there
        diagonal = folders("200", f"pvtv2-b0-{data}-idmm-200")
        assert folders("t5", f"pvtv2-b0-idmm-{data}-to-{data}") == diagonal
        assert folders("t5", f"pvtv2-b0-random-to-{data}") == folders("200", f"pvtv2-b0-{data}-random-200")
        for method in ("idmm", "simclr", "supcon"):
            first = {folders("t5", f"pvtv2-b0-{method}-{data}-to-{other}")[0] for other in COLUMNS}
            assert len(first) == 1
    for method in ("simclr", "supcon", "moco-v2", "moco-v3", "dino", "idmm"):
        here = folders("t2", f"deit-tiny-flowers102-{method}")
        assert folders("f2", f"deit-tiny-flowers102-{method}") == here
        assert folders("f4", f"deit-tiny-flowers102-{method}-800") == here
    assert folders("t9", "deit-tiny-flowers102-simclr-mlp") == folders("t2", "deit-tiny-flowers102-simclr")
    corner = {folders("t5-corner", f"pvtv2-b0-idmm-camvid-to-{data}")[0] for data in ("flowers102", "cifar100-10k")}
    assert len(corner) == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_out_is_what_the_method_says(name):
    for run in STUDIES[name].runs:
        config = task(run).pretrain
        if config is not None:
            assert replace(resolve_for(config), store_size=None, watch_every=None) == config
            stage = METHODS[config.method].recipe(config.backbone, "paper", config.epochs, config.size)
            assert (config.optim, config.batch) == (stage.optim, stage.batch)
            assert config.on_collapse == ("stop" if config.method == "idmm" else "warn")


def test_the_corner_shows_as_many_images_of_each_source():
    runs = [run for run in STUDIES["t5-corner"].runs if run.task.pretrain]
    epochs = {run.pretrain_data or run.data: run.task.pretrain.epochs for run in runs}
    assert epochs == {"flowers102": 200, "cifar100-10k": 41, "camvid": 1112}
    assert {run.task.finetune.epochs for run in STUDIES["t5-corner"].runs} == {100}
    assert {run.task.finetune.size for run in STUDIES["t5-corner"].runs} == {112}
    assert "camvid" not in {run.data for run in runs}  # it has no classes


def test_a_matrix_is_in_the_results_before_its_runs_are(tmp_path):
    content = Ledger(tmp_path / "results.json", STUDIES["t5"], None).make_content()
    assert (content["picture"], len(content["cells"]), content["rows"]) == ("heatmap", 154, [])
    assert content["cells"][1] == {
        "run": "pvtv2-b0-idmm-flowers102-to-flowers102",
        "row": "flowers102, IDMM",
        "column": "flowers102",
        "paper": 92.4,
    }
    assert "picture" not in Ledger(tmp_path / "results.json", STUDIES["t2"], None).make_content()
