"""Compare the time of IDMM's pre-training in vitling and in the style of its released code.

    python benchmarks/idmm_pretraining.py flowers102-train.tar --out results/idmm-pretraining-h200.json

DeiT-Tiny, two and four crops of 112 px, batches of 256, one process, both on one device in one run. vitling: `vitling
pretrain` with its defaults, from DATA to the saved weights. Released style (released_style.py): image files, PIL
workers, fp32, no compilation. It is measured for fewer epochs and extrapolated from its steady state.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import released_style
import torch
from record import format_command, hash_data, write_rows

from vitling import data
from vitling.methods.method import SIZE
from vitling.runs.pretrain import pretrain
from vitling.settings.config import PretrainConfig
from vitling.training.config import LoopConfig
from vitling.training.loop import Loop

CAUTION = (
    "One run of each. The released style is our own code, written from the published facts; where they leave a choice, "
    "the faster one was taken. Seconds per epoch are means over the epochs after warm-up. vitling's include the "
    "evaluations of features that a run has by default (after every epoch at this length). The whole time is from the "
    "start to the saved weights, with start-up, decoding and compilation. The released style ran for fewer epochs; the "
    "rest is extrapolated from its steady state."
)


def measure_vitling(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    config = PretrainConfig(
        source=options.data,
        out=str(folder / "run"),
        backbone=options.backbone,
        size=options.size,
        epochs=options.epochs,
        batch=options.batch,
        cache=False,  # decoding counts
        loop=LoopConfig(device=options.device, trackers=()),
    )
    started = time.perf_counter()
    with record_epoch_ends() as ends:
        result = pretrain(config)
    whole = time.perf_counter() - started
    row = make_row("vitling", [end - started for end in ends], options.warm_up, result["images"])
    speeds = [line["images_per_second"] for line in read_epochs(folder / "run")][options.warm_up :]
    return {
        **row,
        "images_per_second_without_looks": statistics.mean(speeds),
        "whole_seconds": whole,
        "looks_every_epochs": max(1, round(options.epochs / 40)),
        "loss": result["last"]["loss"],
    }


@contextmanager
def record_epoch_ends() -> Iterator[list[float]]:
    """Collect the times at which epochs end, after evaluation and checkpoint."""
    ends: list[float] = []
    finish_epoch = Loop.finish_epoch

    def record(loop: Loop, *arguments: Any) -> None:
        finish_epoch(loop, *arguments)
        ends.append(time.perf_counter())

    Loop.finish_epoch = record  # type: ignore[method-assign]
    try:
        yield ends
    finally:
        Loop.finish_epoch = finish_epoch  # type: ignore[method-assign]


def read_epochs(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "epoch"]


def measure_released(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    images = data.open(options.data, val="none").train
    paths = released_style.write_files(images, folder)
    found = released_style.pretrain(
        paths,
        options.backbone,
        options.size,
        options.batch,
        options.released_epochs,
        options.workers,
        torch.device(options.device),
    )
    row = make_row("released style", found["ends"], options.released_warm_up, len(paths))
    remaining = options.epochs - options.released_epochs
    return {
        **row,
        "whole_seconds": found["ends"][-1] + remaining * row["seconds_an_epoch"],
        "epochs_not_run_but_added": remaining,
        "loss": found["loss"],
    }


def make_row(side: str, ends: list[float], warm_up: int, images: int) -> dict[str, Any]:
    steady = (ends[-1] - ends[warm_up - 1]) / (len(ends) - warm_up)
    return {
        "side": side,
        "images": images,
        "epochs_measured": len(ends),
        "of_them_warm_up": warm_up,
        "seconds_an_epoch": steady,
        "images_per_second": images / steady,
        "first_epoch_ended_after": ends[0],
    }


def summarise(slow: dict[str, Any], fast: dict[str, Any], epochs: int) -> str:
    return (
        f"{epochs} epochs on {fast['images']:,} images: vitling {fast['whole_seconds']:.1f} s; in the released style "
        f"{slow['whole_seconds']:.1f} s, {slow['whole_over_vitling']:.1f} times as long. One epoch after warm-up: "
        f"{fast['seconds_an_epoch']:.3f} s and {slow['seconds_an_epoch']:.3f} s, "
        f"{slow['epoch_over_vitling']:.1f} times as long."
    )


def parse_options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", metavar="DATA", help="images, as for `vitling pretrain`: a folder, a tar, ...")
    parser.add_argument("--epochs", type=int, default=50, help="epochs of vitling, and of both whole times")
    parser.add_argument("--warm-up", type=int, default=5, help="epochs of vitling excluded from seconds per epoch")
    parser.add_argument("--released-epochs", type=int, default=8, help="epochs of the released style")
    parser.add_argument(
        "--released-warm-up", type=int, default=2, help="epochs of the released style excluded likewise"
    )
    parser.add_argument(
        "--workers", type=int, default=min(16, os.cpu_count() or 1), help="workers of the released style"
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=SIZE, help="pixels of a crop")
    parser.add_argument("--backbone", default="deit_tiny_patch16_224", help="a ViT or DeiT")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args(argv)
    for epochs, warm_up in (("epochs", "warm_up"), ("released_epochs", "released_warm_up")):
        if not 1 <= getattr(options, warm_up) < getattr(options, epochs):
            parser.error(f"--{warm_up.replace('_', '-')} must be at least 1 and less than the epochs")
    if options.released_epochs > options.epochs:
        parser.error("--released-epochs must not be more than --epochs")
    if not options.backbone.startswith(("vit_", "deit_")):
        parser.error(f"--backbone {options.backbone} is not supported; name a ViT or DeiT")
    return options


def main(argv: list[str] | None = None) -> None:
    options = parse_options(argv)
    rows = []
    for measure in (measure_released, measure_vitling):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(options, Path(folder)))
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    slow, fast = rows
    slow["epoch_over_vitling"] = slow["seconds_an_epoch"] / fast["seconds_an_epoch"]
    slow["whole_over_vitling"] = slow["whole_seconds"] / fast["whole_seconds"]
    print(summarise(slow, fast, options.epochs))
    what = f"IDMM pre-training, {options.epochs} epochs: vitling beside the style of the released code"
    hashes, command = hash_data(options.data), format_command("idmm_pretraining", options)
    write_rows(options.out, what, command, [fast, slow], caution=CAUTION, data_hashes=hashes)


if __name__ == "__main__":
    main()
