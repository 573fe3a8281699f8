"""Measure calibration, prediction sets and unfamiliar images of a run, and what calibration costs.

    python benchmarks/calibration.py DATA --other camvid=FOLDER cifar=FOLDER --out results/calibration.json

Trains `vitling train DATA` with the default plan, with --calibrate on and off, for each seed. DATA needs a test split.
The accuracies must be equal, apart from the GPU's own noise. Flags after -- go to `train`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import vitling
from vitling import data as datasets
from vitling.evaluation.familiarity import summarise_map
from vitling.evaluation.inputs import Source, find_images, list_dataset_sources, list_sources
from vitling.evaluation.metrics import roc_aucs
from vitling.evaluation.model import Model

COVERAGES = (0.8, 0.9, 0.95)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--other", nargs="*", default=[], metavar="NAME=FOLDER", help="images of other things")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/calibration"))
    parser.add_argument("--out", type=Path, required=True)
    options, flags = parser.parse_known_args()
    rows = [measure_seed(options, seed, [f for f in flags if f != "--"]) for seed in range(options.seeds)]
    options.out.write_text(json.dumps({"command": sys.argv, "rows": rows}, indent=2) + "\n")
    print(json.dumps(rows, indent=2))


def measure_seed(options: argparse.Namespace, seed: int, flags: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"seed": seed}
    for name, calibrate in (("twin", "on"), ("plain", "off")):
        out = options.runs / f"{name}-{seed}"
        command = ["vitling", "train", options.data, "--out", str(out), "--seed", str(seed), "--val", "none"]
        command += ["--calibrate", calibrate]
        subprocess.run([*command, *flags, *(["--resume"] if out.exists() else [])], check=True)
        result = json.loads((out / "result.json").read_text())
        test = result["last"]["test"]
        row[name] = {key: test[key] for key in ("top1", "calibration_error")} | {
            "temperature": result["last"]["temperature"],
            "seconds": result["seconds"],
        }
    model = vitling.load(options.runs / f"twin-{seed}", device="cuda" if torch.cuda.is_available() else "cpu")
    row["sets"] = {str(c): model.evaluate(options.data, coverage=c)["prediction_sets"] for c in COVERAGES}
    return row | {"unfamiliar": measure_unfamiliar(model, options.data, options.other)}


def measure_unfamiliar(model: Model, data: str, others: list[str]) -> dict[str, float]:
    """Measure false alarms on the test split, and AUROC against the images of each other folder."""
    known_distance = model.trust.familiarity
    if known_distance is None:
        return {}
    test = datasets.open(data, val="none").open_test("benchmarks/calibration.py")
    known = measure_distances(model, list_dataset_sources(test))
    found = {"false_alarms": float((known > known_distance.threshold).double().mean())}
    for entry in others:
        name, _, folder = entry.partition("=")
        new = measure_distances(model, list_sources(find_images([folder])))
        labels = torch.cat([torch.zeros(len(known)), torch.ones(len(new))]).bool()[:, None]
        found[name] = float(roc_aucs(torch.cat([known, new])[:, None], labels)[0])
    return found


@torch.inference_mode()
def measure_distances(model: Model, sources: list[Source]) -> torch.Tensor:
    familiarity = model.trust.familiarity
    assert familiarity is not None
    batches = [batch for batch in model.batches(sources) if batch.rows]
    return torch.cat([familiarity.measure(summarise_map(model.backbone(batch.images).grid)) for batch in batches])


if __name__ == "__main__":
    main()
