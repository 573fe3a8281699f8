"""Tables of the DRLoc paper and its supplement, and two questions that they raise.

The paper's figures are those of one seed at its best test epoch, as the released code reports them; ours are of the
last epoch. COCO and ADE20K (Tables 5 and 6, supplement Tables 10 to 13) are in dense.py. Tables on large data are
repeated on smaller data, without a figure to compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from vitling.papers.costs import OverheadTask
from vitling.papers.drloc_recipes import Preset, finetune, scratch
from vitling.papers.study import Study, StudyRun
from vitling.papers.train_task import TrainTask
from vitling.settings.names import replace_leaf

NETWORKS = {
    "cvt-13": "cvt_13",
    "swin-t": "swin_tiny_patch4_window7_224",
    "t2t-vit-14": "t2t_vit_14",
    "resnet-50": "resnet50.torchvision",
    "vit-b16": "vit_base_patch16_224.drloc",
    "swin-t.no_bias": "swin_tiny_patch4_window7_224.no_bias",
    "swin-t.absolute": "swin_tiny_patch4_window7_224.absolute",
}
Variants = dict[str, dict[str, Any]]  # settings of the loss by name
NETS = ("cvt-13", "swin-t", "t2t-vit-14")  # of most tables
COLUMNS = (
    *("cifar10", "cifar100", "flowers102", "svhn"),
    *(f"domainnet-{domain}" for domain in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")),
)
SMALL = ("cifar100", "cifar100-10k", "flowers102")  # the paper uses the first
ELSEWHERE = "other data than the paper's"
GPUS = 8  # of 128 images each in the released code


def studies() -> tuple[Study, ...]:
    """List the studies of the DRLoc paper."""
    paper, supplement, new = "DRLoc,", "DRLoc, supplement,", Study.from_runs
    cost = "time that DRLoc adds to a training step, %"
    return (
        new("drloc-t1b", "variants of the loss", f"{paper} Table 1 (b)", _variants(), also=("drloc-supp-t6",)),
        new("drloc-t2a", "pairs of tokens per image (m)", f"{paper} Table 2 (a)", _pair_counts()),
        new("drloc-t2b", "100 and 300 epochs", f"{paper} Table 2 (b)", _epochs()),
        new("drloc-t3", "from scratch", f"{paper} Table 3", _from_scratch("paper")),
        new(
            "drloc-t3-released",
            "from scratch, with the released settings",
            f"{paper} Table 3",
            _from_scratch("released"),
        ),
        new("drloc-t3-causes", "possible causes of the gap to Table 3", f"{paper} Table 3", _causes()),
        new("drloc-t4", "fine-tuning from ImageNet-1K", f"{paper} Table 4", _fine_tuning()),
        new("drloc-t7", "the exhaustive variant beside pairs", f"{paper} Table 7", _pair_counts(exhaustive=True)),
        new("drloc-supp-t7", "ImageNet-1K, 300 epochs", f"{supplement} Table 7", _imagenet()),
        new("drloc-supp-t8", "300 epochs, with ResNet-50", f"{supplement} Table 8", _long()),
        new("drloc-supp-t9", "ViT-B/16", f"{supplement} Table 9", _vit("paper")),
        new(
            "drloc-supp-t9-released", "ViT-B/16, with the released settings", f"{supplement} Table 9", _vit("released")
        ),
        new("drloc-supp-t14", "what DRLoc costs", f"{supplement} Table 14", _overhead(), cost),
        new("drloc-supp-t16", "width of the MLP", f"{supplement} Table 16", _widths()),
        new("drloc-supp-f3", "training curves, epochs to the baseline's last", f"{supplement} Figure 3", _curves()),
        new("drloc-grid", "is a finer grid, 14 x 14, harder?", f"{paper} Sec. 4.1", _grids()),
        new("drloc-positions", "Swin's bias: on, off, absolute instead", f"{supplement} Sec. 2.2", _positions()),
    )


# --- building blocks ------------------------------------------------------------------------------------------------


def _make_group(net: str, data: str, variants: Variants, label: str = "", **recipe: Any) -> Iterator[StudyRun]:
    """Yield a baseline without DRLoc and one run for each variant of the loss."""
    base, config = f"{net}-{data}{label}", scratch(NETWORKS[net], **recipe)
    yield StudyRun(base, TrainTask(scratch(NETWORKS[net], aux=False, **recipe)), data)
    for name, loss in variants.items():
        task = TrainTask(replace(config, drloc=replace(config.drloc, **loss)))
        yield StudyRun(f"{base}-{name}", task, data, baseline=base)


def _make_pairs(nets: Iterable[str], data: str, label: str = "", **recipe: Any) -> Iterator[StudyRun]:
    """Yield a run without and one with DRLoc for each network."""
    for net in nets:
        yield from _make_group(net, data, {"drloc": {}}, label, **recipe)


def _repeat_table(datasets: Iterable[str], table: Callable[[str], Iterable[StudyRun]]) -> Iterator[StudyRun]:
    """Yield a table on the paper's dataset, the first, and on others, for which it has no figures."""
    paper, *others = datasets
    yield from table(paper)
    for other in others:
        yield from _annotate(table(other), ELSEWHERE)


