"""The cost of EsViT's region loss (Table 9) and the throughput of its networks (Table 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from vitling.errors import UserError
from vitling.files import read_json, write_json
from vitling.methods.dino.settings import dino_plan
from vitling.methods.esvit.settings import EsViTConfig
from vitling.papers.esvit_recipes import OTHERS, SWIN
from vitling.papers.ledger import digest
from vitling.papers.overhead import compare, flatten_figures, measure_once, reset_compiler
from vitling.papers.study import FieldsTask, RunContext

if TYPE_CHECKING:
    import torch

    from vitling.training.precision import Compile

Figure = Literal["time", "memory"]
Further = Literal["sinkhorn", "sampled", "place"]


@dataclass(frozen=True)
class Published:
    """An iteration in Table 9: MB and seconds with the view loss alone, and with both losses."""

    view: tuple[int, float]
    both: tuple[int, float]

    @property
    def ratio(self) -> dict[Figure, float]:
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
class RegionCostTask(FieldsTask):
    """Measure time or memory of a step with both losses, relative to the view loss alone.

    Both figures come from one measurement, which is kept among the stages; the first run makes it.
    """

    backbone: str
    batch: int
    figure: Figure
    size: int = 224
    prototypes: int = 65_536

    def __call__(self, context: RunContext) -> dict[str, Any]:
        answer = context.out / "result.json"
        if not answer.exists():
            write_json(answer, self._answer(context))
        return read_json(answer)

    def _answer(self, context: RunContext) -> dict[str, Any]:
        key = {name: value for name, value in self.settings.items() if name != "figure"} | {"seed": context.seed}
        folder = context.stages / f"region-cost-{self.backbone}-batch{self.batch}-seed{context.seed}-{digest(key)}"
        measurement = partial(measure, self.backbone, self.batch, self.size, self.prototypes)
        row = measure_once(folder, f"The cost of EsViT's region loss with {self.backbone}", self.size, measurement)
        write_json(context.out / "environment.json", read_json(folder / "environment.json"))
        if self.figure == "memory" and not row["memory_ratio"]:
            raise UserError("The memory of EsViT's region loss can only be measured on a GPU, and none is available.")
        return {"value": round(row[f"{self.figure}_ratio"]["both"], 4), **flatten_figures(row)}


@dataclass(frozen=True)
class ThroughputTask(FieldsTask):
    """Measure images per second of a network without gradients."""

    backbone: str
    batch: int = 128
    size: int = 224

    def __call__(self, context: RunContext) -> dict[str, Any]:
        measurement = partial(measure_throughput, self.backbone, self.batch, self.size)
        row = measure_once(context.out, f"The throughput of {self.backbone}", self.size, measurement)
        return {"value": round(row["images_per_second"]), "seconds": row["took"]}


def measure(
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
    new = partial(EsViTConfig, prototypes=prototypes, match="argmax")
    configs = {"view": new(view_weight=1.0, region_weight=0.0), "both": new()}
    every = {"sinkhorn": new(match="sinkhorn"), "sampled": new(region_stride=2), "place": new(match="place")}
    configs |= {name: every[name] for name in further}
    objectives = {name: _make_esvit(config) for name, config in configs.items()}
    found = compare(backbone, batch, size, dino_plan(every["place"], size), objectives, device, compile, by_turns=False)
    row = {name: found[name] for name in ("backbone", "batch", "size", "seconds", "peak_gb", "rounds")}
    row |= {"prototypes": prototypes, "time_ratio": _divide_by_first(row["seconds"])}
    return row | {"memory_ratio": _divide_by_first(row["peak_gb"])}


def _divide_by_first(figures: dict[str, float]) -> dict[str, float]:
    """Divide by the first figure; empty if it is 0, as the peak memory of CPUs is."""
    first, *others = figures
    return {name: figures[name] / figures[first] for name in others if figures[first]}


def _make_esvit(config: EsViTConfig) -> Any:
    from vitling.methods.esvit.loss import EsViT

    return lambda backbone, plan, images: EsViT(backbone, plan, config)


def measure_throughput(
    backbone: str, batch: int, size: int, device: torch.device, compile: Compile = "on"
) -> dict[str, Any]:
    from vitling.papers.measure import measure_inference

    try:
        pace = measure_inference(backbone, batch, size, device, compile)
    finally:
        reset_compiler()
    return {"backbone": backbone, "batch": batch, "size": size, "images_per_second": pace}
