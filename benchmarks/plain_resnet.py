"""The baseline to beat without a GPU: a plain ResNet-18 with random crops and flips, trained for a given time.

    python benchmarks/plain_resnet.py FOLDER --minutes 3

FOLDER has train/CLASS/ and val/CLASS/. Everything counts: imports, reading the images, training, and the evaluation.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import math
import time

STARTED = time.perf_counter()

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESERVE = 0.03  # of the time, for the evaluation


def train(folder: str, minutes: float, size: int = 64, batch: int = 32, lr: float = 1e-3, seed: int = 0) -> dict:
    """Train for `minutes` and return top-1 accuracy on val, in percent."""
    budget = 60 * minutes * (1 - RESERVE)
    torch.manual_seed(seed)
    images, labels, classes = read(f"{folder}/train", size)
    augment = v2.Compose([v2.RandomResizedCrop(size, (0.35, 1.0), antialias=True), v2.RandomHorizontalFlip()])
    model = resnet18(num_classes=classes)
    optimiser = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.05)
    steps = 0
    while (spent := (time.perf_counter() - STARTED) / budget) < 1:
        for group in optimiser.param_groups:
            group["lr"] = lr * min(1, 20 * spent) * (1 + math.cos(math.pi * spent)) / 2
        chosen = torch.randint(len(images), (batch,))
        views = torch.stack([augment(images[i]) for i in chosen])
        loss = F.cross_entropy(model(normalise(views)), labels[chosen], label_smoothing=0.1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        steps += 1
    images, labels, _ = read(f"{folder}/val", size)
    with torch.no_grad():
        guesses = torch.cat([model.eval()(normalise(part)).argmax(1) for part in images.split(256)])
    top1 = 100 * (guesses == labels).double().mean().item()
    return {"top1": top1, "steps": steps, "seconds": time.perf_counter() - STARTED}


def read(folder: str, size: int) -> tuple[Tensor, Tensor, int]:
    """Read all images, cropped to a square of `size`."""
    square = v2.Compose([v2.Resize(size, antialias=True), v2.CenterCrop(size), v2.PILToTensor()])
    data = ImageFolder(folder, square)
    images, labels = zip(*data)
    return torch.stack(images), torch.tensor(labels), len(data.classes)


def normalise(pixels: Tensor) -> Tensor:
    return v2.functional.normalize(pixels.float() / 255, MEAN, STD)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    print(json.dumps(train(**vars(parser.parse_args()))))
