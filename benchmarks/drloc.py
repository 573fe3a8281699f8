"""What DRLoc costs: a compiled training step without it and with it, by turns in one process.

    python benchmarks/drloc.py --out results/drloc-overhead-h200.json

The step is the loop's own, on ready views: networks, losses, backward pass, clipping and the optimiser.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from throughput import ReadyViews, Workload, made_store, pace, trainer_of

from vitling.objectives import DRLocConfig, Supervised, drloc_term, drloc_weight
from vitling.training.rundir import environment
from vitling.views.policies import named

ROUNDS, STEPS = 7, 40


def with_drloc(variant: str) -> Any:
    def make(backbone, plan, classes) -> Supervised:
        objective = Supervised(backbone, plan, classes)
        objective.attach("drloc", drloc_term(backbone, DRLocConfig(variant)), drloc_weight(backbone.name))
        return objective

    return make


def measure(backbone: str, batch: int, size: int, variants: list[str], device: torch.device) -> dict[str, Any]:
    store = made_store(8 * batch, size, device)
    objectives = {"without": Supervised} | {variant: with_drloc(variant) for variant in variants}
    plan, compiled = named("supervised", size), device.type == "cuda"
    trainers = {
        name: trainer_of(ReadyViews, Workload(backbone, plan, batch, objective), store, compiled)
        for name, objective in objectives.items()
    }
    rounds = [{name: batch / pace(trainer, STEPS, batch) for name, trainer in trainers.items()} for _ in range(ROUNDS)]
    seconds = {name: statistics.median(times[name] for times in rounds[1:]) for name in trainers}
    overhead = {name: seconds[name] / seconds["without"] - 1 for name in variants}
    return {
        "backbone": backbone,
        "batch": batch,
        "size": size,
        "seconds": seconds,
        "overhead": overhead,
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", nargs="+", default=["swin_tiny_patch4_window7_224"])
    parser.add_argument("--variants", nargs="+", default=["l1"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args()
    rows = []
    for backbone in options.backbones:
        rows.append(measure(backbone, options.batch, options.size, options.variants, torch.device(options.device)))
        print({name: f"{share:+.2%}" for name, share in rows[-1]["overhead"].items()}, backbone, flush=True)
    if options.out:
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        Path(options.out).write_text(json.dumps({"environment": environment(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
