"""Measure calibration, prediction sets and unfamiliar images of a run, and what calibration costs.

    python benchmarks/calibration.py DATA --other camvid=FOLDER --left-out 10 --out results/calibration.json

Trains `vitling train DATA` with the default plan for each seed, three runs at once: with --calibrate on, with it off,
and on without the last --left-out classes. DATA is a folder with train/ and test/. The accuracies of the first two must
be equal, apart from the GPU's own noise; --no-plain skips the second. "unfamiliar" has the false alarms on the test
split and the AUROC against other images; the classes left out are those of the test split. Flags after -- go to
`train`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from record import format_command, hash_data, write_rows
from unfamiliar import measure_unfamiliar

import vitling
from vitling.evaluation.model import Model
from vitling.loading import read_json

COVERAGES = (0.8, 0.9, 0.95, 0.99)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--other", nargs="*", default=[], metavar="NAME=FOLDER", help="images of other things")
    parser.add_argument("--left-out", type=int, default=0, help="classes left out of a third run")
    parser.add_argument("--no-plain", action="store_true", help="skip the run without calibration")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/calibration"))
    parser.add_argument("--out", required=True)
    options, flags = parser.parse_known_args()
    flags = [flag for flag in flags if flag != "--"]
    command = " ".join([format_command("calibration", options, "other runs"), *(["--", *flags] if flags else [])])
    rows = []
    for seed in range(options.seeds):
        rows.append(measure_seed(options, seed, flags))
        print(rows[-1], flush=True)
        write_rows(options.out, "calibration and its cost", command, rows, data_hashes=hash_data(str(options.data)))


def measure_seed(options: argparse.Namespace, seed: int, flags: list[str]) -> dict[str, Any]:
    kept, left_out = split_classes(options.data, options.left_out, options.runs) if options.left_out else (None, None)
    runs = {"twin": (options.data, "on")}
    if not options.no_plain:
        runs["plain"] = (options.data, "off")
    if kept:
        runs["kept"] = (kept, "on")
    started = [
        start_training(data, options.runs / f"{name}-{seed}", seed, ["--calibrate", calibrate, *flags])
        for name, (data, calibrate) in runs.items()
    ]
    if any(process.wait() for process in started):
        raise SystemExit("A run failed.")
    row: dict[str, Any] = {"seed": seed}
    for name in runs:
        result = read_json(options.runs / f"{name}-{seed}" / "result.json")
        test = result["last"]["test"]
        row[name] = {key: test[key] for key in ("top1", "calibration_error")} | {
            "temperature": result["last"]["temperature"],
            **{key: result.get(key) for key in ("seconds", "seconds_compiling", "epochs", "evaluated_at", "stages")},
        }
    model = load(options.runs / f"twin-{seed}")
    row["sets"] = {str(c): model.evaluate(str(options.data), coverage=c)["prediction_sets"] for c in COVERAGES}
    row["unfamiliar"] = summarise(measure_unfamiliar(model, str(options.data), options.other))
    if kept:
        model = load(options.runs / f"kept-{seed}")
        row["left_out"] = summarise(measure_unfamiliar(model, str(kept), [f"left_out={left_out}"]))
    return row


def summarise(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the false alarms, and the AUROC against each kind of other images."""
    return {"false_alarms" if "auroc" not in row else row["images"]: row.get("auroc", row["marked"]) for row in rows}


def start_training(data: Path, out: Path, seed: int, flags: list[str]) -> subprocess.Popen[bytes]:
    command = ["train", str(data), "--out", str(out), "--seed", str(seed), "--val", "none", *flags]
    return subprocess.Popen([sys.executable, "-m", "vitling", *command, *(["--resume"] if out.exists() else [])])


def load(run: Path) -> Model:
    return vitling.load(run, device="cuda" if torch.cuda.is_available() else "cpu")


def split_classes(data: Path, count: int, folder: Path) -> tuple[Path, Path]:
    """Make one folder with train/ and test/ without the last classes, and one with the test images of those."""
    names = sorted(path.name for path in (data / "train").iterdir())
    kept, left_out = folder / "kept", folder / "left-out"
    for split in ("train", "test"):
        for name in names[:-count]:
            link_folder(data / split / name, kept / split / name)
    for name in names[-count:]:
        link_folder(data / "test" / name, left_out / name)
    return kept, left_out


def link_folder(source: Path, target: Path) -> None:
    if not target.exists():
        shutil.copytree(source, target, copy_function=os.link)


if __name__ == "__main__":
    main()
