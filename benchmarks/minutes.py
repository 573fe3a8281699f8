"""Measure accuracy over minutes: `vitling train --minutes M` with its plan, and with other networks.

    python benchmarks/minutes.py flowers102=DATA cifar100=DATA --minutes 1 2 4 8 --out results/minutes-h200.json

Every run has the machine to itself, starts with the compiler's cache that the runs before it have filled (so the first
of a network compiles; --cold: with an empty one), and takes the time that it is given, imports and evaluation included.
`plan` is the default; the others are what a user might try instead. By default a fifth of the training images is held
out and the test split stays closed; --test trains on all images and opens it, which is for final figures only, and
includes the twin that calibrates them. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from record import format_command, hash_data, read_earlier, write_rows

from vitling.loading import read_json
from vitling.training.rundir import describe_environment

RUNS = {  # flags of `vitling train`
    "plan": "",
    "one-stage": "--method supervised",
    "deit-tiny": "--backbone deit_tiny_patch16_224",
    "pvt-v2-b1": "--backbone pvt_v2_b1",
    "resnet50": "--method supervised --backbone resnet50",
    "convnext-tiny": "--method supervised --backbone convnext_tiny",
}
HELD_OUT = "--val 0.2 --split-seed 0 --no-test --calibrate off"
KEYS = ("data", "data_hashes", "run", "flags", "minutes", "seed", "split", "cache")  # of a row, which tell runs apart


def measure(job: dict[str, Any], source: str) -> dict[str, Any]:
    """Train and return the row: accuracy, seconds of the whole command, epochs of the stages; or the error."""
    with tempfile.TemporaryDirectory() as folder:
        split = "" if job["split"] == "test" else HELD_OUT
        flags = f"--minutes {job['minutes']:g} --seed {job['seed']} {split} {RUNS[job['run']]} {job['flags']}".split()
        environment = dict(os.environ)
        if job["cache"] == "cold":
            environment["VITLING_CACHE"] = f"{folder}/cache"
            environment.pop("TORCHINDUCTOR_CACHE_DIR", None)  # it would take the place of our cache
        words = [sys.executable, "-m", "vitling", "train", source, "--out", f"{folder}/run", *flags]
        began = time.perf_counter()
        process = subprocess.run(words, capture_output=True, text=True, errors="replace", env=environment)
        row = job | {"seconds": round(time.perf_counter() - began, 1), "commit": describe_environment()["commit"]}
        if process.returncode:
            last = (process.stderr.strip().splitlines() or ["no message"])[-1]
            return row | {"error": last.replace(folder, "RUN")[:300]}
        result = read_json(Path(folder) / "run" / "result.json")
    return row | describe(result, job["split"])


def describe(result: dict[str, Any], split: str) -> dict[str, Any]:
    """Select the figures of a row from result.json."""
    scores, stages = result["last"][split], result.get("stages", {"finetune": result})
    row = {"top1": round(100 * scores["top1"], 2), "images": scores["n"]}
    row |= {name: round(scores[name], 4) for name in ("log_loss", "calibration_error")}
    row["epochs"] = {name: stage["epochs"] for name, stage in stages.items()}
    row["images_per_second"] = {name: stage["images_per_second"] for name, stage in stages.items()}
    return row | {name: result.get(name) for name in ("backbone", "size", "parameters")}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="NAME=DATA")
    parser.add_argument("--minutes", nargs="+", type=float, default=[1, 2, 4, 8])
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=["plan"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--flags", default="", help="further flags of every run")
    parser.add_argument("--test", action="store_true", help="train on all images and open the test split")
    parser.add_argument("--cold", action="store_true", help="give every run an empty cache")
    parser.add_argument("--out")
    options = parser.parse_args(argv)
    sources = dict(named.split("=", 1) for named in options.sources)
    hashes = {name: hash_data(source) for name, source in sources.items()}
    earlier = read_earlier(options.out)
    rows, commands = earlier.get("rows", []), earlier.get("command", "").split(" && ")
    done = [{key: row[key] for key in KEYS} for row in rows if "top1" in row]
    split, cache = "test" if options.test else "val", "cold" if options.cold else "warm"
    named = " ".join(f"{name}=DATA" for name in sources)
    command = format_command("minutes", options, exclude="sources").replace(".py", f".py {named}", 1)
    command = " && ".join(dict.fromkeys([*filter(None, commands), command]))
    for seed, minutes, name, run in product(options.seeds, options.minutes, sources, options.runs):
        job = {"data": name, "data_hashes": hashes[name], "run": run, "flags": options.flags, "minutes": minutes}
        job |= {"seed": seed, "split": split, "cache": cache}
        if job in done:
            continue
        rows.append(measure(job, sources[name]))
        print(rows[-1], flush=True)
        write_rows(options.out, "Accuracy over minutes", command, rows)


if __name__ == "__main__":
    main()
