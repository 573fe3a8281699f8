"""The tables and figures of the EsViT paper.

Its figures are the authors': single runs, and of some networks the epoch that did best. COCO (Table 2, and two columns
of Table 5) is not here: vitling does not detect or segment yet. Nor are the rows of other authors' systems in Tables 1,
7, 11 and 12. A run's name ends with what is measured of its network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

from vitling.methods import MethodName
from vitling.methods.method import Recipe
from vitling.papers import esvit_recipes as recipe
from vitling.papers.counting import CountTask, ParametersTask, ViewsBudgetTask
from vitling.papers.datasets import ENTRIES
from vitling.papers.probing import (
    SUITE,
    Figure,
    FixedNetwork,
    Network,
    ProbeTask,
    SuiteMeanTask,
    TimedProbeTask,
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
Pair = tuple[float | None, float | None]  # linear and k-NN
TABLE_1: dict[str, tuple[Pair, Pair]] = {  # the view loss alone, both
    "swin-t": ((77.0, 74.2), (78.1, 75.7)),
    "swin-s": ((79.2, 76.8), (79.5, 77.7)),
    "swin-b": ((79.6, 77.7), (80.4, 78.9)),
    "swin-t-w14": ((77.9, 75.5), (78.7, 77.0)),
    "swin-s-w14": ((79.4, 77.3), (80.8, 79.1)),
    "swin-b-w14": ((80.5, 78.3), (81.3, 79.3)),
}
TABLE_3: dict[str, tuple[int, Pair, Pair, float]] = {  # images by Table 13; views, both; mean of 18 data sets
    IMAGENET: (recipe.IMAGENET, (77.1, 73.7), (78.0, 75.7), 80.66),
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
TABLE_10 = {  # images to train on, and to test
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
    paper, probes = "EsViT,", "top-1 on test by the probe that the name ends with, %"
    found = "regions found again in the mirrored view, %; distance: pixels from where they should be"
    return (
        Study("esvit-t1", "Swin by size and window", f"{paper} Table 1", _sizes(), probes),
        Study("esvit-t3", "other data", f"{paper} Table 3", _other_data(), f"{probes}; suite: mean of 18 data sets"),
        Study("esvit-t4", "other networks", f"{paper} Table 4", _networks(), probes),
        Study("esvit-t5", "contrast or not, ResNet-50, two views", f"{paper} Table 5", _resnet(), probes),
        Study("esvit-t6", "the networks", f"{paper} Table 6 and its code", _layouts(), "parameters without heads"),
        Study("esvit-t8", "pace of the networks", f"{paper} Table 8", _paces(), "images a second, no gradients"),
        Study("esvit-t9", "cost of the region loss", f"{paper} Table 9", _costs(), "both losses over the view loss"),
        Study("esvit-t10", "the data sets", f"{paper} Table 10", _counts(), "images"),
        Study("esvit-t11", "18 data sets", f"{paper} Table 11", _eighteen(), "the data set's metric on test, %"),
        Study("esvit-t12", "ResNet-50", f"{paper} Tables 7 and 12", _resnet_linear(), probes, also=("esvit-t7",)),
        Study("esvit-t13", "epochs for as many views", f"{paper} Table 13", _epochs(), "epochs"),
        Study("esvit-choices", "softmax, distance, transport", f"{paper} Sec. 4.3", _choices(), probes),
        Study("esvit-f1", "pace against accuracy", f"{paper} Figure 1 and Table 1", _fast(), probes, picture="scatter"),
        Study("esvit-f3", "18 data sets, Swin-S", f"{paper} Figure 3", _suite_of_small(), "mean, %", picture="bars"),
        Study("esvit-f4", "k-NN by epoch", f"{paper} Figure 4 and Table 1", _curves(), probes, picture="curves"),
        Study("esvit-f8", "correspondence", f"{paper} Figure 8", _correspondence(), found),
    )


def _network(stage: Recipe, method: MethodName = "esvit") -> PretrainConfig:
    return pretrain_config(stage, method=method)


def _probed(name: str, network: Network, figures: Pair, baseline: str = "", **about: str) -> Iterator[StudyRun]:
    """On ImageNet-1K: linear and k-NN."""
    papers: dict[Figure, float | None] = {"linear": figures[0], "knn": figures[1]}
    return make_probe_runs(name, network, IMAGENET, papers, baseline, **about)


def _later(epoch: int) -> str:
    return f"the region loss from epoch {epoch} on" if epoch else ""


def _sizes() -> tuple[StudyRun, ...]:
    def rows() -> Iterator[StudyRun]:
        for net, (views, both) in TABLE_1.items():
            network = _network(recipe.table_1(net))
            note = _later(network.esvit.region_from)
            yield from _probed(f"{net}-{VIEWS}", _network(recipe.table_1(net, regions=False)), views)
            yield from _probed(f"{net}-{BOTH}", network, both, f"{net}-{VIEWS}", note=note)

    return tuple(rows())


def _other_data() -> tuple[StudyRun, ...]:
    """Linear and k-NN are of ImageNet-1K, whatever was pre-trained on."""
    suite, swin = tuple(TABLE_11), FixedNetwork(recipe.SWIN["swin-t"])

    def rows() -> Iterator[StudyRun]:
        base = "supervised-suite"
        yield StudyRun(base, SuiteMeanTask(swin), weights=swin.backbone, paper=SUPERVISED_MEAN, others=suite)
        for data, (images, views, both, mean) in TABLE_3.items():
            network, pretrain_data = _network(recipe.table_3(images)), data if data != IMAGENET else ""
            alone = _network(recipe.table_3(images, regions=False))
            note = "" if network.batch == alone.batch else f"batches of {network.batch}, its baseline {alone.batch}"
            yield from _probed(f"{data}-{VIEWS}", alone, views, pretrain_data=pretrain_data)
            yield from _probed(
                f"{data}-{BOTH}", network, both, f"{data}-{VIEWS}", pretrain_data=pretrain_data, note=note
            )
            task, note = SuiteMeanTask(network), "Table 11: 80.99 with batches of 512" if data == IMAGENET else ""
            yield StudyRun(
                f"{data}-suite", task, paper=mean, baseline=base, note=note, pretrain_data=data, others=suite
            )

    return tuple(rows())


def _networks() -> tuple[StudyRun, ...]:
    def rows() -> Iterator[StudyRun]:
        for net, (views, both) in TABLE_4.items():
            yield from _probed(f"{net}-{VIEWS}", _network(recipe.table_4(net, regions=False)), views)
            if both:
                network = _network(recipe.table_4(net))
                yield from _probed(f"{net}-{BOTH}", network, both, f"{net}-{VIEWS}", note=_later(recipe.LATER))
        sampled = recipe.table_4("deit")
        sampled = replace(sampled, objective=replace(sampled.objective, region_stride=2))
        note = "every second region of both sides; the paper: no improvement"
        yield from _probed("deit-sampled", _network(sampled), (None, None), f"deit-{VIEWS}", note=note)

    return tuple(rows())


def _pairs_of_resnet() -> dict[str, Network]:
    return {
        "moco-v2": _network(recipe.contrastive(), "moco-v2"),
        "densecl": _network(recipe.contrastive(dense=True), "densecl"),
        VIEWS: _network(recipe.table_5(regions=False)),
        BOTH: _network(recipe.table_5()),
    }


def _resnet() -> tuple[StudyRun, ...]:
    networks, baseline = _pairs_of_resnet(), {"densecl": "r-50-moco-v2", BOTH: f"r-50-{VIEWS}"}
    rows = (_probed(f"r-50-{name}", networks[name], TABLE_5[name], baseline.get(name, "")) for name in TABLE_5)
    return tuple(run for some in rows for run in some)


def _resnet_linear() -> tuple[StudyRun, ...]:
    """Two views and 200 epochs as in Table 5, then all views and 300 as in Table 4."""
    long = {"views-300": (recipe.table_4("r-50", regions=False), 75.0), "both-300": (recipe.table_4("r-50"), 75.7)}
    networks = {name: (network, TABLE_5[name][0]) for name, network in _pairs_of_resnet().items()}
    networks |= {name: (_network(stage), figure) for name, (stage, figure) in long.items()}
    baseline = {"densecl": "r-50-moco-v2-linear", BOTH: f"r-50-{VIEWS}-linear", "both-300": "r-50-views-300-linear"}
    return tuple(
        StudyRun(
            f"r-50-{name}-linear", ProbeTask(network, "linear"), IMAGENET, paper=figure, baseline=baseline.get(name, "")
        )
        for name, (network, figure) in networks.items()
    )


def _short(backbone: str) -> str:
    """swin-t-w14, deit-small."""
    short = {name: key for key, name in recipe.SWIN.items()}
    return short.get(backbone, backbone.removesuffix("_patch16_224").replace("_", "-"))


def _layouts() -> tuple[StudyRun, ...]:
    twice = "Table 6 has heads of 3, 3, 6, 12, against its own width of 32"
    return tuple(
        StudyRun(_short(name), ParametersTask(name), paper=count, note=twice if name == "vil_tiny_paper" else "")
        for name, count in TABLE_6.items()
    )


def _paces() -> tuple[StudyRun, ...]:
    return tuple(StudyRun(_short(name), ThroughputTask(name), paper=pace) for name, pace in TABLE_8.items())


def _costs() -> tuple[StudyRun, ...]:
    """The paper's batches, and one that a GPU of today is busy with."""

    def rows() -> Iterator[StudyRun]:
        networks = dict.fromkeys(backbone for backbone, _ in TABLE_9)
        for backbone, batch in (*TABLE_9, *((backbone, 128) for backbone in networks)):
            published = TABLE_9.get((backbone, batch))
            for figure in get_args(Cost):
                paper = round(published.ratio[figure], 4) if published else None
                yield StudyRun(
                    f"{_short(backbone)}-batch{batch}-{figure}", RegionCostTask(backbone, batch, figure), paper=paper
                )

    return tuple(rows())


