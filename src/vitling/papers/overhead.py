"""The cost of a term of the loss: compiled training steps without it and with it, in one process.

A step is the loop's own on ready views: networks, losses, backward pass, clipping and the optimiser.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitling.errors import RunAborted, UserError
from vitling.files import read_json, write_json
from vitling.methods.drloc.settings import Variant
from vitling.papers.study import FieldsTask, RunContext
from vitling.papers.train_task import free_memory

if TYPE_CHECKING:
    import torch

    from vitling.training.precision import Compile
    from vitling.views.plan import Plan

Measurement = Callable[["torch.device"], dict[str, Any]]
ROUNDS, STEPS = 7, 20
SECONDS = 2.0  # approximate length of a round; slow networks take fewer steps


@dataclass(frozen=True)
class OverheadTask(FieldsTask):
    """Measure what DRLoc adds to a training step, in percent."""

    backbone: str
    batch: int
    size: int = 224
    variant: Variant = "l1"

    def __call__(self, context: RunContext) -> dict[str, Any]:
        measurement = partial(measure, self.backbone, self.batch, self.size, [self.variant])
        row = measure_once(context.out, f"The cost of DRLoc with {self.backbone}", self.size, measurement)
        return {"value": round(100 * row["overhead"][self.variant], 2), **flatten_figures(row)}


def measure_once(folder: Path, what: str, size: int, measurement: Measurement) -> dict[str, Any]:
    """Measure once and keep the row in `folder`. CPUs serve for small trials only."""
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
    return read_json(result)


def flatten_figures(row: dict[str, Any]) -> dict[str, Any]:
    """Flatten a row of `compare` for a table of results."""
    figures = {f"step_{name}": seconds for name, seconds in row["seconds"].items()}
    figures |= {f"peak_gb_{name}": memory for name, memory in row["peak_gb"].items()}
    return {"seconds": row["took"], **figures}


def measure(backbone: str, batch: int, size: int, variants: Sequence[Variant], device: torch.device) -> dict[str, Any]:
    """Measure what each variant of DRLoc adds to supervised training."""
    from vitling.methods.supervised.loss import Supervised
    from vitling.views.policies import make_plan

    objectives = {"without": Supervised} | {variant: _add_drloc(variant) for variant in variants}
    return compare(backbone, batch, size, make_plan("supervised", size), objectives, device)


def compare(
    backbone: str,
    batch: int,
    size: int,
    plan: Plan,
    objectives: dict[str, Any],
    device: torch.device,
    compile: Compile = "on",
    by_turns: bool = True,
) -> dict[str, Any]:
    """Measure median seconds of a step, what each objective adds to the first, and the peak of GPU memory.

    An objective is made from (backbone, plan, number of images). Rounds take turns, and the first one warms up; with
    `by_turns=False` one objective follows the other, for GPUs that cannot hold them together.
    """
    from vitling.papers.measure import FixedViewsTrainer, Workload, make_store, make_trainer

    store, first = make_store(8 * batch, size, device), next(iter(objectives))

    def trainer(name: str) -> Any:
        work = Workload(backbone, plan, batch, objectives[name])
        return make_trainer(FixedViewsTrainer, work, store, compile if device.type == "cuda" else "off")

    try:
        rounds: list[dict[str, float]] = [{} for _ in range(ROUNDS)]
        ways: set[tuple[int, bool]] = set()
        for names in [list(objectives)] if by_turns else [[name] for name in objectives]:
            free_memory()
            found, how = _run_rounds(names, trainer, batch, ROUNDS)
            ways |= how
            for whole, part in zip(rounds, found):
                whole.update(part)
        memory = {name: _measure_peak(partial(_run_rounds, [name], trainer, batch, 1), device) for name in objectives}
    finally:
        reset_compiler()
    _check_comparable(ways, backbone, batch)
    seconds = {name: statistics.median(times[name] for times in rounds[1:]) for name in objectives}
    overhead = {name: seconds[name] / seconds[first] - 1 for name in seconds if name != first}
    about = {"backbone": backbone, "batch": batch, "size": size}
    speed = {name: batch / value for name, value in seconds.items()}
    figures = {"seconds": seconds, "images_per_second": speed, "overhead": overhead, "peak_gb": memory}
    return about | figures | {"rounds": rounds}


def _run_rounds(
    names: list[str], trainer: Callable[[str], Any], batch: int, rounds: int
) -> tuple[list[dict[str, float]], set[tuple[int, bool]]]:
    """Return seconds of a step round by round, and how steps ran: (passes, recorded as a graph)."""
    from vitling.papers.measure import time_steps

    trainers, steps = {name: trainer(name) for name in names}, 5
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        found.append({name: batch / time_steps(one, steps, batch) for name, one in trainers.items()})
        steps = max(3, min(STEPS, round(SECONDS / max(found[0].values()))))
    return found, {(one.feed.accumulate, bool(one.replay and one.replay.captures)) for one in trainers.values()}


def _check_comparable(ways: set[tuple[int, bool]], backbone: str, batch: int) -> None:
    if any(passes > 1 for passes, _ in ways):
        raise RunAborted(f"Out of memory: {backbone} cannot train {batch} images in one pass.")
    if len(ways) > 1:
        raise RunAborted(f"{backbone}, batch {batch}: only some steps could be recorded, so they cannot be compared.")


def reset_compiler() -> None:
    """Free the GPU's memory and the compiled graphs, of which a process keeps a limited number."""
    import torch

    torch._dynamo.reset()
    free_memory()


def _measure_peak(task: Callable[[], Any], device: torch.device) -> float:
    """Return the peak of GPU memory in GB, including what was allocated before; 0 on CPUs."""
    import torch

    if device.type != "cuda":
        return 0.0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    task()
    return torch.cuda.max_memory_allocated() / 1e9


def _add_drloc(variant: Variant) -> Any:
    from vitling.methods.drloc.loss import make_drloc_term
    from vitling.methods.drloc.settings import DRLocConfig, drloc_weight
    from vitling.methods.supervised.loss import Supervised

    def make(backbone: Any, plan: Any, classes: int) -> Supervised:
        objective = Supervised(backbone, plan, classes)
        objective.attach("drloc", make_drloc_term(backbone, DRLocConfig(variant)), drloc_weight(backbone.name))
        return objective

    return make
