"""Compare the plan of `vitling train` without a GPU with a plain ResNet-18 at equal time on two cores.

    python benchmarks/cpu_plan.py DATA --out results/cpu-plan.json

DATA holds flowers102-train.tar and cifar100-train-10k.parquet. The images to learn from and the hold-out both come from
the training splits; the test splits stay closed. Each run is pinned to two cores, as many at once as the cores allow.
Everything counts: Python's start, imports, decoding, training, evaluation. Finished runs are kept, so the command can
be repeated until it is complete; the short runs come first, further seeds and 10 minutes later, so that an
interrupted grid is useful. With --candidates, other networks, sizes and views can be compared in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from record import write_rows

from vitling.loading import read_json
from vitling.training.rundir import describe_environment

LIGHT = "--views.augment none --views.erase 0 --views.mixup 0 --views.cutmix 0 --views.scale 0.35 1"
ONE_STAGE = "--method supervised"
RATE = "--optim.lr 1e-3"
CANDIDATES = {  # flags of `vitling train`; "plain" is benchmarks/plain_resnet.py
    "plan": "",
    "plan-one-stage": ONE_STAGE,
    **{
        f"{name}-{size}-{views}": f"{ONE_STAGE} --backbone {backbone} --size {size} {RATE} {flags}"
        for name, backbone in {
            "r18": "resnet18",
            "r10": "resnet10t",
            "atto": "convnext_atto",
            "pvt": "pvt_v2_b0",
        }.items()
        for size in (64, 96)
        for views, flags in {"light": LIGHT, "cutmix": f"{LIGHT} --views.cutmix 1 --views.mix-prob 0.5"}.items()
    },
}
PLAIN = {"plain-64": 64, "plain-96": 96}
HELD_OUT = 600  # images at most
HELD_OUT_LEAST = 4  # images of a class
FEWER = 3 / 4  # of the images that were asked for, at least


WHAT = "top-1 on a hold-out of train after equal time on two CPU cores, %: the plan and a plain ResNet-18"


@dataclass(frozen=True)
class Cell:
    """One run: which images, how long, what."""

    data: str
    images: int
    classes: int
    minutes: float
    candidate: str
    seed: int = 0

    @property
    def folder(self) -> str:
        return f"{self.data}-{self.images}-{self.classes}"


def main() -> None:
    options = parse()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    done = {Cell(**run["cell"]): run for run in read_json(options.out)["runs"]} if Path(options.out).exists() else {}
    work = Path(options.work)
    sets = product(options.sets, options.images, options.classes)
    made = [point for point in sets if make_folder(*point, Path(options.data), work)]
    grid = product(made, options.minutes, options.candidates, options.seeds)
    cells = [cell for cell in (Cell(*point, *rest) for point, *rest in grid) if cell not in done]
    command = "python benchmarks/cpu_plan.py DATA"  # the whole grid, also if a call measures a part of it
    waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    for cell in sorted(cells, key=rank):
        waiting.put(cell)
    lock = threading.Lock()

    def work_on(cores: str) -> None:
        while True:
            try:
                cell = waiting.get_nowait()
            except queue.Empty:
                return
            found = run(cell, cores, work)
            with lock:
                done[cell] = found
                print(f"{len(done)} done: {cell} {found['top1']}", flush=True)
                rows, runs = summarise(list(done.values())), list(done.values())
                write_rows(options.out, WHAT, command, rows, runs=runs)

    cores = sorted(os.sched_getaffinity(0))
    pairs = [f"{a},{b}" for a, b in zip(cores[::2], cores[1::2])][: options.at_once]
    threads = [threading.Thread(target=work_on, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--sets", nargs="+", default=list(READERS), choices=list(READERS))
    parser.add_argument("--images", nargs="+", type=int, default=[100, 300, 1000, 2000])
    parser.add_argument("--classes", nargs="+", type=int, default=[0, 6], help="0: ten images each")
    parser.add_argument("--minutes", nargs="+", type=float, default=[1, 3, 10])
    parser.add_argument("--candidates", nargs="+", default=["plan", *PLAIN], choices=[*PLAIN, *CANDIDATES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--at-once", type=int, default=64, help="runs side by side at most")
    parser.add_argument("--work", default="/tmp/cpu-plan", help="folder for images and runs")
    parser.add_argument("--out", default="results/cpu-plan.json")
    return parser.parse_args()


def rank(cell: Cell) -> tuple[Any, ...]:
    """Return the order of a cell: first one seed of 1 and 3 minutes, then more seeds, 10 minutes, and 96 px."""
    later = (cell.candidate == "plain-96") + 2 * (cell.minutes > 3)
    return later, cell.seed if cell.minutes > 1 else max(0, cell.seed - 1), cell.minutes, cell.seed, -cell.images


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare the plan with the better plain network for each set of images and time, over seeds.

    The plan is ahead or behind if the means differ by more than the larger of the two standard deviations.
    """
    found: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in runs:
        cell = Cell(**one["cell"])
        if one["top1"] is not None:
            found[cell.data, cell.images, cell.classes, cell.minutes][cell.candidate].append(one["top1"])
    rows = []
    for (data, images, classes, minutes), values in sorted(found.items()):
        row = {"data": data, "images": images, "classes": classes or "ten images each", "minutes": minutes}
        row |= {name: format_values(top1) for name, top1 in values.items()}
        plain = max((top1 for name, top1 in values.items() if name in PLAIN), key=statistics.mean, default=[])
        if plain and "plan" in values:
            row |= {"difference": round(statistics.mean(values["plan"]) - statistics.mean(plain), 1)}
            row |= {"verdict": judge(values["plan"], plain)}
        rows.append(row)
    return rows


