"""Tables and figures of the EsViT paper.

The paper's figures are single runs, for some networks at their best epoch. Table 2 is in dense.py. Not included: rows
of other authors' systems in Tables 1, 7, 11 and 12. A run's name ends with what is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

from vitling.methods.esvit.settings import EsViTConfig
from vitling.methods.method import Recipe
from vitling.papers import esvit_recipes as recipes
from vitling.papers.costs import TABLE_9, Cost, RegionCostTask, ThroughputTask
from vitling.papers.counting import CountTask, ParametersTask, ViewsBudgetTask
from vitling.papers.datasets import ENTRIES
from vitling.papers.dense_task import detect_coco, make_dense_runs
from vitling.papers.figures import read_figures
from vitling.papers.probing import SUITE, Figure, FixedNetwork, FrozenTask, Network, SuiteMeanTask, make_probe_runs
from vitling.papers.stages import pretrain_config
from vitling.papers.study import Study, StudyRun
from vitling.papers.suite.table import PAPER as TABLE_11
from vitling.settings.config import PretrainConfig

IMAGENET = "imagenet1k"
VIEWS, BOTH = "views", "both"  # the view loss alone; with the region loss
IMAGES = {  # of the data for pre-training in Table 3, by Table 13
    IMAGENET: 1_281_167,
    "webvision": 2_400_000,
    "openimages": 7_500_000,
    "imagenet22k": 14_200_000,
}
PROBES: tuple[Figure, ...] = ("linear", "knn")


def studies() -> tuple[Study, ...]:
    """List the studies of the EsViT paper."""
    paper, probes, new = "EsViT,", "top-1 on test by the probe that the name ends with, %", Study.from_runs
    found = "regions found again in the mirrored view, %; distance: pixels from where they should be"
    return (
        new("esvit-t1", "Swin by size and window", f"{paper} Table 1", _sizes(), probes),
        new("esvit-t3", "other data", f"{paper} Table 3", _other_data(), f"{probes}; suite: mean of 18 datasets"),
        new("esvit-t4", "other networks", f"{paper} Table 4", _networks(), probes),
        new(
            "esvit-t5",
            "contrast or not, ResNet-50, two views",
            f"{paper} Table 5",
            _resnet_dense(),
            f"{probes}; AP on COCO",
        ),
        new("esvit-t6", "the networks", f"{paper} Table 6 and its code", _layouts(), "parameters without heads"),
        new("esvit-t8", "throughput of networks", f"{paper} Table 8", _throughput(), "images per second, no gradients"),
        new("esvit-t9", "cost of the region loss", f"{paper} Table 9", _costs(), "both losses over the view loss"),
        new("esvit-t10", "the datasets", f"{paper} Table 10", _counts(), "images"),
        new("esvit-t11", "18 datasets", f"{paper} Table 11", _eighteen(), "the dataset's metric on test, %"),
        new("esvit-t12", "ResNet-50", f"{paper} Tables 7 and 12", _resnet_linear(), probes, also=("esvit-t7",)),
        new("esvit-t13", "epochs for as many views", f"{paper} Table 13", _epochs(), "epochs"),
        new("esvit-choices", "softmax, distance, transport", f"{paper} Sec. 4.3", _choices(), probes),
        new(
            "esvit-f1",
            "throughput against accuracy",
            f"{paper} Figure 1 and Table 1",
            _fast(),
            probes,
            picture="scatter",
        ),
        new("esvit-f3", "18 datasets, Swin-S", f"{paper} Figure 3", _suite_of_small(), "mean, %", picture="bars"),
        new("esvit-f4", "k-NN by epoch", f"{paper} Figure 4 and Table 1", _curves(), probes, picture="curves"),
        new("esvit-f8", "correspondence", f"{paper} Figure 8", _correspondence(), found),
    )


def _probe(
    name: str, network: Network, baseline: str = "", figures: Iterable[Figure] = PROBES, **about: str
) -> Iterator[StudyRun]:
    """Yield a run on ImageNet-1K for each figure."""
    return make_probe_runs(name, network, IMAGENET, figures, baseline, **about)


def _esvit(recipe: Recipe[EsViTConfig]) -> PretrainConfig:
    return pretrain_config(recipe, method="esvit")


def _swin(name: str = "swin-t", regions: bool = True) -> PretrainConfig:
    return _esvit(recipes.table_1(name, regions))


def _sizes() -> Iterator[StudyRun]:
    for net in recipes.SWIN:
        network = _swin(net)
        epoch = network.esvit.region_from
        note = f"the region loss from epoch {epoch} on" if epoch else ""
        yield from _probe(f"{net}-{VIEWS}", _swin(net, regions=False))
        yield from _probe(f"{net}-{BOTH}", network, f"{net}-{VIEWS}", note=note)


def _other_data() -> Iterator[StudyRun]:
    """Pre-train on other data; linear and k-NN are measured on ImageNet-1K throughout."""
    suite, swin, base = tuple(TABLE_11), FixedNetwork(recipes.SWIN["swin-t"]), "supervised-suite"
    yield StudyRun(base, SuiteMeanTask(swin), weights=swin.backbone, others=suite)
    for data, images in IMAGES.items():
        alone, network = (_esvit(recipes.table_3(images, regions)) for regions in (False, True))
        source = data if data != IMAGENET else ""
        note = "" if network.batch == alone.batch else f"batches of {network.batch}, its baseline {alone.batch}"
        yield from _probe(f"{data}-{VIEWS}", alone, pretrain_data=source)
        yield from _probe(f"{data}-{BOTH}", network, f"{data}-{VIEWS}", pretrain_data=source, note=note)
        note = "Table 11: 80.99 with batches of 512" if data == IMAGENET else ""
        task = SuiteMeanTask(network)
        yield StudyRun(f"{data}-suite", task, baseline=base, note=note, pretrain_data=data, others=suite)


def _networks() -> Iterator[StudyRun]:
    note = f"the region loss from epoch {recipes.LATER} on"
    for net in recipes.OTHERS:
        yield from _probe(f"{net}-{VIEWS}", _esvit(recipes.table_4(net, regions=False)))
        if net != "deit":
            yield from _probe(f"{net}-{BOTH}", _esvit(recipes.table_4(net)), f"{net}-{VIEWS}", note=note)
    sampled = recipes.table_4("deit")
    network = _esvit(replace(sampled, objective=replace(sampled.objective, region_stride=2)))
    note = "every second region of both sides; the paper: no improvement"
    yield from _probe("deit-sampled", network, f"deit-{VIEWS}", note=note)


def _two_view_networks() -> dict[str, PretrainConfig]:
    return {
        "moco-v2": pretrain_config(recipes.contrastive(), method="moco-v2"),
        "densecl": pretrain_config(recipes.contrastive(dense=True), method="densecl"),
        VIEWS: _esvit(recipes.table_5(regions=False)),
        BOTH: _esvit(recipes.table_5()),
    }


def _resnet(figures: Iterable[Figure] = PROBES) -> Iterator[StudyRun]:
    baselines = {"densecl": "r-50-moco-v2", BOTH: f"r-50-{VIEWS}"}
    for name, network in _two_view_networks().items():
        yield from _probe(f"r-50-{name}", network, baselines.get(name, ""), figures)


def _resnet_dense() -> Iterator[StudyRun]:
    """Yield the probes, and the AP of Mask R-CNN on COCO, whose schedule the paper does not give."""
    yield from _resnet()
    dense, note, base = detect_coco("resnet50", "1x"), "1x with AdamW; the paper gives no schedule", "r-50-supervised"
    yield from make_dense_runs(base, dense, ("box_ap", "mask_ap"), data="coco", weights="resnet50", note=note)
    baselines = {"densecl": "r-50-moco-v2", BOTH: f"r-50-{VIEWS}"}
    for name, network in _two_view_networks().items():
        about = {"data": "coco", "pretrain_data": IMAGENET, "note": note}
        runs = make_dense_runs(
            f"r-50-{name}", dense, ("box_ap", "mask_ap"), network, baselines.get(name, base), **about
        )
        yield from runs


def _resnet_linear() -> Iterator[StudyRun]:
    """Train two views for 200 epochs as in Table 5, then all views for 300 as in Table 4."""
    yield from _resnet(["linear"])
    for name, regions, baseline in ((VIEWS, False, ""), (BOTH, True, f"r-50-{VIEWS}-300")):
        network = _esvit(recipes.table_4("r-50", regions))
        yield from _probe(f"r-50-{name}-300", network, baseline, ["linear"])


def _shorten_name(backbone: str) -> str:
    """Shorten a backbone's name: swin-t-w14, deit-small."""
    short = {name: key for key, name in recipes.SWIN.items()}
    return short.get(backbone, backbone.removesuffix("_patch16_224").replace("_", "-"))


