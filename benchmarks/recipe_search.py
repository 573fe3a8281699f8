"""Search for a better recipe of `vitling train`: one change at a time, on a hold-out of the training images.

    python benchmarks/recipe_search.py flowers102=train=FLOWERS.tar cifar100=train=CIFAR.parquet \
        --candidates base size160 ema --at-once 4 --out results/recipe-search.jsonl
    python benchmarks/recipe_search.py flowers102=... --candidates base size160 size160+ema --seeds 0 1 2

A candidate is a name of CHANGES, or several joined by "+", which is how a change is tried on top of the best so far.
Every run trains for the same number of epochs or, where CHANGES has a factor, for as many as take the same time, so
runs side by side on one GPU are comparable; seconds are recorded but only comparable for runs alone. size192 and
size160 are for images whose plan has 224 px. A seed also decides which images are held out, so several seeds hold out
different ones. --classes takes the first classes of a Parquet file, for a search on a CPU; "-20" is added to the name
for 20 of them. The test split stays closed (--no-test). Each run adds a line to the file, also if it fails, and
finished runs are skipped the next time. The table at the end compares every candidate with `base`, the plan itself, on
the same data and seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from pages.recipe import FILE, PLANS, TITLES, compare
from record import hash_data
from rich.table import Table

from vitling.console import Console
from vitling.files import append_line
from vitling.loading import read_json, read_json_lines
from vitling.runs.report import sum_seconds
from vitling.training.rundir import describe_environment

FIXED = "--val 0.2 --no-test --no-report --calibrate off --overwrite"


@dataclass(frozen=True)
class Change:
    """Flags of `vitling train` that change the plan, at the same cost: `epochs` are factors of both stages' epochs, for
    changes of known cost, and `first` is a factor of the first stage's epochs, whose time the second stage gets. Other
    candidates train for as many epochs as the base."""

    flags: str = ""
    epochs: tuple[float, float] = (1.0, 1.0)
    first: float = 1.0


FIRST_COST = 1.6  # of an epoch of IDMM, in epochs of the second stage: PVTv2-B0, 112 and 224 px, on an H200
BASE_SIZE = 224  # for which the factors of the candidates with another size hold
CHANGES = {
    "base": Change(),
    "adamw": Change(
        "--optim.name adamw --pretrain-optim.name adamw --optim.weight-decay 1e-3 --pretrain-optim.weight-decay 1e-3"
    ),
    "decay2e-1": Change("--optim.weight-decay 0.2 --pretrain-optim.weight-decay 0.2"),
    "decay1e-3": Change("--optim.weight-decay 1e-3 --pretrain-optim.weight-decay 1e-3"),
    "own-init": Change("--init default"),  # plain ViTs only: the others start so
    "ema": Change("--optim.ema 0.998"),
    "parts4": Change("--views.mix-parts 4 --pretrain-views.mix-parts 4"),
    "parts16": Change("--views.mix-parts 16 --pretrain-views.mix-parts 16"),
    "parts64": Change("--views.mix-parts 64 --pretrain-views.mix-parts 64"),
    "vitling-views": Change("--views.augment uda"),  # not IDMM's policy, and mixed once per image
    "drloc": Change("--aux drloc"),
    "drloc05": Change("--aux drloc --drloc.weight 0.5"),
    "drop-path0": Change("--objective.drop-path 0"),
    "drop-path02": Change("--objective.drop-path 0.2"),
    "smoothing0": Change("--objective.smoothing 0"),
    "lr5e-4": Change("--optim.lr 5e-4 --pretrain-optim.lr 5e-4"),  # the paper's for PVTv2, whose plan has 1e-3
    "lr2e-3": Change("--optim.lr 2e-3 --pretrain-optim.lr 2e-3"),
    "lr3e-3": Change("--optim.lr 3e-3 --pretrain-optim.lr 3e-3"),  # twice the plan's for vit_nano_patch4_32
    "lr4e-3": Change("--optim.lr 4e-3 --pretrain-optim.lr 4e-3"),
    "lr6e-3": Change("--optim.lr 6e-3 --pretrain-optim.lr 6e-3"),
    "batch128": Change("--batch 128"),
    "size192": Change("--size 192 --pretrain-size 112 --test-size 256", (1.0, (BASE_SIZE / 192) ** 2)),
    "size160": Change("--size 160 --pretrain-size 112 --test-size 224", (1.0, (BASE_SIZE / 160) ** 2)),
    # for images of 32 px, whose plan has vit_micro_patch4_32; enlarged, they give PVTv2 a grid of 16, 24 or 32 tokens
    "pvt64": Change("--backbone pvt_v2_b0 --size 64"),
    "pvt96": Change("--backbone pvt_v2_b0 --size 96"),
    "pvt128": Change("--backbone pvt_v2_b0 --size 128"),
    "resnet64": Change("--backbone resnet10t --size 64"),
    "crops2": Change("--idmm.no-multi-crop --idmm.crops 2", (3.0, 1.0)),
    "longer-first": Change(first=1.25),
    "shorter-first": Change(first=0.75),
    "half-first": Change(first=0.5),
    "quarter-first": Change(first=0.25),
    "supervised": Change("--method supervised"),
    "lejepa": Change("--method lejepa"),
    "esvit": Change("--method esvit"),
}
FIRST_STAGE = re.compile(r"--(?:method|pretrain-\S+)(?: (?!--)\S+)* ?")  # flags that one stage does not have
KEYS = (
    "data",
    "plan",
    "base",
    "candidate",
    "seed",
    "length",
    "flags",
    "data_hashes",
)  # of a row, which tell runs apart


@dataclass(frozen=True)
class Job:
    """One training run."""

    data: str
    source: str
    candidate: str
    seed: int
    epochs: tuple[int, int]  # of the two stages
    more: str  # further flags that all candidates share
    data_hashes: dict[str, str]
    environment: dict[str, Any]  # commit, GPU and packages
    first_cost: float = FIRST_COST
    plan: int = max(PLANS)

    @property
    def base(self) -> str:
        """Return the flags of the base, which tell what the candidate is compared with."""
        first, second = self.epochs
        return f"--pretrain-epochs {first} --epochs {second} {self.more}".strip()

    @property
    def length(self) -> str:
        """Return the flags of the length; a run without a first stage gets the epochs that take as long as both."""
        changes = [CHANGES[name] for name in self.candidate.split("+")]
        factors = [math.prod(change.epochs[stage] for change in changes) for stage in (0, 1)]
        share = math.prod(change.first for change in changes)
        first, freed = round(self.epochs[0] * factors[0] * share), self.first_cost * self.epochs[0] * (1 - share)
        second = round((self.epochs[1] + freed) * factors[1])
        if "--method supervised" in f"{self.more} {self.flags}":
            more = FIRST_STAGE.sub("", self.more) if "--method supervised" in self.flags else self.more
            return f"--epochs {round((self.epochs[1] + self.first_cost * self.epochs[0]) * factors[1])} {more}".strip()
        return f"--pretrain-epochs {first} --epochs {second} {self.more}".strip()

    @property
    def flags(self) -> str:
        return " ".join(filter(None, (CHANGES[name].flags for name in self.candidate.split("+"))))

    @property
    def row(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in KEYS}


def run(job: Job) -> dict[str, Any]:
    """Train and return the row: accuracy on the hold-out, or the error."""
    row = job.row
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--seed {job.seed} --split-seed {job.seed} {FIXED} {job.length} {job.flags}".split()
        words = ["train", job.source, "--out", folder, *flags]
        process = subprocess.run([sys.executable, "-m", "vitling", *words], capture_output=True, text=True)
        row |= job.environment
        if process.returncode:
            last = (process.stderr.strip().splitlines() or ["no message"])[-1]
            return row | {"error": last.replace(folder, "RUN")[:300], "exit_code": process.returncode}
        result = read_json(Path(folder) / "result.json")
    val = result["last"]["val"]
    about = {name: result.get(name) for name in ("backbone", "size", "epochs", "parameters")}
    about["seconds"] = round(sum_seconds(result), 2)
    return row | {"top1": 100 * val["top1"], "log_loss": val["log_loss"], "images_held_out": val["n"], **about}


def keep_classes(name: str, source: str, count: int, folder: str) -> str:
    """Write the rows of a Parquet file that have the first labels into `folder`; return the source of these."""
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    split, _, path = source.rpartition("=")
    table, kept = parquet.read_table(path), Path(folder) / f"{name}.parquet"
    parquet.write_table(table.filter(compute.less(table["label"], count)), kept)
    return f"{split}={kept}" if split else str(kept)


def read_rows(path: str) -> list[dict[str, Any]]:
    return read_json_lines(path, dict[str, Any]) if Path(path).exists() else []


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", metavar="NAME=DATA")
    parser.add_argument("--candidates", nargs="+", default=["base"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--pretrain-epochs", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument(
        "--classes", type=int, help="of each dataset, which must be a Parquet file with numbers as labels"
    )
    parser.add_argument(
        "--first-cost",
        type=float,
        default=FIRST_COST,
        help="time of an epoch of the first stage, in epochs of the second (default: %(default)s); measure it first",
    )
    parser.add_argument("--flags", default="", help="further flags of every run, such as '--backbone deit_tiny...'")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--out", default=f"results/{FILE}")
    options = parser.parse_args(argv)
    if wrong := [named for named in options.data if "=" not in named]:
        parser.error(f"{wrong[0]}: write NAME=DATA")
    if unknown := [c for c in options.candidates if not set(c.split("+")) <= CHANGES.keys()]:
        parser.error(f"no such candidates: {', '.join(unknown)}; known: {', '.join(CHANGES)}")
    return options


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    sources = dict(named.split("=", 1) for named in options.data)
    with tempfile.TemporaryDirectory() as folder:
        if options.classes:
            sources = {
                f"{name}-{options.classes}": keep_classes(name, source, options.classes, folder)
                for name, source in sources.items()
            }
        search(options, sources)
    print_comparisons(options.out)


def search(options: argparse.Namespace, sources: dict[str, str]) -> None:
    """Make the runs that are not in the file yet."""
    hashes = {name: hash_data(source) for name, source in sources.items()}
    done = [{key: row[key] for key in KEYS} for row in read_rows(options.out) if "top1" in row]
    epochs = options.pretrain_epochs, options.epochs
    known = describe_environment()  # now, because a file of results that grows would mark the commit as changed
    environment = {name: known.get(name) for name in ("commit", "gpu", "packages")}
    jobs = [
        Job(name, source, candidate, seed, epochs, options.flags, hashes[name], environment, options.first_cost)
        for seed in dict.fromkeys(options.seeds)
        for candidate in dict.fromkeys(options.candidates)
        for name, source in sources.items()
    ]
    lock = Lock()

    def work_on(job: Job) -> None:
        row = run(job)
        with lock:
            append_line(Path(options.out), json.dumps(row))
            print(job.data, job.candidate, job.seed, row.get("top1", row.get("error")), flush=True)

    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(work_on, [job for job in jobs if job.row not in done]))


def print_comparisons(path: str) -> None:
    for (name, plan, base), candidates in compare(read_rows(path)).items():
        rows = [TITLES, *(one.cells for one in candidates)]
        titles, *cells = [(change, *numbers) for change, _, *numbers in rows]  # without the flags, for want of space
        table = Table(*titles, title=f"{name}, plan {plan}, {base}")
        for row in cells:
            table.add_row(*row)
        Console().print(table)


if __name__ == "__main__":
    main()
