"""Tables and figures of the EsViT paper.

The paper's figures are single runs, for some networks at their best epoch. Not included: COCO (Table 2 and two columns
of Table 5), and rows of other authors' systems in Tables 1, 7, 11 and 12. A run's name ends with what is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

from vitling.papers import esvit_recipes as recipes
from vitling.papers.counting import CountTask, ParametersTask, ViewsBudgetTask
from vitling.papers.datasets import ENTRIES
from vitling.papers.probing import (
    SUITE,
    Figure,
    FixedNetwork,
    FrozenTask,
    Network,
    SuiteMeanTask,
    TimedFrozenTask,
    make_probe_runs,
)
from vitling.papers.region_cost import TABLE_8, TABLE_9, RegionCostTask, ThroughputTask
from vitling.papers.region_cost import Figure as Cost
from vitling.papers.stages import pretrain_config
from vitling.papers.study import Study, StudyRun
from vitling.papers.suite.table import PAPER as TABLE_11
from vitling.settings.config import PretrainConfig

IMAGENET = "imagenet1k"
VIEWS, BOTH = "views", "both"  # the view loss alone; with the region loss
Pair = tuple[float | None, float | None]  # linear and k-NN, %
TABLE_1: dict[str, tuple[Pair, Pair]] = {  # the view loss alone, both
    "swin-t": ((77.0, 74.2), (78.1, 75.7)),
    "swin-s": ((79.2, 76.8), (79.5, 77.7)),
    "swin-b": ((79.6, 77.7), (80.4, 78.9)),
    "swin-t-w14": ((77.9, 75.5), (78.7, 77.0)),
    "swin-s-w14": ((79.4, 77.3), (80.8, 79.1)),
    "swin-b-w14": ((80.5, 78.3), (81.3, 79.3)),
}
TABLE_3: dict[str, tuple[int, Pair, Pair, float]] = {  # images by Table 13; views, both; mean of 18 data sets
    IMAGENET: (1_281_167, (77.1, 73.7), (78.0, 75.7), 80.66),
    "webvision": (2_400_000, (75.4, 69.4), (75.9, 71.2), 80.00),
    "openimages": (7_500_000, (69.6, 60.3), (70.6, 62.0), 77.97),
    "imagenet22k": (14_200_000, (73.5, 66.1), (75.0, 67.9), 81.03),
}
SUPERVISED_MEAN = 77.29
TABLE_4: dict[str, tuple[Pair, Pair | None]] = {
    "deit": ((75.9, 73.2), None),
    "r-50": ((75.0, 69.3), (75.7, 71.2)),
    "swin": ((77.1, 73.7), (77.6, 75.4)),
    "vil": ((77.3, 73.9), (77.5, 74.5)),
    "cvt": ((77.6, 74.8), (78.5, 76.7)),
    "pvt": ((75.4, 72.0), (76.3, 72.9)),
}
TABLE_5: dict[str, Pair] = {
    "moco-v2": (67.5, 55.6),
    "densecl": (63.6, 48.6),
    VIEWS: (69.2, 59.9),
    BOTH: (69.9, 61.7),
}
# Parameters of the released networks without their heads. Table 6 draws them; PVT-Small is in no release.
TABLE_6 = {
    "swin_tiny_patch4_window7_224": 27_519_354,
    "swin_small_patch4_window7_224": 48_837_258,
    "swin_base_patch4_window7_224": 86_743_224,
    "swin_tiny_patch4_window7_224.window14": 27_569_754,
    "swin_small_patch4_window7_224.window14": 48_968_298,
    "swin_base_patch4_window7_224.window14": 86_917_944,
    "vil_tiny": 27_569_352,
    "vil_tiny_paper": 27_534_552,
    "cvt_tiny": 29_303_616,
}
TABLE_10 = {  # images: train, test
    "food101": (75_750, 25_250),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "sun397": (19_850, 19_850),
    "cars": (8_144, 8_041),
    "aircraft": (6_667, 3_333),
    "voc2007": (5_011, 4_952),
    "dtd": (3_760, 1_880),
    "pets": (3_680, 3_669),
    "caltech101": (3_060, 6_084),
    "flowers102": (2_040, 6_149),
    "mnist": (60_000, 10_000),
    "fer2013": (32_298, 3_589),
    "stl10": (5_000, 8_000),
    "gtsrb": (26_728, 12_630),
    "patchcamelyon": (294_912, 32_768),
    "ucf101": (9_537, 3_783),
    "hateful-memes": (8_500, 500),
}


def studies() -> tuple[Study, ...]:
    """List the studies of the EsViT paper."""
    paper, probes, new = "EsViT,", "top-1 on test by the probe that the name ends with, %", Study.from_runs
    found = "regions found again in the mirrored view, %; distance: pixels from where they should be"
    return (
        new("esvit-t1", "Swin by size and window", f"{paper} Table 1", _sizes(), probes),
        new("esvit-t3", "other data", f"{paper} Table 3", _other_data(), f"{probes}; suite: mean of 18 data sets"),
        new("esvit-t4", "other networks", f"{paper} Table 4", _networks(), probes),
        new("esvit-t5", "contrast or not, ResNet-50, two views", f"{paper} Table 5", _resnet(), probes),
        new("esvit-t6", "the networks", f"{paper} Table 6 and its code", _layouts(), "parameters without heads"),
        new("esvit-t8", "pace of the networks", f"{paper} Table 8", _throughput(), "images a second, no gradients"),
        new("esvit-t9", "cost of the region loss", f"{paper} Table 9", _costs(), "both losses over the view loss"),
        new("esvit-t10", "the data sets", f"{paper} Table 10", _counts(), "images"),
        new("esvit-t11", "18 data sets", f"{paper} Table 11", _eighteen(), "the data set's metric on test, %"),
        new("esvit-t12", "ResNet-50", f"{paper} Tables 7 and 12", _resnet_linear(), probes, also=("esvit-t7",)),
        new("esvit-t13", "epochs for as many views", f"{paper} Table 13", _epochs(), "epochs"),
        new("esvit-choices", "softmax, distance, transport", f"{paper} Sec. 4.3", _choices(), probes),
        new("esvit-f1", "pace against accuracy", f"{paper} Figure 1 and Table 1", _fast(), probes, picture="scatter"),
        new("esvit-f3", "18 data sets, Swin-S", f"{paper} Figure 3", _suite_of_small(), "mean, %", picture="bars"),
        new("esvit-f4", "k-NN by epoch", f"{paper} Figure 4 and Table 1", _curves(), probes, picture="curves"),
        new("esvit-f8", "correspondence", f"{paper} Figure 8", _correspondence(), found),
    )


def _make_pair(name: str, network: Network, figures: Pair, baseline: str = "", **about: str) -> Iterator[StudyRun]:
    """Yield the linear and the k-NN run on ImageNet-1K."""
    papers: dict[Figure, float | None] = {"linear": figures[0], "knn": figures[1]}
    return make_probe_runs(name, network, IMAGENET, papers, baseline, **about)


def _make_knn(name: str, network: Network, paper: float | None, baseline: str = "", note: str = "") -> StudyRun:
    (run,) = make_probe_runs(name, network, IMAGENET, {"knn": paper}, baseline, note=note)
    return run


def _swin(name: str = "swin-t", regions: bool = True) -> PretrainConfig:
    return pretrain_config(recipes.table_1(name, regions), method="esvit")


def _sizes() -> Iterator[StudyRun]:
    for net, (views, both) in TABLE_1.items():
        network = _swin(net)
        epoch = network.esvit.region_from
        note = f"the region loss from epoch {epoch} on" if epoch else ""
        yield from _make_pair(f"{net}-{VIEWS}", _swin(net, regions=False), views)
        yield from _make_pair(f"{net}-{BOTH}", network, both, f"{net}-{VIEWS}", note=note)


def _other_data() -> Iterator[StudyRun]:
    """Pre-train on other data; linear and k-NN are measured on ImageNet-1K throughout."""
    suite, swin, base = tuple(TABLE_11), FixedNetwork(recipes.SWIN["swin-t"]), "supervised-suite"
    yield StudyRun(base, SuiteMeanTask(swin), weights=swin.backbone, paper=SUPERVISED_MEAN, others=suite)
    for data, (images, views, both, mean) in TABLE_3.items():
        network, alone = (
            pretrain_config(recipes.table_3(images, regions), method="esvit") for regions in (True, False)
        )
        source = data if data != IMAGENET else ""
        note = "" if network.batch == alone.batch else f"batches of {network.batch}, its baseline {alone.batch}"
        yield from _make_pair(f"{data}-{VIEWS}", alone, views, pretrain_data=source)
        yield from _make_pair(f"{data}-{BOTH}", network, both, f"{data}-{VIEWS}", pretrain_data=source, note=note)
        note = "Table 11: 80.99 with batches of 512" if data == IMAGENET else ""
        run = StudyRun(f"{data}-suite", SuiteMeanTask(network), paper=mean, baseline=base, note=note, others=suite)
        yield replace(run, pretrain_data=data)


def _networks() -> Iterator[StudyRun]:
    for net, (views, both) in TABLE_4.items():
        alone = pretrain_config(recipes.table_4(net, regions=False), method="esvit")
        yield from _make_pair(f"{net}-{VIEWS}", alone, views)
        if both:
            note = f"the region loss from epoch {recipes.LATER} on"
            network = pretrain_config(recipes.table_4(net), method="esvit")
            yield from _make_pair(f"{net}-{BOTH}", network, both, f"{net}-{VIEWS}", note=note)
    sampled = recipes.table_4("deit")
    sampled = replace(sampled, objective=replace(sampled.objective, region_stride=2))
    note = "every second region of both sides; the paper: no improvement"
    network = pretrain_config(sampled, method="esvit")
    yield from _make_pair("deit-sampled", network, (None, None), f"deit-{VIEWS}", note=note)


def _two_view_networks() -> dict[str, PretrainConfig]:
    return {
        "moco-v2": pretrain_config(recipes.contrastive(), method="moco-v2"),
        "densecl": pretrain_config(recipes.contrastive(dense=True), method="densecl"),
        VIEWS: pretrain_config(recipes.table_5(regions=False), method="esvit"),
        BOTH: pretrain_config(recipes.table_5(), method="esvit"),
    }


def _resnet() -> Iterator[StudyRun]:
    baselines = {"densecl": "r-50-moco-v2", BOTH: f"r-50-{VIEWS}"}
    for name, network in _two_view_networks().items():
        yield from _make_pair(f"r-50-{name}", network, TABLE_5[name], baselines.get(name, ""))


def _resnet_linear() -> Iterator[StudyRun]:
    """Train two views for 200 epochs as in Table 5, then all views for 300 as in Table 4."""
    networks: dict[str, tuple[PretrainConfig, float | None]] = {
        name: (network, TABLE_5[name][0]) for name, network in _two_view_networks().items()
    }
    for name, regions, linear in (("views-300", False, 75.0), ("both-300", True, 75.7)):
        networks[name] = pretrain_config(recipes.table_4("r-50", regions), method="esvit"), linear
    baselines = {"densecl": "r-50-moco-v2-linear", BOTH: f"r-50-{VIEWS}-linear", "both-300": "r-50-views-300-linear"}
    for name, (network, figure) in networks.items():
        task, baseline = FrozenTask(network, "linear"), baselines.get(name, "")
        yield StudyRun(f"r-50-{name}-linear", task, IMAGENET, paper=figure, baseline=baseline)


def _shorten_name(backbone: str) -> str:
    """Shorten a backbone's name: swin-t-w14, deit-small."""
    short = {name: key for key, name in recipes.SWIN.items()}
    return short.get(backbone, backbone.removesuffix("_patch16_224").replace("_", "-"))