def _counts() -> tuple[StudyRun, ...]:
    """Food-101's 102 and FER2013's 8 classes are misprints; some data sets are published in other numbers now."""
    printed = {"food101": 102, "fer2013": 8}

    def rows() -> Iterator[StudyRun]:
        for data in TABLE_11:
            classes, (train, test) = ENTRIES[data].classes, TABLE_10[data]
            note = f"the paper: {printed.get(data, classes)} classes"
            yield StudyRun(f"{data}-train", CountTask("train", classes), data, paper=train, note=note)
            yield StudyRun(f"{data}-test", CountTask("test", classes), data, paper=test, note=note)

    return tuple(rows())


def _eighteen() -> tuple[StudyRun, ...]:
    network, swin = _network(recipe.table_1("swin-t")), FixedNetwork(recipe.SWIN["swin-t"])

    def rows() -> Iterator[StudyRun]:
        for data, (supervised, esvit) in TABLE_11.items():
            metric, base = ENTRIES[data].metric_in(SUITE), f"swin-t-supervised-{data}"
            yield StudyRun(base, ProbeTask(swin, "logistic", metric), data, weights=swin.backbone, paper=supervised)
            task = ProbeTask(network, "logistic", metric)
            yield StudyRun(f"swin-t-{BOTH}-{data}", task, data, paper=esvit, baseline=base, pretrain_data=IMAGENET)

    return tuple(rows())


