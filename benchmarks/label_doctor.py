"""Flip some labels at random, and measure how many of them `vitling doctor` finds.

    python benchmarks/label_doctor.py flowers102=train=FLOWERS.tar cifar100=train=CIFAR.parquet --folds 5 \
        --out results/label-doctor-h200.json

For each NAME=DATA: 5 % of the labels get another class, drawn uniformly, by a CSV for --labels, so that no file is
touched. A run is trained with them (`vitling train`, --minutes), and checked twice: with a classifier on the features
of its first stage, and with --folds. A flip counts as found if it is among the suspects. Seconds are those of the
command alone; the training before it is listed separately. Precision counts labels that were wrong before the flips as
false alarms, so it is a lower bound.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from record import format_command, hash_data, write_rows

from vitling.cli import run
from vitling.data.config import DataConfig
from vitling.data.splits import read_splits
from vitling.loading import read_json


def write_flips(source: str, fraction: float, seed: int, path: Path) -> set[str]:
    """Write a CSV of wrong labels for a fraction of the images; return their names."""
    train = read_splits(source, DataConfig(), merge_val=True).train
    if train.labels is None or train.labels.ndim != 1:
        raise SystemExit(f"{source} has no single labels to flip.")
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(train))[: round(fraction * len(train))]
    classes = len(train.class_names)
    wrong = (train.labels[chosen] + rng.integers(1, classes, len(chosen))) % classes
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        writer.writerows([train.keys[i], train.class_names[c]] for i, c in zip(chosen, wrong))
    return {train.keys[i] for i in chosen}


def measure(folder: Path, flipped: set[str], flags: Sequence[str]) -> dict[str, Any]:
    """Check the labels of a run; compare the suspects with the flips."""
    out, began = folder / f"doctor{''.join(flags)}", time.perf_counter()
    call(["doctor", str(folder), "--out", str(out), *flags])
    took, found = time.perf_counter() - began, read_json(out / "labels.json")
    ranked = [suspect["path"] for suspect in found["suspects"]]
    hits = [path in flipped for path in ranked]
    return {
        "method": " ".join(["doctor RUN", *flags]),
        "images": found["images"],
        "flipped": len(flipped),
        "suspects": len(ranked),
        "recall": sum(hits) / len(flipped),
        "precision": sum(hits) / max(1, len(hits)),
        "precision_of_the_first": sum(hits[: len(flipped)]) / len(flipped),
        "recall_at_80_precision": recall_at_precision(hits, len(flipped), 0.8),
        "expected_wrong": found["expected_wrong"],
        "agreement": found["agreement"],
        "recall_at_80_by_given_label": rank_by_given_label(out / "probabilities.npz", flipped),
        "seconds": took,
    }


def rank_by_given_label(path: Path, flipped: set[str]) -> float:
    """Return the recall at 80 % precision of another ranking of all images: by the probability of their label."""
    with np.load(path) as saved:
        order = np.argsort(saved["probabilities"][np.arange(len(saved["labels"])), saved["labels"]], kind="stable")
        hits = [path in flipped for path in saved["paths"][order]]
    return recall_at_precision(hits, len(flipped), 0.8)


def recall_at_precision(hits: Sequence[bool], wrong: int, precision: float) -> float:
    """Return the highest recall among the first n suspects of which at least this share is wrong."""
    counts = np.cumsum(hits)
    enough = counts >= precision * np.arange(1, len(hits) + 1)
    return float(counts[enough].max(initial=0) / wrong)


def call(argv: list[str]) -> None:
    if code := run(argv):
        raise SystemExit(code)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", metavar="NAME=DATA")
    parser.add_argument("--fraction", type=float, default=0.05)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--train-flags", nargs="*", default=[], help="further flags of train, without their dashes")
    parser.add_argument("--runs", type=Path, help="keep the runs and what the doctor writes in this new folder")
    parser.add_argument("--out")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    extra = [part for flag in options.train_flags for part in f"--{flag}".split("=", 1)]
    for named in options.data:
        name, _, source = named.partition("=")
        hashes = hash_data(source)
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as temporary:
                folder = options.runs / f"{name}-{seed}" if options.runs else Path(temporary)
                folder.mkdir(parents=True, exist_ok=True)
                flips, out = folder / "flipped.csv", folder / "run"
                flipped = write_flips(source, options.fraction, seed, flips)
                began = time.perf_counter()
                fixed = ["--val", "none", "--no-test", "--no-report", "--labels", str(flips), "--seed", str(seed)]
                call(["train", source, "--out", str(out), "--minutes", str(options.minutes), *fixed, *extra])
                about = {"data": name, "seed": seed, "training_seconds": time.perf_counter() - began}
                about["data_hashes"] = hashes
                for flags in ([], ["--folds", str(options.folds)]) if options.folds else ([],):
                    rows.append(about | measure(out, flipped, flags))
                    print(rows[-1])
                    command = format_command("label_doctor", options, "runs")
                    write_rows(options.out, "flipped labels found", command, rows)


if __name__ == "__main__":
    main()
