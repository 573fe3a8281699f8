"""Measure how well a run tells other images from its own test images: AUROC of each signal, and of all together.

    python benchmarks/unfamiliar.py RUN DATA --other camvid=FOLDER cifar=FOLDER --out results/unfamiliar-cpu.json

RUN must have held out images or been trained with --calibrate on. "marked" is the share of images called unfamiliar,
among the test images of DATA a false alarm.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from record import hash_data, write_rows
from torch import Tensor

import vitling
from vitling import data as datasets
from vitling.evaluation.familiarity import Familiarity, summarise_images
from vitling.evaluation.inputs import Source, find_images, list_dataset_sources, list_sources
from vitling.evaluation.metrics import roc_aucs
from vitling.evaluation.model import Model
from vitling.loading import read_json

SIGNALS = ("map", "pixels", "entropy")


def measure_unfamiliar(model: Model, data: str, others: list[str]) -> list[dict[str, Any]]:
    """Return a row for the test images of DATA, and one for each NAME=FOLDER."""
    familiarity = model.trust.familiarity
    if familiarity is None:
        return []
    test = datasets.open(data, val="none").open_test("benchmarks/unfamiliar.py")
    known = measure_signals(model, familiarity, list_dataset_sources(test))
    rows = [{"images": "test", "n": len(known), "marked": measure_marked(familiarity, known)}]
    for entry in others:
        name, _, folder = entry.partition("=")
        new = measure_signals(model, familiarity, list_sources(find_images([folder])))
        row = {"images": name, "n": len(new), "marked": measure_marked(familiarity, new)}
        row["auroc"] = compute_auroc(familiarity.combine(known), familiarity.combine(new))
        rows.append(row | {s: compute_auroc(known[:, i], new[:, i]) for i, s in enumerate(SIGNALS[: new.shape[1]])})
    return rows


@torch.inference_mode()
def measure_signals(model: Model, familiarity: Familiarity, sources: list[Source]) -> Tensor:
    """Compute the signals [N, 3] of all readable images."""
    found = []
    for batch in model.batches(sources):
        if batch.rows:
            images = batch.images.to(model.device)
            features = model.backbone(images)
            logits = model.require_head()(features.pooled.float()) / model.meta.temperature
            found.append(familiarity.measure_signals(summarise_images(images, features.grid), logits))
    return torch.cat(found)


def measure_marked(familiarity: Familiarity, signals: Tensor) -> float:
    return float((familiarity.combine(signals) > familiarity.threshold).double().mean())


def compute_auroc(known: Tensor, new: Tensor) -> float:
    """Return the probability that one of the other images is stranger than one of the known ones."""
    labels = torch.cat([torch.zeros(len(known)), torch.ones(len(new))]).bool()[:, None]
    return float(roc_aucs(torch.cat([known, new])[:, None], labels)[0])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data")
    parser.add_argument("--other", nargs="+", required=True, metavar="NAME=FOLDER", help="images of other things")
    parser.add_argument("--out")
    options = parser.parse_args(argv)
    model = vitling.load(options.run, device="cuda" if torch.cuda.is_available() else "cpu")
    rows, result = measure_unfamiliar(model, options.data, options.other), read_json(options.run / "result.json")
    for row in rows:
        print(row)
    about = {name: result[name] for name in ("backbone", "size", "images", "epochs", "seed", "data_hashes")}
    split = "val" if "val" in result["last"] else "test"
    about |= {"split": split, "top1": result["last"][split]["top1"]}
    about["minutes"] = read_json(options.run / "config.json")["minutes"]
    others = " ".join(f"{entry.partition('=')[0]}=FOLDER" for entry in options.other)
    command = f"python benchmarks/unfamiliar.py RUN DATA --other {others}"
    hashes = hash_data(options.data)
    write_rows(options.out, "unfamiliar images: AUROC", command, rows, data_hashes=hashes, trained=about)


if __name__ == "__main__":
    main()
