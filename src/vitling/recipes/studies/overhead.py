"""What an auxiliary term costs: a compiled training step without it and with it, by turns in one process.

The step is the loop's own, on ready views: networks, losses, backward pass, clipping and the optimiser.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from vitling.errors import StoppedItself, UserError
from vitling.files import read_json, write_json
from vitling.objectives.config import Variant
from vitling.recipes.studies.study import Start

if TYPE_CHECKING:
    import torch

    from vitling.views.config import Plan

ROUNDS, STEPS = 7, 20


@dataclass(frozen=True)
class Overhead:
    """In percent of the step without it."""

    backbone: str
    batch: int
    size: int = 224
    variant: Variant = "l1"

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def __call__(self, start: Start) -> dict[str, Any]:
        from vitling.training.processes import choose_device

        result = start.out / "result.json"
        if not result.exists():
            if choose_device("auto").type == "cpu" and self.size >= 96:
                raise UserError(f"The cost of DRLoc with {self.backbone} is measured on a GPU, and there is none.")
            began = time.monotonic()
            row = measure(self.backbone, self.batch, self.size, [self.variant], choose_device("auto"))
            write_json(result, row | {"took": round(time.monotonic() - began, 2)})
        row = read_json(result)
        figures = {f"step_{name}": seconds for name, seconds in row["seconds"].items()}
        figures |= {f"peak_gb_{name}": memory for name, memory in row["peak_gb"].items()}
        return {"value": round(100 * row["overhead"][self.variant], 2), "seconds": row["took"], **figures}


def measure(backbone: str, batch: int, size: int, variants: Sequence[Variant], device: torch.device) -> dict[str, Any]:
    """What each variant of DRLoc adds to supervised training."""
    from vitling.objectives import Supervised
    from vitling.views.policies import named

    objectives = {"without": Supervised} | {variant: _with_drloc(variant) for variant in variants}
    return compare(backbone, batch, size, named("supervised", size), objectives, device)


def compare(
    backbone: str, batch: int, size: int, plan: Plan, objectives: dict[str, Any], device: torch.device
) -> dict[str, Any]:
    """Median seconds of a step and the share that each objective adds to the one named `without`; the first round warms
    up. An objective is made of (backbone, plan, number of images)."""
    from vitling.training.pace import ReadyViews, Workload, made_store, pace, trainer_of

    store = made_store(8 * batch, size, device)

    def trainer(objective: Any) -> Any:
        compile: Any = "on" if device.type == "cuda" else "off"
        return trainer_of(ReadyViews, Workload(backbone, plan, batch, objective), store, compile)

    def short(objective: Any) -> None:
        pace(trainer(objective), 5, batch)

    memory = {name: _peak(partial(short, objective), device) for name, objective in objectives.items()}
    trainers = {name: trainer(objective) for name, objective in objectives.items()}
    rounds = [{name: batch / pace(trainer, STEPS, batch) for name, trainer in trainers.items()} for _ in range(ROUNDS)]
    if len({trainer.feed.accumulate for trainer in trainers.values()}) > 1:
        raise StoppedItself(f"Out of memory with a batch of {batch}: the steps are no longer alike.")
    seconds = {name: statistics.median(times[name] for times in rounds[1:]) for name in trainers}
    overhead = {name: seconds[name] / seconds["without"] - 1 for name in seconds if name != "without"}
    about = {"backbone": backbone, "batch": batch, "size": size}
    pace_of = {name: batch / value for name, value in seconds.items()}
    figures = {"seconds": seconds, "images_per_second": pace_of, "overhead": overhead, "peak_gb": memory}
    return about | figures | {"rounds": rounds}


def _peak(work: Callable[[], None], device: torch.device) -> float:
    """GB of the GPU's memory that some work takes, what was there before included; 0 on CPUs."""
    import torch

    if device.type != "cuda":
        return 0.0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    return torch.cuda.max_memory_allocated() / 1e9


def _with_drloc(variant: Variant) -> Any:
    from vitling.objectives import DRLocConfig, Supervised, drloc_term, drloc_weight

    def make(backbone: Any, plan: Any, classes: int) -> Supervised:
        objective = Supervised(backbone, plan, classes)
        objective.attach("drloc", drloc_term(backbone, DRLocConfig(variant)), drloc_weight(backbone.name))
        return objective

    return make
