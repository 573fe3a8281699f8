"""Memory, open files, threads and seconds per epoch over thousands of tiny epochs: none of them may grow.

python benchmarks/long_run.py results/long-run-cpu.json --epochs 2000
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitling.cli import run
from vitling.files import write_json
from vitling.objectives.moments import Moment
from vitling.training import loop
from vitling.training.rundir import describe_environment

COMMAND = "python benchmarks/long_run.py results/long-run-cpu.json --epochs {epochs}"
WHAT = "Tenths of a long run of tiny epochs"
PARTS = 10  # of the run, each with its own figures


class Meter:
    """Watcher that measures the process when the network is evaluated."""

    every = 1

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, float, float, int, int]] = []

    def __call__(self, moment: Moment) -> dict[str, float]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files = len(os.listdir("/proc/self/fd"))
        row = (
            moment.epoch,
            time.perf_counter(),
            time.process_time(),
            pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            files,
            threading.active_count(),
        )
        self.rows.append(row)
        return {}


def measure(epochs: int) -> list[dict[str, Any]]:
    """Train a tiny network with a checkpoint every five seconds and return the figures of each part of the run."""
    meter, original = Meter(), loop.Loop._watch
    loop.Loop._watch = lambda self, watchers, finished: original(self, [*watchers, meter], finished)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", str(_draw_images(Path(folder) / "images")), "--out", f"{folder}/run"]
        words += ["--backbone", "vit_micro_patch4_32", "--size", "8", "--batch", "32", "--epochs", str(epochs)]
        words += ["--method", "supervised", "--val", "0.25", "--eval-every", "5", "--checkpoint.every-seconds", "5"]
        if code := run([*words, "--loop.device", "cpu", "--loop.trackers", "tensorboard"]):
            raise SystemExit(code)
    return [_summarise(rows) for rows in np.array_split(np.array(meter.rows), PARTS)]


def _draw_images(folder: Path) -> Path:
    """Write 32 images of noise in two classes."""
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (32, 8, 8, 3), dtype=np.uint8)):
        path = folder / f"class-{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


def _summarise(rows: np.ndarray) -> dict[str, Any]:
    epochs = np.diff(rows[:, 0])
    return {
        "epochs": f"{rows[0, 0]:.0f} to {rows[-1, 0]:.0f}",
        "milliseconds_per_epoch": round(1000 * float(np.median(np.diff(rows[:, 1]) / epochs)), 1),
        "cpu_milliseconds_per_epoch": round(1000 * float(np.median(np.diff(rows[:, 2]) / epochs)), 1),
        "memory_mib": round(float(rows[:, 3].max()), 1),
        "files": int(rows[:, 4].max()),
        "threads": int(rows[:, 5].max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=2000)
    arguments = parser.parse_args()
    parts, command = measure(arguments.epochs), COMMAND.format(epochs=arguments.epochs)
    for part in parts:
        print(part)
    environment = describe_environment() | {"command": command}
    write_json(arguments.out, {"what": WHAT, "command": command, "environment": environment, "rows": parts})


if __name__ == "__main__":
    main()
