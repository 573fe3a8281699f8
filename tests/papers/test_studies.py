"""The entries of the papers' tables: they can be built, and say what they want."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import make_folder
from tests.papers.datasets import copies
from vitling.backbones import names
from vitling.cli import run
from vitling.data.config import DataConfig
from vitling.data.splits import read_splits
from vitling.errors import UserError
from vitling.papers.ledger import fingerprint
from vitling.papers.locations import DATASETS, describe_missing, find_data, find_weights
from vitling.papers.stages import FinetuneTask, make_stage
from vitling.papers.studies import all_studies, find_study
from vitling.papers.study import RunContext
from vitling.papers.train_task import TrainTask, shorten
from vitling.settings.checks import check
from vitling.settings.config import PretrainConfig

CAUSES = ("fp32", "lr1e-3", "deit-views")
STUDIES = {study.name: study for study in all_studies()}
NAMED_IN_THE_ISSUE = [
    *("drloc-t1b", "drloc-t2a", "drloc-t2b", "drloc-t3", "drloc-t4", "drloc-t7"),
    *("drloc-supp-t7", "drloc-supp-t8", "drloc-supp-t9", "drloc-supp-t14", "drloc-supp-t16", "drloc-supp-f3"),
    *("drloc-grid", "drloc-positions", "drloc-t3-causes"),
    *("idmm-t1", "idmm-t3", "idmm-t4", "idmm-t7", "idmm-t8", "idmm-t9", "idmm-f3", "idmm-200", "idmm-200-causes"),
    *("idmm-t2", "idmm-t5", "idmm-t5-corner", "idmm-t6", "idmm-f2", "idmm-f4"),
    *("esvit-t1", "esvit-t3", "esvit-t4", "esvit-t5", "esvit-t6", "esvit-t8", "esvit-t9", "esvit-t10", "esvit-t11"),
    *(
        "esvit-t12",
        "esvit-t13",
        "esvit-f1",
        "esvit-f3",
        "esvit-f4",
        "esvit-f8",
        "esvit-small",
        "frozen-small",
        "t2t-collapse",
    ),
]


def test_every_table_has_an_entry():
    assert set(NAMED_IN_THE_ISSUE) <= set(STUDIES)
    assert find_study("drloc-supp-t6") == STUDIES["drloc-t1b"]
    with pytest.raises(UserError, match="drloc-t3"):
        find_study("drloc-t33")


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_run_can_be_built(study, tmp_path):
    assert len({run.name for run in study.runs}) == len(study.runs)
    known = {run.name for run in study.runs}
    for entry in study.runs:
        assert re.fullmatch(r"[a-z0-9._-]+", entry.name)
        assert entry.paper is None or 0 < entry.paper < (100 if "%" in study.unit else math.inf)
        assert entry.baseline in (known | {""})
        assert set(entry.needed_data) <= DATASETS.keys()
        assert fingerprint(entry)
        for config in configured(entry, tmp_path):
            check(config)
            assert names.find_entry(config.backbone)
            assert config.resume


def configured(entry, out):
    context = RunContext(out, 3, "a", "b", entry.weights, stages=out)
    if isinstance(entry.task, TrainTask):
        config = entry.task.make_config(context)
        assert (config.seed, config.out) == (3, str(out))
        return [config]
    if isinstance(entry.task, FinetuneTask):
        return [stage.config for stage in entry.task.stages(context)]
    network = getattr(getattr(entry.task, "task", entry.task), "network", None)
    return [make_stage("pretrain", network, context, 3, "").config] if isinstance(network, PretrainConfig) else []


def test_runs_of_a_study_differ_in_what_they_say_they_do():
    for study in STUDIES.values():
        assert len({fingerprint(entry) for entry in study.runs}) == len(study.runs), study.name


def entry(study: str, name: str):
    return next(run for run in STUDIES[study].runs if run.name == name)


def test_figures_of_the_papers():
    assert entry("drloc-t3", "swin-t-flowers102-drloc").paper == 39.37
    assert entry("drloc-t3", "t2t-vit-14-domainnet-sketch").paper == 31.51
    assert entry("drloc-t4", "swin-t-svhn-drloc").paper == 97.87
    assert entry("drloc-t1b", "swin-t-imagenet100-all").paper == 81.88
    assert entry("drloc-t1b", "swin-t-flowers102-all").paper is None
    assert entry("drloc-supp-t16", "cvt-13-cifar100-mlp1024").paper == 73.80
    assert entry("drloc-grid", "cvt-13-flowers102-drloc").paper == 56.29


def test_what_the_runs_change():
    def config(study, name):
        return entry(study, name).task.config

    assert config("drloc-t2a", "swin-t-cifar100-m256").drloc.pairs == 256
    assert config("drloc-t7", "swin-t-cifar100-exhaustive").drloc.variant == "exhaustive"
    assert config("drloc-supp-t16", "swin-t-cifar100-mlp256").drloc.hidden == 256
    assert config("drloc-grid", "t2t-vit-14-cifar100-grid14").drloc.grid == 14
    assert config("drloc-t2b", "swin-t-imagenet100-300").epochs == 300
    assert config("drloc-t3-released", "swin-t-svhn-drloc").drloc.schedule == "released"
    assert config("drloc-positions", "swin-t.no_bias-cifar100").backbone.endswith(".no_bias")
    assert config("drloc-t4", "swin-t-cifar10").optim.lr == 5e-4
    assert config("drloc-t3-causes", "swin-t-flowers102-raw").drloc.target == "offset"
    assert config("drloc-t3-causes", "cvt-13-flowers102-weight0.5").drloc.weight == 0.5
    assert config("drloc-t3-causes", "swin-t-flowers102-weight2.5").drloc.weight == 2.5
    assert config("drloc-t3-causes", "t2t-vit-14-flowers102-no-drop-path").objective.drop_path == 0
    assert config("drloc-t3-causes", "swin-t-flowers102-batch128").optim.lr == 1.25e-4
    assert config("drloc-t3-causes", "cvt-13-flowers102-batch128-raw").drloc.target == "offset"
    assert entry("drloc-t4", "swin-t-cifar10").weights == "swin_tiny_patch4_window7_224"


def test_what_fine_tuning_changes_keeps_its_pre_training(tmp_path):
    context = RunContext(tmp_path / "run", 0, "a.tar", "b.tar", data="flowers102", stages=tmp_path)
    plain = entry("idmm-200-causes", "deit-tiny-flowers102-idmm-200-store192").task
    finer = entry("idmm-200", "deit-tiny-flowers102-idmm-200").task
    changed = {name: entry("idmm-200-causes", f"deit-tiny-flowers102-idmm-200-{name}").task for name in CAUSES}
    first = {task.stages(context)[0].out for task in (plain, *changed.values())}
    assert len(first) == 1
    assert len({task.stages(context)[1].out for task in (plain, *changed.values())}) == 1 + len(CAUSES)
    assert plain == replace(finer, pretrain=replace(finer.pretrain, store_size=192))
    assert changed["fp32"].finetune.loop.precision == "fp32"
    assert changed["lr1e-3"].finetune.optim.lr == 2 * plain.finetune.optim.lr
    assert changed["deit-views"].finetune.views.plan(224).groups[0].policy.erase == 0.25


@pytest.mark.parametrize(("epochs", "later"), [(1, 0), (2, 1), (3, 2), (30, 20), (600, 400)])
def test_a_trial_reaches_a_region_loss_that_comes_later(epochs, later):
    """After 200 of 300 epochs, in the tables."""
    config = next(run for run in find_study("esvit-t1").runs if run.name == "swin-b-both-knn").task.network
    assert (config.epochs, config.esvit.region_from) == (300, 200)
    assert shorten(config, epochs).esvit.region_from == later


def test_a_trial_is_shorter_and_warms_up_in_the_same_share():
    config = entry("drloc-t3", "swin-t-svhn").task.config
    assert shorten(config, None) == config
    short = shorten(config, 10)
    assert (short.epochs, short.optim.warmup_epochs) == (10, 2)


def test_a_curve_looks_at_the_test_images():
    task = entry("drloc-supp-f3", "swin-t-cifar100-drloc").task
    config = task.make_config(RunContext(Path("run"), 0, "a.tar", "b.tar"))
    assert (config.source, config.val, config.eval_every) == ("train=a.tar,val=b.tar", None, 10)


def test_data_are_found_by_name(tmp_path):
    assert find_data("flowers102", tmp_path) is None
    (tmp_path / "flowers102-train.tar").touch()
    assert find_data("flowers102", tmp_path) is None
    (tmp_path / "flowers102-test.parquet").touch()
    train, test = find_data("flowers102", tmp_path)
    assert (Path(train).name, Path(test).name) == ("flowers102-train.tar", "flowers102-test.parquet")
    for split in ("train", "test"):
        make_folder(tmp_path / "svhn", each=1, split=split)
    assert find_data("svhn", tmp_path)[1] == str(tmp_path / "svhn" / "test")
    for name in ("cifar100-train-10k", "cifar100-test-5k"):
        (tmp_path / f"{name}.parquet").touch()
    assert find_data("cifar100-10k", tmp_path)
    assert find_data("cifar100", tmp_path) is None  # a part is not the whole
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "t2t_vit_14.pth").touch()
    assert find_weights("t2t_vit_14", tmp_path) == str(tmp_path / "weights" / "t2t_vit_14.pth")


def test_data_as_distributed_are_found_too(tmp_path):
    copies.flowers102(tmp_path)
    train, test = find_data("flowers102", tmp_path)
    splits = read_splits(f"train={train},test={test}", DataConfig())
    assert (len(splits.train), len(splits.hidden_test)) == (12, 6)
    copies.openimages(tmp_path)
    assert find_data("openimages", tmp_path) == (f"openimages:{tmp_path}", "")


def test_data_without_a_test_split(tmp_path):
    assert find_data("sin10k", tmp_path) is None
    (tmp_path / "sin10k-train.tar").touch()
    assert find_data("sin10k", tmp_path) == (str(tmp_path / "sin10k-train.tar"), "")
    (line,) = describe_missing(["sin10k"], [], tmp_path)
    assert line.endswith(
        f"10,000 images): {tmp_path}/sin10k/train/ with the images, or {tmp_path}/sin10k-train.tar "
        "(.parquet, .csv, .npz)"
    )


def test_what_is_wanted_is_said_exactly(tmp_path):
    data, weights = describe_missing(["svhn"], ["t2t_vit_14"], tmp_path)
    for word in ("73,257 + 26,032", f"{tmp_path}/svhn/train/", f"{tmp_path}/svhn-train.tar", "svhn-test.tar"):
        assert word in data
    assert f"{tmp_path}/weights/t2t_vit_14.safetensors" in weights


def test_the_lists(capsys):
    assert run(["list", "tables"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in STUDIES)
    assert max(map(len, shown.splitlines())) <= 80
