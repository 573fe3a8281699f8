"""IDMM's pre-training in the style of its released code: files through PIL in worker processes, fp32, no compilation.

Written from the published facts (crops, colours, CutMix, loss, optimiser), for timing. Where they leave a choice, the
faster one is taken: workers persist between epochs, memory is pinned, the six crops share one forward pass, attention
uses torch's fused kernel, nothing is logged.
"""

from __future__ import annotations

import io
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms as T

from vitling.backbones.names import find_entry
from vitling.data.dataset import Dataset
from vitling.training.pace import synchronise

GLOBAL, LOCAL = (2, (0.14, 1.0)), (4, (0.05, 0.4))  # number of crops, and the range of their area
MEAN, STD = (0.485, 0.456, 0.406), (0.228, 0.224, 0.225)  # 0.228 as in the released code, not ImageNet's 0.229
BETA = 0.5


def write_files(images: Dataset, folder: Path) -> list[Path]:
    """Write each image to a file, with the bytes of the source; arrays become PNGs."""
    paths = []
    for i in range(len(images)):
        raw = images.read(i)
        paths.append(folder / f"{i:07d}.img")
        paths[-1].write_bytes(raw if isinstance(raw, bytes) else _encode_png(raw))
    return paths


def _encode_png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


class Crops(TorchDataset):
    """Six views of a file, which is decoded every time, and its index."""

    def __init__(self, paths: list[Path], size: int):
        self.paths = paths
        self.transforms = [t for count, scale in (GLOBAL, LOCAL) for t in [_transform(size, scale)] * count]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[list[Tensor], int]:
        with Image.open(self.paths[i]) as file:
            image = file.convert("RGB")
        return [transform(image) for transform in self.transforms], i


def _transform(size: int, scale: tuple[float, float]) -> T.Compose:
    return T.Compose(
        [
            T.RandomResizedCrop(size, scale=scale),
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            T.RandomGrayscale(p=0.2),
            T.RandomApply([PilBlur((0.1, 2.0))], p=0.5),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )


class PilBlur:
    def __init__(self, radius: tuple[float, float]):
        self.radius = radius

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(*self.radius)))


def make_network(backbone: str, size: int, classes: int) -> nn.Module:
    """Create timm's network with its head as the classifier. ViTs need the size of a view; PVTv2 takes any."""
    entry = find_entry(backbone)
    name, arguments = (entry.network, entry.model_args) if entry else (backbone, {})
    sized = {"img_size": size} if backbone.startswith(("vit_", "deit_")) else {}
    return timm.create_model(name, num_classes=classes, drop_path_rate=0.1, **arguments, **sized)


def cutmix(crops: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, float]:
    """Apply CutMix in place with one box and one permutation for the group; return crops, partners' ids and lam."""
    lam = random.betavariate(BETA, BETA)
    lam, side = max(lam, 1 - lam), crops.shape[-1]
    partner = torch.randperm(len(crops), device=crops.device)
    half = int(side * (1 - lam) ** 0.5) // 2
    (top, bottom), (left, right) = (_clip_span(random.randrange(side), half, side) for _ in range(2))
    crops[:, :, top:bottom, left:right] = crops[partner, :, top:bottom, left:right]
    return crops, ids[partner], 1 - (bottom - top) * (right - left) / side**2


def _clip_span(middle: int, half: int, side: int) -> tuple[int, int]:
    return max(middle - half, 0), min(middle + half, side)


def compute_loss(model: nn.Module, views: list[Tensor], ids: Tensor) -> Tensor:
    """Add the mean loss of global crops and the mean loss of local ones."""
    groups = torch.cat(views[: GLOBAL[0]]), torch.cat(views[GLOBAL[0] :])
    own = [ids.repeat(count) for count, _ in (GLOBAL, LOCAL)]
    mixed = [cutmix(crops, mine) for crops, mine in zip(groups, own)]
    logits = model(torch.cat([crops for crops, _, _ in mixed])).split([len(crops) for crops in groups])
    losses = [
        lam * F.cross_entropy(out, mine) + (1 - lam) * F.cross_entropy(out, other)
        for out, mine, (_, other, lam) in zip(logits, own, mixed)
    ]
    return losses[0] + losses[1]


def pretrain(
    paths: list[Path], backbone: str, size: int, batch: int, epochs: int, workers: int, device: torch.device
) -> dict[str, Any]:
    """Train, and return when each epoch ended, in seconds since the start, and the last loss."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # torch's default: no TF32 in matrix products
    started, ends = time.perf_counter(), []
    loader = DataLoader(
        Crops(paths, size),
        batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )
    model = make_network(backbone, size, len(paths)).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-3)
    for _ in range(epochs):
        for views, ids in loader:
            views = [view.to(device, non_blocking=True) for view in views]
            loss = compute_loss(model, views, ids.to(device, non_blocking=True))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        synchronise(device)
        ends.append(time.perf_counter() - started)
    torch.set_float32_matmul_precision(precision)
    return {"ends": ends, "loss": float(loss.detach())}