def _epochs() -> tuple[StudyRun, ...]:
    """What `--views-budget` gives for as many views as 300 epochs of ImageNet-1K have, beside what the paper took."""
    printed = {IMAGENET: 300, "openimages": 50, "imagenet22k": 30}
    return tuple(StudyRun(data, ViewsBudgetTask(TABLE_3[data][0]), paper=epochs) for data, epochs in printed.items())


def _choices() -> tuple[StudyRun, ...]:
    """k-NN. Of optimal transport the paper has no figure: ahead early, level at the end."""

    def with_(**changes: Any) -> PretrainConfig:
        stage = recipe.table_1("swin-t")
        return _network(replace(stage, objective=replace(stage.objective, **changes)))

    unsaid = "the network is not said in the paper"
    base, byol = f"swin-t-{VIEWS}", "byol"
    return (
        _by_neighbours(base, _network(recipe.table_1("swin-t", regions=False)), 74.2),
        _by_neighbours(f"swin-t-{BOTH}", with_(), 75.7, base),
        _by_neighbours("swin-t-mse", with_(region_loss="mse"), 72.6, base),
        _by_neighbours("swin-t-sinkhorn", with_(match="sinkhorn"), None, base),
        _by_neighbours(byol, _network(recipe.byol(), "byol"), 33.1, note=unsaid),
        _by_neighbours("byol-softmax", _network(recipe.byol("softmax"), "byol"), 37.2, byol, unsaid),
        _by_neighbours("byol-mse", _network(recipe.byol("mse"), "byol"), 34.9, byol, unsaid),
    )


