"""The entries of EsViT's tables: what they train, what they are compared with, what they count."""

from __future__ import annotations

import pytest

from tests.resolved import resolve_for
from vitling.methods import METHODS
from vitling.papers.locations import DATASETS
from vitling.papers.probing import FixedNetwork
from vitling.papers.reproduce import reproduce
from vitling.papers.stages import make_stage
from vitling.papers.studies import all_studies, find_study
from vitling.papers.study import RunContext
from vitling.settings.config import PretrainConfig

pytestmark = pytest.mark.usefixtures("elsewhere")


def entry(study: str, name: str):
    return next(run for run in find_study(study).runs if run.name == name)


def config(study: str, name: str):
    return entry(study, name).task.network


def stage(run):
    context = RunContext(None, data=run.data, pretrain_data=run.pretrain_data, train="a", test="b", weights="")
    return make_stage("pretrain", run.task.network, context, 0, "").out


@pytest.mark.parametrize(
    ("study", "name", "paper"),
    [
        ("esvit-t1", "swin-t-both-linear", 78.1),
        ("esvit-t1", "swin-b-w14-views-knn", 78.3),
        ("esvit-t3", "webvision-both-knn", 71.2),
        ("esvit-t3", "supervised-suite", 77.29),
        ("esvit-t4", "cvt-both-linear", 78.5),
        ("esvit-t4", "deit-sampled-knn", None),
        ("esvit-t5", "r-50-densecl-knn", 48.6),
        ("esvit-t8", "cvt-tiny", 848),
        ("esvit-t9", "swin-t-batch12-memory", 1.5892),
        ("esvit-t9", "swin-t-w14-batch1-memory", 1.2974),  # 1.0890 is printed; its own cells give this
        ("esvit-t9", "swin-t-batch128-time", None),
        ("esvit-t10", "food101-test", 25_250),
        ("esvit-t11", "swin-t-both-gtsrb", 84.3),
        ("esvit-t12", "r-50-both-300-linear", 75.7),
        ("esvit-choices", "byol-mse-knn", 34.9),
        ("esvit-f4", "swin-b-both-knn", 78.9),
        ("esvit-f8", "deit-s-views-distance", 2.49),
    ],
)
def test_figures_of_the_paper(study, name, paper):
    assert entry(study, name).paper == paper


def test_what_is_trained():
    swin = config("esvit-t1", "swin-t-both-linear")
    assert (swin.method, swin.epochs, swin.batch, swin.size) == ("esvit", 300, 512, 224)
    assert (swin.esvit.prototypes, swin.esvit.region_weight, swin.esvit.region_from) == (65_536, 0.5, 0)
    assert config("esvit-t1", "swin-t-views-knn").esvit.region_weight == 0
    assert config("esvit-t1", "swin-b-both-knn").esvit.region_from == 200
    assert config("esvit-t3", "imagenet22k-both-knn").epochs == 30
    assert config("esvit-t4", "vil-both-knn").batch == 1024
    moco, dense = (config("esvit-t5", f"r-50-{name}-knn") for name in ("moco-v2", "densecl"))
    assert (moco.method, moco.optim.lr, moco.batch, moco.epochs) == ("moco-v2", 0.03, 256, 200)
    assert (moco.moco_v2.queue, moco.moco_v2.dim) == (dense.densecl.queue, dense.densecl.dim) == (65_536, 128)
    assert config("esvit-t5", "r-50-both-knn").esvit.local_crops == 0
    assert config("esvit-choices", "swin-t-sinkhorn-knn").esvit.match == "sinkhorn"
    assert config("esvit-choices", "byol-softmax-knn").byol.regions == "softmax"
    assert config("esvit-t11", "swin-t-supervised-pets") == FixedNetwork("swin_tiny_patch4_window7_224")
    assert entry("esvit-t11", "swin-t-both-pets").task.metric == "mean per class"
    assert entry("esvit-t11", "swin-t-both-hateful-memes").task.metric == "ROC-AUC"


def test_results_name_how_regions_are_matched():
    study = next(study for study in all_studies() if study.name == "esvit-small")
    settings = {run.name: run.task.settings for run in study.runs}
    assert settings["swin-t-both-knn"]["pretrain.esvit.match"] == "argmax"
    assert settings["swin-t-place-knn"]["pretrain.esvit.match"] == "place"


def test_presets_leave_what_is_trained_as_it_is():
    """A setting that is also the command's default must not become that of the method's preset."""
    for study in (study for study in all_studies() if study.name.startswith("esvit-") and study.name != "esvit-small"):
        for run in study.runs:
            config = getattr(getattr(run.task, "task", run.task), "network", None)
            if not isinstance(config, PretrainConfig):
                continue
            then = resolve_for(config, DATASETS[run.pretrain_data or run.data].train)
            assert (then.batch, then.epochs, then.optim) == (config.batch, config.epochs, config.optim), run.name
            settings = METHODS[config.method].config_of
            assert settings(then) == settings(config), run.name


def test_tables_share_what_they_train():
    """All tables share one Swin-T with both losses and one with views only."""
    both = [
        entry("esvit-t1", "swin-t-both-linear"),
        entry("esvit-f4", "swin-t-both-knn"),
        entry("esvit-f8", "swin-t-both-distance"),
        entry("esvit-t11", "swin-t-both-pets"),
        entry("esvit-choices", "swin-t-both-knn"),
    ]
    assert len({stage(run) for run in both}) == 1
    assert stage(entry("esvit-t5", "r-50-both-knn")) == stage(entry("esvit-t12", "r-50-both-linear"))
    assert stage(entry("esvit-t1", "swin-t-views-linear")) != stage(both[0])
    assert stage(entry("esvit-t3", "imagenet1k-both-knn")) == stage(both[0])
    assert stage(entry("esvit-t3", "imagenet1k-views-knn")) == stage(entry("esvit-t4", "swin-views-knn"))
    assert "its baseline 1024" in entry("esvit-t3", "imagenet1k-both-knn").note
    probes = [entry("frozen-small", f"idmm-{data}-knn") for data in ("flowers102", "cifar100-10k")]
    assert stage(probes[0]) == stage(probes[1])


def test_what_can_be_counted_is(tmp_path):
    """Parameters as in the released code, epochs for as many views (the paper rounds: 50, 30)."""
    rows = reproduce(find_study("esvit-t6"), only=("-t", "tiny")).results["rows"]
    assert all(row["value"] == entry("esvit-t6", row["run"]).paper for row in rows)
    assert len(rows) == 5
    epochs = {row["run"]: row["value"] for row in reproduce(find_study("esvit-t13")).results["rows"]}
    assert epochs == {"imagenet1k": 300, "openimages": 51, "imagenet22k": 27}