def _layouts() -> Iterator[StudyRun]:
    notes = {"vil_tiny_paper": "Table 6 has heads of 3, 3, 6, 12, against its own width of 32"}
    for name, count in TABLE_6.items():
        yield StudyRun(_shorten_name(name), ParametersTask(name), paper=count, note=notes.get(name, ""))


def _throughput() -> Iterator[StudyRun]:
    for name, figure in TABLE_8.items():
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
    """Count images. Food-101's 102 and FER2013's 8 classes are misprints; some data sets have grown or shrunk since."""
    printed = {"food101": 102, "fer2013": 8}
    for data in TABLE_11:
        classes, (train, test) = ENTRIES[data].classes, TABLE_10[data]
        note = f"the paper: {printed.get(data, classes)} classes"
        yield StudyRun(f"{data}-train", CountTask("train", classes), data, paper=train, note=note)
        yield StudyRun(f"{data}-test", CountTask("test", classes), data, paper=test, note=note)


def _eighteen() -> Iterator[StudyRun]:
    network, swin = _swin(), FixedNetwork(recipes.SWIN["swin-t"])
    for data, (supervised, esvit) in TABLE_11.items():
        metric, base = ENTRIES[data].metric_in(SUITE), f"swin-t-supervised-{data}"
        yield StudyRun(base, FrozenTask(swin, "logistic", metric), data, weights=swin.backbone, paper=supervised)
        task = FrozenTask(network, "logistic", metric)
        yield StudyRun(f"swin-t-{BOTH}-{data}", task, data, paper=esvit, baseline=base, pretrain_data=IMAGENET)