def _change_settings(runs: Iterable[StudyRun], changes: dict[str, Any]) -> Iterator[StudyRun]:
    """Change settings of training runs, by their dotted names."""
    for run in runs:
        assert isinstance(run.task, TrainTask)
        config = run.task.config
        for name, value in changes.items():
            config = replace_leaf(config, name, value)
        yield replace(run, task=replace(run.task, config=config))


def _annotate(runs: Iterable[StudyRun], note: str) -> Iterator[StudyRun]:
    return (replace(run, note=note) for run in runs)


# --- tables ---------------------------------------------------------------------------------------------------------


def _variants() -> Iterator[StudyRun]:
    variants: Variants = {name: {"variant": name} for name in ("l1", "signed", "ce", "reg", "all")}
    return _repeat_table(("imagenet100", *SMALL[1:]), lambda data: _make_group("swin-t", data, variants))


def _pair_counts(exhaustive: bool = False) -> Iterator[StudyRun]:
    variants: Variants = {f"m{pairs}": {"pairs": pairs} for pairs in (32, 64, 128, 256)}
    if exhaustive:
        variants["exhaustive"] = {"variant": "exhaustive"}
    return _repeat_table(SMALL, lambda data: _make_group("swin-t", data, variants))


def _epochs() -> Iterator[StudyRun]:
    def table(data: str) -> Iterator[StudyRun]:
        for net in NETS:
            for epochs in (100, 300):
                yield from _make_pairs([net], data, f"-{epochs}", epochs=epochs)

    return _repeat_table(("imagenet100", "flowers102"), table)


def _from_scratch(preset: Preset) -> Iterator[StudyRun]:
    for net in NETS:
        for data in COLUMNS:
            yield from _make_pairs([net], data, preset=preset)
    yield from _annotate(_make_pairs(NETS, "cifar100-10k", preset=preset), ELSEWHERE)