def format_values(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f} ({len(values)})" if len(values) > 1 else f"{mean} (1)"


def judge(plan: list[float], plain: list[float]) -> str:
    difference = statistics.mean(plan) - statistics.mean(plain)
    if min(len(plan), len(plain)) < 2:
        return "one seed"
    spread = max(statistics.stdev(plan), statistics.stdev(plain))
    return "level" if abs(difference) <= spread else "ahead" if difference > 0 else "behind"


def run(cell: Cell, cores: str, work: Path) -> dict[str, Any]:
    """Train one cell on two cores and return its row."""
    folder = work / cell.folder
    out = work / "runs" / "-".join(map(str, asdict(cell).values()))
    if cell.candidate in PLAIN:
        flags = f"--minutes {cell.minutes} --size {PLAIN[cell.candidate]} --seed {cell.seed}"
        command = [str(Path(__file__).with_name("plain_resnet.py")), str(folder), *flags.split()]
    else:
        flags = f"--minutes {cell.minutes} --seed {cell.seed} {CANDIDATES[cell.candidate]}"
        command = [
            "-m",
            "vitling",
            "train",
            str(folder),
            "--out",
            str(out),
            "--overwrite",
            "--no-cache",
            *flags.split(),
        ]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    began = time.perf_counter()
    process = subprocess.run(
        ["taskset", "-c", cores, sys.executable, *command], env=environment, capture_output=True, text=True
    )
    whole = round(time.perf_counter() - began, 1)  # seconds, from the start of the process to its end
    row: dict[str, Any] = {"cell": asdict(cell), "flags": flags, "top1": None, "whole_seconds": whole}
    row |= {name: describe_environment()[name] for name in ("commit", "system")}
    if process.returncode:
        return row | {"error": process.stderr[-400:]}
    if cell.candidate in PLAIN:
        return row | json.loads(process.stdout.splitlines()[-1])
    result = read_json(out / "result.json")
    known = {name: result.get(name) for name in ("backbone", "size", "epochs", "steps", "seconds")}
    return row | known | {"top1": 100 * result["last"]["val"]["top1"]}


def make_folder(data: str, images: int, classes: int, source: Path, work: Path) -> bool:
    """Write train/ and val/ and return True, or return False if a class has far too few images."""
    folder = work / f"{data}-{images}-{classes}"
    if folder.with_suffix(".complete").exists():
        return True
    by_class = READERS[data](source)
    chooser = random.Random(images)
    names = chooser.sample(sorted(by_class), classes or min(images // 10, 100))
    each = min(images // len(names), min(len(by_class[name]) for name in names) - HELD_OUT_LEAST)
    if each < FEWER * (images // len(names)):
        return False
    for name in names:
        members = chooser.sample(by_class[name], len(by_class[name]))
        parts = {"train": members[:each], "val": members[each : each + max(HELD_OUT // len(names), HELD_OUT_LEAST)]}
        for part, chosen in parts.items():
            target = folder / part / name
            target.mkdir(parents=True, exist_ok=True)
            for file, content in chosen:
                (target / file).write_bytes(content)
    folder.with_suffix(".complete").touch()
    return True


def read_flowers(source: Path) -> dict[str, list[tuple[str, bytes]]]:
    by_class = defaultdict(list)
    with tarfile.open(source / "flowers102-train.tar") as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)):
                path = Path(member.name)
                by_class[path.parent.name].append((path.name, file.read()))
    return by_class


def read_cifar(source: Path) -> dict[str, list[tuple[str, bytes]]]:
    import pyarrow.parquet as parquet

    by_class = defaultdict(list)
    table = parquet.read_table(source / "cifar100-train-10k.parquet").to_pylist()
    for i, row in enumerate(table):
        by_class[f"{row['label']:02d}"].append((f"{i:05d}.png", row["image"]["bytes"]))
    return by_class


READERS = {"flowers102": read_flowers, "cifar100": read_cifar}


if __name__ == "__main__":
    main()
