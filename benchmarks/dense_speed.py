"""Measure training steps of vitling's detectors beside torchvision's maskrcnn_resnet50_fpn, in images per second.

    python benchmarks/dense_speed.py coco50.tar --out results/dense-speed-h200.json

All train on the same images with masks, resized so that the shorter side is --shorter and the longer at most --longest.
torchvision gets decoded images and full-size masks that are on the device already, without augmentation, once in
float32 and once under bf16 autocast, which vitling uses; SGD as in its reference. vitling's steps include rendering its
views and AdamW. torchvision pads a batch to its largest sides, vitling to a square.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from record import format_command, write_rows
from torch import Tensor

from vitling.backbones.backbone import create
from vitling.console import Log
from vitling.data.annotations.open import open_annotated
from vitling.data.annotations.rle import decode_mask
from vitling.data.annotations.split import AnnotatedSplit
from vitling.data.decode import decode
from vitling.data.store import build_store
from vitling.runs.dense import make_meta
from vitling.runs.dense_images import make_targets, match_store
from vitling.runs.dense_model import build_objective, to_picture
from vitling.settings.dense import DetectConfig
from vitling.settings.facts import Facts
from vitling.settings.resolve import resolve
from vitling.training.config import FitConfig, LoopConfig, OptimConfig
from vitling.training.pace import measure_pace, synchronise
from vitling.training.processes import Processes, choose_device

REFERENCE = "torchvision maskrcnn_resnet50_fpn"
Targets = dict[str, Tensor]


def open_images(options: argparse.Namespace) -> AnnotatedSplit:
    split = open_annotated(options.data, "detect", needs_train=False)["train"]
    assert split is not None
    assert split.instances is not None
    return split.take(np.flatnonzero(np.diff(split.instances.offsets) > 0))


def measure_vitling(
    backbone: str, model: str, split: AnnotatedSplit, options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """Measure whole training steps: views, targets, network, update."""
    size = -(-options.longest // 32) * 32
    request = DetectConfig(
        backbone=backbone,
        model=model,  # type: ignore[arg-type]
        size=size,
        shorter=(options.shorter, options.shorter),
        longest=options.longest,
        freeze=0,
    )
    config = replace(resolve(request, Facts(len(split), side=size)).config, batch=options.batch)
    store = build_store(split.dataset, min(size, options.store_size), device=device, use_cache=False)
    split = match_store(split, store)
    torch.manual_seed(0)
    meta, targets = make_meta(config, split, store), make_targets(config, split, store)
    objective = build_objective(create(backbone, size), config.make_views(size), meta, targets)
    loop = LoopConfig(device=str(device), compile=options.compile)
    fit_config = FitConfig(100, min(options.batch, len(store)), 0, OptimConfig(lr=1e-4), loop)
    reset_peak(device)
    pace, how = measure_pace(objective, store, fit_config, Processes(0, 1, device), Log(silent=True))
    return {"model": f"vitling {model}", "backbone": backbone, "compile": how, **describe(pace, device)}


def measure_torchvision(
    autocast: bool, split: AnnotatedSplit, options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """Measure torchvision's training steps on images that are on the device."""
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    torch.set_float32_matmul_precision("high")
    network: Any = maskrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=len(split.class_names) + 1,
        min_size=options.shorter,
        max_size=options.longest,
    )
    network.to(device).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    prepared = [load_pair(split, i, device) for i in range(len(split))]
    batches = itertools.cycle(
        [prepared[start : start + options.batch] for start in range(0, len(prepared), options.batch)]
    )

    def step() -> int:
        images, targets = zip(*next(batches))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
            losses = network(list(images), list(targets))
        optimiser.zero_grad(set_to_none=True)
        sum(losses.values()).backward()
        optimiser.step()
        return len(images)

    reset_peak(device)
    for _ in range(options.warmup):
        step()
    synchronise(device)
    began, images = time.perf_counter(), 0
    for _ in range(options.steps):
        images += step()
    synchronise(device)
    pace = images / (time.perf_counter() - began)
    precision = "bf16" if autocast else "fp32"
    return {"model": REFERENCE, "backbone": "resnet50", "precision": precision, **describe(pace, device)}


def load_pair(split: AnnotatedSplit, i: int, device: torch.device) -> tuple[Tensor, Targets]:
    """Load an image and its instances as torchvision takes them."""
    assert split.instances is not None
    assert split.instances.segments is not None
    pixels = np.asarray(to_picture(decode(split.dataset.read(i)).pixels))
    own = split.instances.take([i])
    height, width = pixels.shape[:2]
    boxes = torch.from_numpy(own.boxes * np.array([width, height, width, height], np.float32))
    kept = torch.from_numpy(~own.crowd) & (boxes[:, 2:] > boxes[:, :2] + 1).all(dim=1)
    masks = torch.stack([torch.from_numpy(decode_mask(one)) for one in own.segments or []])
    targets = {"boxes": boxes[kept], "labels": torch.from_numpy(own.classes)[kept] + 1, "masks": masks[kept]}
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
    return image.to(device), {name: value.to(device) for name, value in targets.items()}


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def describe(pace: float, device: torch.device) -> dict[str, Any]:
    peak = round(torch.cuda.max_memory_allocated(device) / 1e9, 2) if device.type == "cuda" else None
    return {"images_per_second": round(pace, 2), "peak_gb": peak}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="data with boxes and masks, such as coco50.tar")
    parser.add_argument("--backbones", nargs="*", default=["resnet50", "swin_tiny_patch4_window7_224", "pvt_v2_b0"])
    parser.add_argument("--models", nargs="+", default=["mask-rcnn"], choices=("mask-rcnn", "cascade"))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--shorter", type=int, default=800)
    parser.add_argument("--longest", type=int, default=1333)
    parser.add_argument("--store-size", type=int, default=640, help="side of the decoded images in px")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", default="on", choices=("off", "on", "blocks", "views"))
    parser.add_argument("--no-torchvision", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out")
    options = parser.parse_args(arguments)
    device, split, rows = choose_device(options.device), open_images(options), list[dict[str, Any]]()
    command = format_command("dense_speed", options, exclude="device")
    measures = (
        []
        if options.no_torchvision
        else [lambda a=a: measure_torchvision(a, split, options, device) for a in (False, True)]
    )
    measures += [
        lambda b=b, m=m: measure_vitling(b, m, split, options, device)
        for b in options.backbones
        for m in options.models
    ]
    for measure in measures:
        rows.append(measure())
        row = rows[-1]
        how = row.get("precision") or f"compile {row['compile']}"
        memory = "" if row["peak_gb"] is None else f", {row['peak_gb']} GB"
        print(f"{row['model']}, {row['backbone']}, {how}: {row['images_per_second']} images/s{memory}", flush=True)
        write_rows(options.out, "training steps of detectors", command, rows)


if __name__ == "__main__":
    main()
