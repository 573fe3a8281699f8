"""Let Mask R-CNN, its cascade and UPerNet learn ten images by heart: AP50 and mIoU on those images must exceed 0.8.

    python benchmarks/dense_overfit.py --coco coco50.tar --camvid camvid.tar --out results/dense-overfit-h200.json

Every model starts from random weights and sees whole images without augmentation. A model that cannot do this has a bug
in its targets, its loss or its inference.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import format_command, write_rows

from vitling.backbones.backbone import create
from vitling.data.annotations.config import AnnotationConfig
from vitling.data.annotations.open import open_annotated
from vitling.data.annotations.split import AnnotatedSplit, DenseTask
from vitling.data.store import Store, build_store
from vitling.runs.dense import make_meta
from vitling.runs.dense_evaluation import evaluate_store
from vitling.runs.dense_images import make_targets, match_store
from vitling.runs.dense_model import DenseModel, build_objective
from vitling.runs.dense_pictures import draw_worst
from vitling.settings.dense import DenseConfig, DetectConfig, SegmentConfig
from vitling.settings.facts import Facts
from vitling.settings.resolve import resolve
from vitling.training.config import FitConfig, LoopConfig, OptimConfig
from vitling.training.loop import fit
from vitling.training.processes import Processes, choose_device
from vitling.training.rundir import RunDirectory

MODELS = ("mask-rcnn", "cascade", "upernet")
IMAGES, GOAL = 10, 0.8
CAMVID_IGNORE = 11  # unlabelled pixels in camvid.tar


def make_config(model: str, options: argparse.Namespace) -> DenseConfig:
    """Return settings without augmentation."""
    size, shared = options.size, {"backbone": options.backbone, "size": options.size, "flip": 0.0, "freeze": 0}
    shared["width"] = options.width
    request: DenseConfig
    if model == "upernet":
        request = SegmentConfig(**shared, scale=(1.0, 1.0), colour=False)
    else:
        request = DetectConfig(**shared, model=model, shorter=(size, size), longest=size)  # type: ignore[arg-type]
    return replace(resolve(request, Facts(IMAGES, side=size)).config, drop_path=0.0)


def open_images(model: str, options: argparse.Namespace, device: torch.device) -> tuple[AnnotatedSplit, Store]:
    """Open the first images of the training split that have annotations."""
    task: DenseTask = "segment" if model == "upernet" else "detect"
    source = options.camvid if task == "segment" else options.coco
    annotations = AnnotationConfig(ignore_index=options.ignore_index if task == "segment" else None)
    split = open_annotated(source, task, annotations, needs_train=False)["train"]
    assert split is not None
    assert split.counts is not None
    used = np.flatnonzero(split.counts.sum(axis=1) > 0)[: options.images]
    split = split.take(used)
    store = build_store(split.dataset, options.size, device=device, use_cache=False)
    return match_store(split, store), store


def overfit(model: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train on a few images and evaluate on the same."""
    config, (split, store) = make_config(model, options), open_images(model, options, device)
    torch.manual_seed(options.seed)
    backbone = create(config.backbone or "", config.size)
    meta = make_meta(config, split, store)
    plan, targets = config.make_views(options.size), make_targets(config, split, store)
    objective = build_objective(backbone, plan, meta, targets)
    batch = min(options.batch, len(store))
    epochs = max(1, round(options.steps * batch / len(store)))
    optim = OptimConfig(lr=options.lr, weight_decay=0.0, warmup_epochs=epochs / 20, clip=1.0)
    loop = LoopConfig(device=str(device), compile=options.compile, trackers=("none",))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fitted = fit(
            objective,
            store,
            FitConfig(epochs, batch, options.seed, optim, loop),
            run=RunDirectory(folder, writes=False),
            processes=Processes(0, 1, device),
        )
    seconds = time.monotonic() - began
    scores = evaluate_store(DenseModel(objective.eval(), meta), store, split)
    if options.pictures:
        draw_worst(Path(options.pictures), scores, split, model, meta.data)
    key = "mean_iou" if model == "upernet" else "box_ap50"
    return {
        "model": model,
        "backbone": config.backbone,
        "images": len(store),
        "steps": fitted.steps,
        "seconds": round(seconds, 1),
        "passes": (scores.metrics[key] or 0.0) > GOAL,
        **{name: None if value is None else round(value, 4) for name, value in scores.metrics.items()},
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coco", default="coco50.tar", help="data with boxes and masks")
    parser.add_argument("--camvid", default="camvid.tar", help="data with semantic masks")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--backbone", default="pvt_v2_b0")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--size", type=int, default=512, help="side of the canvas in px")
    parser.add_argument(
        "--width", type=int, help="channels of the heads; by default 512 for UPerNet, 256 for detectors"
    )
    parser.add_argument("--ignore-index", type=int, default=CAMVID_IGNORE, help="mask value without a class")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=IMAGES)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", default="off", choices=("off", "on", "blocks", "views"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pictures", help="folder for pictures of the worst images")
    parser.add_argument("--out")
    options = parser.parse_args(arguments)
    device, rows = choose_device(options.device), []
    for model in options.models:
        rows.append(overfit(model, options, device))
        figures = " ".join(f"{k} {v:.3f}" for k, v in rows[-1].items() if isinstance(v, float) and k != "seconds")
        print(f"{model}: {'passes' if rows[-1]['passes'] else 'FAILS'}; {figures}; {rows[-1]['seconds']} s", flush=True)
        command = format_command("dense_overfit", options, exclude="coco camvid device pictures")
        write_rows(options.out, "training on ten images and evaluation on the same", command, rows, goal=GOAL)


if __name__ == "__main__":
    main()