def _by_neighbours(name: str, network: Network, paper: float | None, baseline: str = "", note: str = "") -> StudyRun:
    (run,) = make_probe_runs(name, network, IMAGENET, {"knn": paper}, baseline, note=note)
    return run


def _fast() -> tuple[StudyRun, ...]:
    return tuple(
        StudyRun(
            f"{net}-linear", TimedProbeTask(ProbeTask(_network(recipe.table_1(net)), "linear")), IMAGENET, paper=both[0]
        )
        for net, (_, both) in TABLE_1.items()
    )


def _suite_of_small() -> tuple[StudyRun, ...]:
    """Of the figure only this can be read: ahead on 17 of 18."""
    suite, swin = tuple(TABLE_11), FixedNetwork(recipe.SWIN["swin-s"])
    base, network = "swin-s-supervised", _network(recipe.table_1("swin-s"))
    return (
        StudyRun(base, SuiteMeanTask(swin), weights=swin.backbone, others=suite),
        StudyRun(f"swin-s-{BOTH}", SuiteMeanTask(network), baseline=base, pretrain_data=IMAGENET, others=suite),
    )


def _curves() -> tuple[StudyRun, ...]:
    """Swin-T with both losses from the start, Swin-B with the region loss from epoch 200 on."""

    def rows() -> Iterator[StudyRun]:
        for net in ("swin-t", "swin-b"):
            (_, views), (_, both) = TABLE_1[net]
            base = f"{net}-{VIEWS}"
            yield _by_neighbours(base, _network(recipe.table_1(net, regions=False)), views)
            yield _by_neighbours(f"{net}-{BOTH}", _network(recipe.table_1(net)), both, base)

    return tuple(rows())


def _correspondence() -> tuple[StudyRun, ...]:
    """The distances of Swin are in the figure alone, where they cannot be read."""
    dino = "the paper: DINO, perhaps its released network of 800 epochs"
    networks: dict[str, tuple[PretrainConfig, float, float | None]] = {
        f"deit-s-{VIEWS}": (_network(recipe.table_4("deit", regions=False)), 95.0, 2.49),
        f"swin-t-{VIEWS}": (_network(recipe.table_1("swin-t", regions=False)), 66.0, None),
        f"swin-t-{BOTH}": (_network(recipe.table_1("swin-t")), 91.0, None),
    }

    def rows() -> Iterator[StudyRun]:
        for name, (network, accuracy, distance) in networks.items():
            baseline = f"swin-t-{VIEWS}" if name == f"swin-t-{BOTH}" else ""
            papers: dict[Figure, float | None] = {"correspondence": accuracy, "distance": distance}
            note = dino if name.startswith("deit") else ""
            yield from make_probe_runs(name, network, IMAGENET, papers, baseline, note=note)

    return tuple(rows())