def _layouts() -> Iterator[StudyRun]:
    notes = {"vil_tiny_paper": "Table 6 has heads of 3, 3, 6, 12, against its own width of 32"}
    for name, count in read_figures("esvit-t6").items():
        yield StudyRun(_shorten_name(name), ParametersTask(name), paper=count, note=notes.get(name, ""))


def _throughput() -> Iterator[StudyRun]:
    for name, figure in read_figures("esvit-t8").items():
        yield StudyRun(_shorten_name(name), ThroughputTask(name), paper=figure)


def _costs() -> Iterator[StudyRun]:
    """Measure the paper's batches, and one of 128 that keeps a current GPU busy."""
    networks = dict.fromkeys(backbone for backbone, _ in TABLE_9)
    for backbone, batch in (*TABLE_9, *((backbone, 128) for backbone in networks)):
        published = TABLE_9.get((backbone, batch))
        for figure in get_args(Cost):
            paper = round(published.ratio[figure], 4) if published else None
            name = f"{_shorten_name(backbone)}-batch{batch}-{figure}"
            yield StudyRun(name, RegionCostTask(backbone, batch, figure), paper=paper)


def _counts() -> Iterator[StudyRun]:
    """Count images. Food-101's 102 and FER2013's 8 classes are misprints; some datasets have grown or shrunk since."""
    printed = {"food101": 102, "fer2013": 8}
    for data in TABLE_11:
        classes = ENTRIES[data].classes
        note = f"the paper: {printed.get(data, classes)} classes"
        yield StudyRun(f"{data}-train", CountTask("train", classes), data, note=note)
        yield StudyRun(f"{data}-test", CountTask("test", classes), data, note=note)


