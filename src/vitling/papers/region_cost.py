"""What EsViT's region loss costs (Table 9), and how many images a second its networks take (Table 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from vitling.errors import UserError
from vitling.files import read_json, write_json
from vitling.methods.dino import dino_plan
from vitling.methods.esvit import EsViTConfig
from vitling.papers.esvit_recipes import OTHERS, SWIN
from vitling.papers.ledger import digest
from vitling.papers.overhead import compare, flatten_figures, forget, measured
from vitling.papers.study import RunContext

if TYPE_CHECKING:
    import torch

    from vitling.training.precision import Compile

Figure = Literal["time", "memory"]
Further = Literal["sinkhorn", "sampled", "place"]


@dataclass(frozen=True)
class Published:
    """Of an iteration in Table 9: MB and seconds with the view loss alone, and with both."""

    view: tuple[int, float]
    both: tuple[int, float]

    @property
    def ratio(self) -> dict[Figure, float]:
        """Of the cells themselves. Three that are printed are not theirs: 1.0890 for Swin-T's memory with windows of 14
        (1.2974), 1.2323 for its time at a batch of 8 (1.1567), 1.5889 for its memory at one of 12 (1.5892)."""
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

TABLE_8 = {  # images a second, in the terms of DINO's Table 2; ResNet-50 and PvT are in Table 4
    OTHERS["deit"]: 1007,
    "deit_base_patch16_224": 312,
    SWIN["swin-t"]: 808,
    SWIN["swin-s"]: 467,
    SWIN["swin-b"]: 297,
    SWIN["swin-t-w14"]: 660,
    SWIN["swin-s-w14"]: 383,
    SWIN["swin-b-w14"]: 254,
    OTHERS["vil"]: 386,
    OTHERS["cvt"]: 848,
    OTHERS["pvt"]: 851,
    OTHERS["r-50"]: 1237,
}


@dataclass(frozen=True)
class RegionCostTask:
    """How many times the time or the memory of a step with the view loss one with both takes. The two figures are of
    one measurement, which lies among the stages: whichever run comes first makes it."""

    backbone: str
    batch: int
    figure: Figure
    size: int = 224
    prototypes: int = 65_536

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def __call__(self, context: RunContext) -> dict[str, Any]:
        answer = context.out / "result.json"
        if not answer.exists():
            write_json(answer, self._answer(context))
        return read_json(answer)

    def _answer(self, context: RunContext) -> dict[str, Any]:
        key = {name: value for name, value in self.settings.items() if name != "figure"} | {"seed": context.seed}
        folder = context.stages / f"region-cost-{self.backbone}-batch{self.batch}-seed{context.seed}-{digest(key)}"
        measuring = partial(measure, self.backbone, self.batch, self.size, self.prototypes)
        row = measured(folder, f"The cost of EsViT's region loss with {self.backbone}", self.size, measuring)
        write_json(context.out / "environment.json", read_json(folder / "environment.json"))
        if self.figure == "memory" and not row["memory_ratio"]:
            raise UserError("What EsViT's region loss takes of memory is measured on a GPU, and there is none.")
        return {"value": round(row[f"{self.figure}_ratio"]["both"], 4), **flatten_figures(row)}


@dataclass(frozen=True)
class ThroughputTask:
    """Images a second of which a network makes features."""

    backbone: str
    batch: int = 128
    size: int = 224

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def __call__(self, context: RunContext) -> dict[str, Any]:
        measuring = partial(measure_throughput, self.backbone, self.batch, self.size)
        row = measured(context.out, f"The throughput of {self.backbone}", self.size, measuring)
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
    """Steps with the view loss, with both, and on request with optimal transport for the match, with every second
    region down and across, and with regions matched by place. One after the other: a GPU cannot hold them together."""
    new = partial(EsViTConfig, prototypes=prototypes, match="argmax")
    configs = {"view": new(view_weight=1.0, region_weight=0.0), "both": new()}
    every = {"sinkhorn": new(match="sinkhorn"), "sampled": new(region_stride=2), "place": new(match="place")}
    configs |= {name: every[name] for name in further}
    objectives = {name: _with_regions(config) for name, config in configs.items()}
    found = compare(backbone, batch, size, dino_plan(every["place"], size), objectives, device, compile, by_turns=False)
    row = {name: found[name] for name in ("backbone", "batch", "size", "seconds", "peak_gb", "rounds")}
    row |= {"prototypes": prototypes, "time_ratio": _over_first(row["seconds"])}
    return row | {"memory_ratio": _over_first(row["peak_gb"])}


def _over_first(figures: dict[str, float]) -> dict[str, float]:
    """Nothing where nothing was measured: CPUs have no peak."""
    first, *others = figures
    return {name: figures[name] / figures[first] for name in others if figures[first]}


def _with_regions(config: EsViTConfig) -> Any:
    from vitling.methods.esvit.loss import EsViT

    return lambda backbone, plan, images: EsViT(backbone, plan, config)


def measure_throughput(
    backbone: str, batch: int, size: int, device: torch.device, compile: Compile = "on"
) -> dict[str, Any]:
    from vitling.papers.measure import measure_inference

    try:
        pace = measure_inference(backbone, batch, size, device, compile)
    finally:
        forget()
    return {"backbone": backbone, "batch": batch, "size": size, "images_per_second": pace}