def _causes() -> Iterator[StudyRun]:
    """Vary what may explain the gap to Table 3.

    The released target, with which the loss is 7 times as large. Five times the published weight (for CvT and T2T-ViT
    this is Swin's). Eight times as many steps, since the paper does not give the number of GPUs that had 128 images
    each (its authors' run of 2025 used one). Mixing drawn by each of eight GPUs, and CvT's batch norm over the 128
    images of one, alone and with all other settings of the released code (`gpus`). For T2T-ViT, which stays furthest
    below the table, two settings of the released code.
    """
    data = "flowers102"
    raw: Variants = {"drloc": {}, "raw": {"target": "offset"}}
    for net in NETS:
        weight = 2.5 if net == "swin-t" else 0.5
        _, _, *others = _make_group(net, data, raw | {f"weight{weight}": {"weight": weight}})  # drloc-t3 has two
        yield from (replace(run, baseline="") for run in others)
        yield from _make_group(net, data, raw, "-batch128", batch=128)
        yield from _annotate(_make_group(net, "cifar100-10k", raw, "-batch128", batch=128), ELSEWHERE)
        yield from _change_settings(_make_pairs([net], data, "-parts8"), {"views.mix_parts": GPUS})
    group = {"loop.batch_norm_group": 128}
    yield from _change_settings(_make_pairs(["cvt-13"], data, "-group128"), group)
    for net in NETS:
        changes = {"views.mix_parts": GPUS, **(group if net == "cvt-13" else {})}
        yield from _change_settings(_make_pairs([net], data, "-gpus", preset="released"), changes)
    config = scratch(NETWORKS["t2t-vit-14"], aux=False)
    alone = {
        "no-drop-path": replace(config, objective=replace(config.objective, drop_path=0.0)),
        "fp32": replace(config, loop=replace(config.loop, precision="fp32")),
    }
    yield from (StudyRun(f"t2t-vit-14-{data}-{name}", TrainTask(new), data) for name, new in alone.items())
    _, aux = _change_settings(_make_pairs(["t2t-vit-14"], data, "-no-drop-path"), {"objective.drop_path": 0.0})
    yield aux


def _fine_tuning() -> Iterator[StudyRun]:
    for net in ("swin-t", "t2t-vit-14"):
        for data in COLUMNS:
            base, backbone = f"{net}-{data}", NETWORKS[net]
            yield StudyRun(base, TrainTask(finetune(backbone, backbone, aux=False)), data, backbone)
            task = TrainTask(finetune(backbone, backbone))
            yield StudyRun(f"{base}-drloc", task, data, backbone, baseline=base)


def _imagenet() -> Iterator[StudyRun]:
    yield from _make_pairs(["swin-t"], "imagenet1k", epochs=300)
    note = "the paper trains T2T-ViT by its authors' recipe; here it is Swin's, as in the other tables"
    yield from _annotate(_make_pairs(["t2t-vit-14"], "imagenet1k", epochs=300), note)


def _long() -> Iterator[StudyRun]:
    nets = (*NETS, "resnet-50")
    return _repeat_table(("domainnet-infograph", "flowers102"), lambda data: _make_pairs(nets, data, epochs=300))


def _vit(preset: Preset) -> Iterator[StudyRun]:
    for data in ("cifar10", "cifar100", "domainnet-infograph"):
        yield from _make_pairs(["vit-b16"], data, preset=preset)
    yield from _annotate(_make_pairs(["vit-b16"], "flowers102", preset=preset), ELSEWHERE)


def _overhead() -> Iterator[StudyRun]:
    note = "batches of 256 ready views; the paper: whole batches of 1,024 on 8 V100"
    return (StudyRun(net, OverheadTask(NETWORKS[net], 256), note=note) for net in NETS)


def _widths() -> Iterator[StudyRun]:
    widths: Variants = {f"mlp{width}": {"hidden": width} for width in (256, 512, 1024)}

    def table(data: str) -> Iterator[StudyRun]:
        for net in NETS:
            _, *runs = _make_group(net, data, widths)  # the table has no baseline
            yield from (replace(run, baseline="") for run in runs)

    return _repeat_table(SMALL, table)


def _curves() -> Iterator[StudyRun]:
    reached = {"swin-t-cifar100-drloc": "the paper: 55.01 after 60 epochs, above the baseline's last"}

    def table(data: str) -> Iterator[StudyRun]:
        for run in _make_pairs(NETS, data):
            assert isinstance(run.task, TrainTask)
            yield replace(run, task=replace(run.task, watch=10), note=reached.get(run.name, ""))

    return _repeat_table(SMALL, table)


def _grids() -> Iterator[StudyRun]:
    for data in SMALL:
        for net in ("t2t-vit-14", "cvt-13"):
            yield from _make_group(net, data, {"drloc": {}, "grid14": {"grid": 14}})


def _positions() -> Iterator[StudyRun]:
    for data in SMALL:
        yield from _make_pairs(("swin-t", "swin-t.no_bias", "swin-t.absolute"), data)