def _epochs() -> Iterator[StudyRun]:
    """Compare `--views-budget` for the views of 300 epochs of ImageNet-1K with the paper's epochs."""
    for data, epochs in {IMAGENET: 300, "openimages": 50, "imagenet22k": 30}.items():
        yield StudyRun(data, ViewsBudgetTask(TABLE_3[data][0]), paper=epochs)


def _choices() -> Iterator[StudyRun]:
    """Measure k-NN. For optimal transport the paper has no figure: ahead early, level at the end."""

    def change(**changes: Any) -> PretrainConfig:
        recipe = recipes.table_1("swin-t")
        return pretrain_config(replace(recipe, objective=replace(recipe.objective, **changes)), method="esvit")

    unsaid, base, byol = "the network is not said in the paper", f"swin-t-{VIEWS}", "byol"
    yield _make_knn(base, _swin(regions=False), 74.2)
    yield _make_knn(f"swin-t-{BOTH}", change(), 75.7, base)
    yield _make_knn("swin-t-mse", change(region_loss="mse"), 72.6, base)
    yield _make_knn("swin-t-sinkhorn", change(match="sinkhorn"), None, base)
    yield _make_knn(byol, pretrain_config(recipes.byol(), method="byol"), 33.1, note=unsaid)
    yield _make_knn("byol-softmax", pretrain_config(recipes.byol("softmax"), method="byol"), 37.2, byol, unsaid)
    yield _make_knn("byol-mse", pretrain_config(recipes.byol("mse"), method="byol"), 34.9, byol, unsaid)


