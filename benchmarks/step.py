"""Compare a training step with a plain loop over timm's network under torch.compile, and list its kernels.

    python benchmarks/step.py --out results/step-h200.json

Both train the same network on ready images in bf16, with a class per image, drop path and AdamW, in turns and in one
process. `timm` is a plain loop: `torch.compile(model)`, forward, backward, and torch's fused AdamW. `timm, graphs` is
the same with mode="reduce-overhead", torch's own CUDA graphs. `ours` is the loop's step with gradient clipping,
captured as CUDA graphs. On GPUs the kernels of our step follow, those that take the longest first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import timm
import torch
import torch.nn.functional as F
from record import format_command, write_rows
from workloads import InstanceClassification

from vitling.papers.measure import FixedViewsTrainer, Workload, make_store, make_trainer, reset_compiler
from vitling.training.pace import WARMUP_STEPS, iterate_batches, run_steps, synchronise
from vitling.training.trainer import Trainer
from vitling.views import Group, Plan

ROUNDS, ROUND_SECONDS = 5, 1.0
MAX_NAME, KERNELS = 100, 25  # characters of a kernel's name; kernels of a case
PEERS = {"timm": "default", "timm, graphs": "reduce-overhead"}  # modes of torch.compile


class Case(NamedTuple):
    backbone: str
    size: int
    batch: int


CASES = (
    Case("pvt_v2_b0", 112, 1536),  # six crops each of 256 images, as in IDMM
    Case("pvt_v2_b0", 224, 256),
    Case("deit_tiny_patch16_224", 112, 1536),
    Case("deit_tiny_patch16_224", 224, 256),
)


def make_our_step(case: Case, device: torch.device) -> tuple[Callable[[int], float], Trainer]:
    """Return a function that takes steps of our loop and returns their seconds, and its trainer."""
    store = make_store(case.batch, case.size, device)
    work = Workload(case.backbone, Plan((Group(case.size),)), case.batch, InstanceClassification)
    trainer = make_trainer(FixedViewsTrainer, work, store, "on" if device.type == "cuda" else "off")
    source = iterate_batches(trainer)
    return lambda steps: run_steps(trainer, source, steps)[0], trainer


def make_timm_step(case: Case, device: torch.device, mode: str) -> Callable[[int], float]:
    """Return a function that takes steps of a plain loop and returns their seconds."""
    size = {"img_size": case.size} if case.backbone.startswith("deit") else {}
    model = timm.create_model(case.backbone, num_classes=case.batch, drop_path_rate=0.1, **size).to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, fused=device.type == "cuda" or None)
    pixels = torch.randn(case.batch, 3, case.size, case.size, device=device, dtype=torch.bfloat16)
    labels = torch.arange(case.batch, device=device)
    network = torch.compile(model, mode=mode) if device.type == "cuda" else model

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            logits = network(pixels)
        F.cross_entropy(logits.float(), labels).backward()
        optimiser.step()

    def take(steps: int) -> float:
        synchronise(device)
        began = time.perf_counter()
        for _ in range(steps):
            step()
        synchronise(device)
        return time.perf_counter() - began

    return take


def compare(case: Case, device: torch.device) -> dict[str, Any]:
    """Measure both in turns; the first rounds compile and are not counted."""
    ours, trainer = make_our_step(case, device)
    steps = {"ours": ours} | {name: make_timm_step(case, device, mode) for name, mode in PEERS.items()}
    counts = {}
    for name, take in steps.items():
        take(WARMUP_STEPS)
        counts[name] = max(1, round(ROUND_SECONDS * 3 / take(3)))
    rounds = [{name: take(counts[name]) / counts[name] for name, take in steps.items()} for _ in range(ROUNDS)]
    if device.type == "cuda" and not (trainer.replay and trainer.replay.captures):
        raise SystemExit(f"{case}: our step was not captured.")
    seconds = {name: statistics.median(times[name] for times in rounds) for name in steps}
    row: dict[str, Any] = {**case._asdict()}
    row["images_per_second"] = {name: round(case.batch / value, 1) for name, value in seconds.items()}
    row["speedup"] = {name: round(statistics.median(t[name] / t["ours"] for t in rounds), 3) for name in PEERS}
    if device.type == "cuda":
        row["kernels"] = profile(ours, counts["ours"])
    return row


def profile(take: Callable[[int], float], steps: int) -> list[dict[str, Any]]:
    """List the kernels that take the longest: microseconds and calls per step, and the share of all kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        take(steps)
    events = sorted(found.key_averages(), key=lambda event: -event.device_time_total)
    total = sum(event.device_time_total for event in events)
    return [
        {
            "kernel": event.key[:MAX_NAME],
            "us": round(event.device_time_total / steps, 1),
            "calls": event.count / steps,
            "share": round(event.device_time_total / total, 4),
        }
        for event in events[:KERNELS]
    ]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="cases with this in their name, such as pvt_v2_b0-224")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, help="replaces the batch of every case")
    parser.add_argument("--out")
    options = parser.parse_args(argv)
    rows = []
    for case in CASES:
        if options.only and not any(part in f"{case.backbone}-{case.size}" for part in options.only):
            continue
        row = compare(case._replace(batch=options.batch or case.batch), torch.device(options.device))
        rows.append(row)
        print({name: value for name, value in row.items() if name != "kernels"}, flush=True)
        command = format_command("step", options)
        write_rows(options.out, "Training step: our loop and timm's network under torch.compile", command, rows)
        reset_compiler()


if __name__ == "__main__":
    main()