def _eighteen() -> Iterator[StudyRun]:
    network, swin = _swin(), FixedNetwork(recipes.SWIN["swin-t"])
    for data, (supervised, esvit) in TABLE_11.items():
        metric, base = ENTRIES[data].metric_in(SUITE), f"swin-t-supervised-{data}"
        yield StudyRun(base, FrozenTask(swin, "logistic", metric), data, weights=swin.backbone, paper=supervised)
        task = FrozenTask(network, "logistic", metric)
        yield StudyRun(f"swin-t-{BOTH}-{data}", task, data, paper=esvit, baseline=base, pretrain_data=IMAGENET)


def _epochs() -> Iterator[StudyRun]:
    """Compare `--views-budget` for the views of 300 epochs of ImageNet-1K with the paper's epochs."""
    return (StudyRun(data, ViewsBudgetTask(IMAGES[data])) for data in (IMAGENET, "openimages", "imagenet22k"))


def _choices() -> Iterator[StudyRun]:
    """Measure k-NN. For optimal transport the paper has no figure: ahead early, level at the end."""
    recipe, base = recipes.table_1("swin-t"), f"swin-t-{VIEWS}"
    losses: dict[str, dict[str, Any]] = {BOTH: {}, "mse": {"region_loss": "mse"}, "sinkhorn": {"match": "sinkhorn"}}
    yield from _probe(base, _swin(regions=False), figures=["knn"])
    for name, changes in losses.items():
        changed = _esvit(replace(recipe, objective=replace(recipe.objective, **changes)))
        yield from _probe(f"swin-t-{name}", changed, base, ["knn"])
    regions: tuple[Literal["none", "softmax", "mse"], ...] = ("none", "softmax", "mse")
    for loss in regions:
        name, baseline = ("byol", "") if loss == "none" else (f"byol-{loss}", "byol")
        network = pretrain_config(recipes.byol(loss), method="byol")
        yield from _probe(name, network, baseline, ["knn"], note="the paper does not name the network")


def _fast() -> Iterator[StudyRun]:
    for net in recipes.SWIN:
        yield StudyRun(f"{net}-linear", FrozenTask(_swin(net), "linear", paced=True), IMAGENET)


def _suite_of_small() -> Iterator[StudyRun]:
    """Make the runs of the figure, from which only this can be read: ahead on 17 of 18."""
    suite, swin, base = tuple(TABLE_11), FixedNetwork(recipes.SWIN["swin-s"]), "swin-s-supervised"
    yield StudyRun(base, SuiteMeanTask(swin), weights=swin.backbone, others=suite)
    task = SuiteMeanTask(_swin("swin-s"))
    yield StudyRun(f"swin-s-{BOTH}", task, baseline=base, pretrain_data=IMAGENET, others=suite)


def _curves() -> Iterator[StudyRun]:
    """Train Swin-T with both losses from the start, Swin-B with the region loss from epoch 200 on."""
    for net in ("swin-t", "swin-b"):
        base = f"{net}-{VIEWS}"
        yield from _probe(base, _swin(net, regions=False), figures=["knn"])
        yield from _probe(f"{net}-{BOTH}", _swin(net), base, ["knn"])


def _correspondence() -> Iterator[StudyRun]:
    """Match regions. Swin's distances are only in the figure, where they cannot be read."""
    found: tuple[Figure, ...] = ("correspondence", "distance")
    deit, base = _esvit(recipes.table_4("deit", regions=False)), f"swin-t-{VIEWS}"
    note = "the paper: DINO, perhaps its released network of 800 epochs"
    yield from _probe(f"deit-s-{VIEWS}", deit, figures=found, note=note)
    yield from _probe(base, _swin(regions=False), figures=found)
    yield from _probe(f"swin-t-{BOTH}", _swin(), base, found)
