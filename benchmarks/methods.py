"""Measure time and GPU memory of a training step of each pre-training method, relative to IDMM.

    python benchmarks/methods.py --out results/methods-h200.json

Each method has the networks, heads, views and optimiser of `vitling pretrain --method NAME --preset paper`, and all
have the same batch. `step` is the compiled step on fixed views, `whole` the loop that renders them. Rows are written as
they are measured and not repeated by later calls.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, get_args

import torch
from record import read_earlier, write_rows

from vitling.data.store import Store
from vitling.errors import RunAborted
from vitling.methods import METHODS, MethodName
from vitling.methods.method import TrainingData
from vitling.objectives import Objective
from vitling.papers.measure import (
    FixedViewsTrainer,
    Workload,
    make_store,
    make_trainer,
    reset_compiler,
    time_steps,
)
from vitling.training.compilation import Compile
from vitling.training.rundir import describe_environment
from vitling.training.trainer import Trainer
from vitling.views import Plan
from vitling.views.policies import idmm_pretrain

REFERENCE = "idmm"
BATCHES = 8  # per epoch; with the default batch, about as many images as in Flowers-102
STEPS = 30
KINDS: dict[str, type[Trainer]] = {"step": FixedViewsTrainer, "whole": Trainer}


def make_workload(name: MethodName, backbone: str, batch: int, size: int, store: Store) -> Workload:
    method, dataset = METHODS[name], store.dataset
    recipe = method.recipe(backbone, "paper", 800, size)
    recipe = method.adapt(recipe, len(store), batch) if method.adapt else recipe
    batch_sizes = [batch] * (len(store) // batch) if method.compares_images else []
    data = TrainingData(len(store), len(dataset.class_names), dataset.labels, False, 0, batch_sizes)

    def make(network: Any, plan: Plan, images: int) -> Objective:
        return method.build(network, plan, recipe.objective, data)

    return Workload(backbone, method.views(recipe.objective, size), batch, make, recipe.optim)


def measure(method: MethodName, options: argparse.Namespace, store: Store) -> dict[str, Any]:
    device = store.device
    work = make_workload(method, options.backbone, options.batch, options.size, store)
    row: dict[str, Any] = {"method": method, "backbone": work.backbone, "batch": work.batch, "size": options.size}
    row |= {"crops": work.plan.crops, "compile": options.compile, "steps": options.steps, "measure": options.measure}
    row["commit"] = describe_environment()["commit"]
    for name in options.measure:
        reset_compiler()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            store_bytes = torch.cuda.memory_allocated()
        began = time.perf_counter()
        trainer = make_trainer(KINDS[name], work, store, options.compile)
        time_steps(trainer, 2 * BATCHES, work.batch)  # two epochs: mixing may alternate, and each kind is compiled
        speed = time_steps(trainer, options.steps, work.batch)
        if trainer.feed.accumulate > 1:
            raise RunAborted(f"{method}: out of memory at {work.batch} images.")
        row |= {f"{name}_ms": 1000 * work.batch / speed, f"{name}_images_per_second": speed}
        row[f"{name}_seconds_before"] = time.perf_counter() - began - options.steps * work.batch / speed
        del trainer
    if device.type == "cuda":
        row["peak_gb"] = (torch.cuda.max_memory_allocated() - store_bytes) / 1e9
    return row


def add_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the ratio of each row's time and memory to IDMM's."""
    reference = next((row for row in rows if row["method"] == REFERENCE), None)
    if reference is None:
        return rows
    figures = {"step": "step_ms", "time": "whole_ms", "memory": "peak_gb"}
    return [
        row
        | {f"{name}_over_{REFERENCE}": row[key] / reference[key] for name, key in figures.items() if reference.get(key)}
        for row in rows
    ]


def parse_options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--backbone", default="deit_tiny_patch16_224")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--measure", nargs="+", choices=tuple(KINDS), default=list(KINDS), help="each is compiled separately"
    )
    parser.add_argument("--compile", choices=get_args(Compile), default="on", help="on GPUs; see --loop.compile")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, help="start no row after this many minutes")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args(argv)
    if torch.device(options.device).type != "cuda":
        options.compile = "off"
    return options


def _join(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def main(argv: list[str] | None = None) -> None:
    options, began = parse_options(argv), time.monotonic()
    about = {name: getattr(options, name) for name in ("backbone", "batch", "size", "compile", "steps", "measure")}
    before = read_earlier(options.out).get("rows", [])
    found = [row for row in before if about.items() <= row.items()]
    others = [row for row in before if row not in found]
    done = {row["method"] for row in found}
    device = torch.device(options.device)
    images = options.batch * BATCHES
    store = make_store(images, idmm_pretrain(options.size).store_side(images), device)
    for method in options.methods:
        if method in done or (options.minutes is not None and time.monotonic() - began >= 60 * options.minutes):
            print(f"{method}: {'measured earlier' if method in done else 'left for another call'}", flush=True)
            continue
        try:
            found.append(measure(method, options, store))
        except RunAborted as problem:
            print(problem, flush=True)
            continue
        row = add_ratios(found)[-1]
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        order = sorted(found, key=lambda row: list(METHODS).index(row["method"]))
        named = [] if len(order) == len(METHODS) else ["--methods", *(row["method"] for row in order)]
        changed = [
            f"--{name} {_join(value)}" for name, value in about.items() if value != getattr(parse_options([]), name)
        ]
        command = " ".join(["python benchmarks/methods.py", *named, *changed])
        write_rows(options.out, "A training step of each pre-training method", command, [*others, *add_ratios(order)])


if __name__ == "__main__":
    main()