def _fast() -> Iterator[StudyRun]:
    for net, (_, both) in TABLE_1.items():
        yield StudyRun(f"{net}-linear", TimedFrozenTask(FrozenTask(_swin(net), "linear")), IMAGENET, paper=both[0])


def _suite_of_small() -> Iterator[StudyRun]:
    """Only this can be read from the figure: ahead on 17 of 18."""
    suite, swin, base = tuple(TABLE_11), FixedNetwork(recipes.SWIN["swin-s"]), "swin-s-supervised"
    yield StudyRun(base, SuiteMeanTask(swin), weights=swin.backbone, others=suite)
    task = SuiteMeanTask(_swin("swin-s"))
    yield StudyRun(f"swin-s-{BOTH}", task, baseline=base, pretrain_data=IMAGENET, others=suite)


def _curves() -> Iterator[StudyRun]:
    """Train Swin-T with both losses from the start, Swin-B with the region loss from epoch 200 on."""
    for net in ("swin-t", "swin-b"):
        (_, views), (_, both) = TABLE_1[net]
        base = f"{net}-{VIEWS}"
        yield _make_knn(base, _swin(net, regions=False), views)
        yield _make_knn(f"{net}-{BOTH}", _swin(net), both, base)


def _correspondence() -> Iterator[StudyRun]:
    """Match regions. Swin's distances are only in the figure, where they cannot be read."""

    def measure(
        name: str, network: PretrainConfig, accuracy: float, distance: float | None = None, **about: str
    ) -> Iterator[StudyRun]:
        papers: dict[Figure, float | None] = {"correspondence": accuracy, "distance": distance}
        return make_probe_runs(name, network, IMAGENET, papers, **about)

    deit = pretrain_config(recipes.table_4("deit", regions=False), method="esvit")
    dino = "the paper: DINO, perhaps its released network of 800 epochs"
    yield from measure(f"deit-s-{VIEWS}", deit, 95.0, 2.49, note=dino)
    yield from measure(f"swin-t-{VIEWS}", _swin(regions=False), 66.0)
    yield from measure(f"swin-t-{BOTH}", _swin(), 91.0, baseline=f"swin-t-{VIEWS}")
