"""What DRLoc costs: a compiled training step without it and with it, by turns in one process.

    python benchmarks/drloc.py --out results/drloc-overhead-h200.json

The step is the loop's own, on ready views: networks, losses, backward pass, clipping and the optimiser.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from throughput import ReadyViews, pace, trainer_of
from workloads import Workload, made_store

from vitling.objectives import DRLocConfig, Supervised, drloc_term, drloc_weight
from vitling.training.rundir import environment
from vitling.views.policies import named

ROUNDS, STEPS = 7, 20


def with_drloc(variant: str) -> Any:
    def make(backbone, plan, classes) -> Supervised:
        objective = Supervised(backbone, plan, classes)
        objective.attach("drloc", drloc_term(backbone, DRLocConfig(variant)), drloc_weight(backbone.name))
        return objective

    return make


def peak_memory(make: Any, batch: int, device: torch.device) -> float:
    """In GB, of a trainer that is alone with the store."""
    if device.type != "cuda":
        return 0.0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    pace(make(), 5, batch)
    return torch.cuda.max_memory_allocated() / 1e9


def measure(backbone: str, batch: int, size: int, variants: list[str], device: torch.device) -> dict[str, Any]:
    store = made_store(8 * batch, size, device)
    objectives = {"without": Supervised} | {variant: with_drloc(variant) for variant in variants}
    plan, compiled = named("supervised", size), device.type == "cuda"

    def trainer(objective: Any) -> Any:
        return trainer_of(ReadyViews, Workload(backbone, plan, batch, objective), store, compiled)

    memory = {name: peak_memory(lambda o=o: trainer(o), batch, device) for name, o in objectives.items()}
    trainers = {name: trainer(objective) for name, objective in objectives.items()}
    rounds = [{name: batch / pace(trainer, STEPS, batch) for name, trainer in trainers.items()} for _ in range(ROUNDS)]
    seconds = {name: statistics.median(times[name] for times in rounds[1:]) for name in trainers}
    overhead = {name: seconds[name] / seconds["without"] - 1 for name in variants}
    return {
        "backbone": backbone,
        "batch": batch,
        "size": size,
        "seconds": seconds,
        "images_per_second": {name: batch / value for name, value in seconds.items()},
        "overhead": overhead,
        "peak_gb": memory,
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", nargs="+", default=["swin_tiny_patch4_window7_224", "cvt_13", "t2t_vit_14"])
    parser.add_argument("--variants", nargs="+", default=["l1"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args()
    rows = []
    for backbone in options.backbones:
        rows.append(measure(backbone, options.batch, options.size, options.variants, torch.device(options.device)))
        row = rows[-1]
        print(backbone, {name: f"{share:+.2%}" for name, share in row["overhead"].items()}, row["peak_gb"], flush=True)
        if options.out:
            command = "python benchmarks/drloc.py " + " ".join(sys.argv[1:])
            Path(options.out).parent.mkdir(parents=True, exist_ok=True)
            found = {"command": command, "environment": environment(), "rows": rows}
            Path(options.out).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
