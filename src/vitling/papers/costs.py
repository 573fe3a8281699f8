"""The cost of a term of the loss in compiled training steps, and the throughput of networks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from vitling.errors import UserError
from vitling.files import write_json
from vitling.loading import read_record
from vitling.methods.dino.settings import dino_plan
from vitling.methods.drloc.settings import DRLocConfig, Variant, drloc_weight
from vitling.methods.esvit.settings import EsViTConfig
from vitling.papers.esvit_recipes import OTHERS, SWIN
from vitling.papers.ledger import digest
from vitling.papers.study import FieldsTask, RunContext
from vitling.records import Duration, Environment, Finite

if TYPE_CHECKING:
    import torch

    from vitling.training.compilation import Compile

Measurement = Callable[["torch.device"], dict[str, Any]]
Cost = Literal["time", "memory"]
Further = Literal["sinkhorn", "sampled", "place"]


class ThroughputResult(TypedDict):
    """result.json of a measured throughput."""

    images_per_second: Finite
    took: Duration


class CostResult(TypedDict):
    """result.json of a measured cost."""

    seconds: dict[str, float]
    peak_gb: dict[str, float]
    took: Duration
    time_ratio: NotRequired[dict[str, float] | None]
    memory_ratio: NotRequired[dict[str, float] | None]


@dataclass(frozen=True)
class Published:
    """An iteration in Table 9: MB and seconds with the view loss alone, and with both losses."""

    view: tuple[int, float]
    both: tuple[int, float]

    @property
    def ratio(self) -> dict[Cost, float]:
        """Ratios of the cells. Three printed ratios differ: 1.0890 for Swin-T's memory with windows of 14 (1.2974),
        1.2323 for its time at batch 8 (1.1567) and 1.5889 for its memory at batch 12 (1.5892)."""
        return {"time": self.both[1] / self.view[1], "memory": self.both[0] / self.view[0]}


TABLE_9 = {  # (a) and (b), by backbone and batch
    (OTHERS["deit"], 1): Published((1391, 0.209036), (2641, 0.233150)),
    (OTHERS["deit"], 8): Published((2735, 0.234993), (10358, 0.321155)),
    (OTHERS["deit"], 12): Published((3533, 0.238160), (14128, 0.352339)),
    (SWIN["swin-t"], 1): Published((1704, 0.285451), (2346, 0.301672)),
    (SWIN["swin-t"], 8): Published((4229, 0.323884), (6232, 0.374634)),
    (SWIN["swin-t"], 12): Published((5611, 0.366367), (8917, 0.421135)),
    (SWIN["swin-s"], 1): Published((2685, 0.501876), (3132, 0.535203)),
    (SWIN["swin-b"], 1): Published((3726, 0.516058), (4374, 0.550617)),
    (SWIN["swin-t-w14"], 1): Published((2159, 0.288118), (2801, 0.310108)),
    (SWIN["swin-s-w14"], 1): Published((3518, 0.496823), (4153, 0.521739)),
    (SWIN["swin-b-w14"], 1): Published((5032, 0.511701), (5681, 0.537826)),
}


@dataclass(frozen=True)
class OverheadTask(FieldsTask):
    """Measure what DRLoc adds to a training step, in percent."""

    backbone: str
    batch: int
    size: int = 224
    variant: Variant = "l1"

    def __call__(self, context: RunContext) -> dict[str, Any]:
        measurement = partial(measure_drloc, self.backbone, self.batch, self.size, [self.variant])
        row = _measure_once(context.out, f"The cost of DRLoc with {self.backbone}", self.size, measurement)
        return {"value": round(100 * row["overhead"][self.variant], 2), **_flatten_figures(row)}


@dataclass(frozen=True)
class RegionCostTask(FieldsTask):
    """Measure time or memory of a step with both losses, relative to the view loss alone.

    Both figures come from one measurement, which is kept among the stages; the first run makes it.
    """

    backbone: str
    batch: int
    figure: Cost
    size: int = 224
    prototypes: int = 65_536

    def __call__(self, context: RunContext) -> dict[str, Any]:
        key = {name: value for name, value in self.settings.items() if name != "figure"} | {"seed": context.seed}
        folder = context.stages / f"region-cost-{self.backbone}-batch{self.batch}-seed{context.seed}-{digest(key)}"
        measurement = partial(measure_regions, self.backbone, self.batch, self.size, self.prototypes)
        row = _measure_once(folder, f"The cost of EsViT's region loss with {self.backbone}", self.size, measurement)
        if self.figure == "memory" and not row["memory_ratio"]:
            raise UserError("The memory of EsViT's region loss can only be measured on a GPU, and none is available.")
        write_json(context.out / "environment.json", read_record(folder / "environment.json", Environment))
        return {"value": round(row[f"{self.figure}_ratio"]["both"], 4), **_flatten_figures(row)}


@dataclass(frozen=True)
class ThroughputTask(FieldsTask):
    """Measure images per second of a network without gradients."""

    backbone: str
    batch: int = 128
    size: int = 224

    def __call__(self, context: RunContext) -> dict[str, Any]:
        measurement = partial(measure_throughput, self.backbone, self.batch, self.size)
        row = _measure_once(context.out, f"The throughput of {self.backbone}", self.size, measurement, ThroughputResult)
        return {"value": round(row["images_per_second"]), "seconds": row["took"]}


def _measure_once(
    folder: Path, what: str, size: int, measurement: Measurement, kind: type = CostResult
) -> dict[str, Any]:
    """Measure once and keep the row in `folder`, a record of this kind. CPUs serve for small trials only."""
    from vitling.training.processes import choose_device
    from vitling.training.rundir import describe_environment

    result = folder / "result.json"
    if not result.exists():
        device = choose_device("auto")
        if device.type == "cpu" and size >= 96:
            raise UserError(f"{what} can only be measured on a GPU, and none is available.")
        began = time.monotonic()
        row = measurement(device)
        write_json(folder / "environment.json", describe_environment())
        write_json(result, row | {"took": round(time.monotonic() - began, 2)})
    return read_record(result, kind)


def _flatten_figures(row: dict[str, Any]) -> dict[str, Any]:
    """Flatten a comparison of steps for a table of results."""
    figures = {f"step_{name}": seconds for name, seconds in row["seconds"].items()}
    figures |= {f"peak_gb_{name}": memory for name, memory in row["peak_gb"].items()}
    return {"seconds": row["took"], **figures}


def measure_drloc(
    backbone: str, batch: int, size: int, variants: Sequence[Variant], device: torch.device
) -> dict[str, Any]:
    """Measure what each variant of DRLoc adds to supervised training."""
    from vitling.methods.drloc.loss import make_drloc_term
    from vitling.methods.supervised.loss import Supervised
    from vitling.papers.measure import compare_steps
    from vitling.views.policies import make_plan

    def add_drloc(variant: Variant, network: Any, plan: Any, classes: int) -> Supervised:
        objective = Supervised(network, plan, classes)
        objective.attach("drloc", make_drloc_term(network, DRLocConfig(variant)), drloc_weight(network.name))
        return objective

    objectives = {"without": Supervised} | {variant: partial(add_drloc, variant) for variant in variants}
    return compare_steps(backbone, batch, size, make_plan("supervised", size), objectives, device)


def measure_regions(
    backbone: str,
    batch: int,
    size: int,
    prototypes: int,
    device: torch.device,
    further: Sequence[Further] = (),
    compile: Compile = "on",
) -> dict[str, Any]:
    """Measure steps with the view loss and with both losses, one after the other: a GPU cannot hold them together.

    `further` adds optimal transport for the match, every second region down and across, or regions matched by place.
    """
    from vitling.methods.esvit.loss import EsViT
    from vitling.papers.measure import compare_steps

    def make_esvit(config: EsViTConfig, network: Any, plan: Any, images: int) -> EsViT:
        return EsViT(network, plan, config)

    new = partial(EsViTConfig, prototypes=prototypes, match="argmax")
    configs = {"view": new(view_weight=1.0, region_weight=0.0), "both": new()}
    every = {"sinkhorn": new(match="sinkhorn"), "sampled": new(region_stride=2), "place": new(match="place")}
    configs |= {name: every[name] for name in further}
    objectives = {name: partial(make_esvit, config) for name, config in configs.items()}
    plan = dino_plan(every["place"], size)
    found = compare_steps(backbone, batch, size, plan, objectives, device, compile, by_turns=False)
    row = {name: found[name] for name in ("backbone", "batch", "size", "seconds", "peak_gb", "rounds")}
    ratios = {"time_ratio": _divide_by_first(row["seconds"]), "memory_ratio": _divide_by_first(row["peak_gb"])}
    return row | {"prototypes": prototypes} | ratios


def _divide_by_first(figures: dict[str, float]) -> dict[str, float]:
    """Divide by the first figure; empty if it is 0, as the peak memory of CPUs is."""
    first, *others = figures
    return {name: figures[name] / figures[first] for name in others if figures[first]}


def measure_throughput(
    backbone: str, batch: int, size: int, device: torch.device, compile: Compile = "on"
) -> dict[str, Any]:
    from vitling.papers.measure import measure_inference

    pace = measure_inference(backbone, batch, size, device, compile)
    return {"backbone": backbone, "batch": batch, "size": size, "images_per_second": pace}
