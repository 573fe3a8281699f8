"""IDMM's pre-training as its released code does it: image files through PIL in worker processes, fp32, no compilation.

Written from the published facts (crops, colours, CutMix, loss, optimiser), for timing. Where they leave a choice, the
faster one is taken: workers live on between epochs, memory is pinned, the six crops go through the network in one call,
attention is torch's fused kernel, nothing is logged.
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

GLOBAL, LOCAL = (2, (0.14, 1.0)), (4, (0.05, 0.4))  # crops and the share of the image that each keeps
MEAN, STD = (0.485, 0.456, 0.406), (0.228, 0.224, 0.225)  # its red is 0.228
BETA = 0.5


def as_files(images: Dataset, folder: Path) -> list[Path]:
    """A file for each image, with the very bytes that the source has; an image that comes as an array is a PNG."""
    paths = []
    for i in range(len(images)):
        raw = images.read(i)
        paths.append(folder / f"{i:07d}.img")
        paths[-1].write_bytes(raw if isinstance(raw, bytes) else _png(raw))
    return paths


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


class Crops(TorchDataset):
    """Six views of a file, which is decoded each time, and its number."""

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
            T.RandomApply([_Blur()], p=0.5),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )


class _Blur:
    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def network(backbone: str, size: int, classes: int) -> nn.Module:
    """timm's, whose ordinary head is the classifier. ViTs must be told the size of a view; PVTv2 takes any."""
    entry = find_entry(backbone)
    name, arguments = (entry.network, entry.model_args) if entry else (backbone, {})
    sized = {"img_size": size} if backbone.startswith(("vit_", "deit_")) else {}
    return timm.create_model(name, num_classes=classes, drop_path_rate=0.1, **arguments, **sized)


def cutmix(crops: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, float]:
    """One box, one share and one permutation for the group."""
    share = random.betavariate(BETA, BETA)
    share, side = max(share, 1 - share), crops.shape[-1]
    partner = torch.randperm(len(crops), device=crops.device)
    half = int(side * (1 - share) ** 0.5) // 2
    (top, bottom), (left, right) = (_around(random.randrange(side), half, side) for _ in range(2))
    crops[:, :, top:bottom, left:right] = crops[partner, :, top:bottom, left:right]
    return crops, ids[partner], 1 - (bottom - top) * (right - left) / side**2


def _around(middle: int, half: int, side: int) -> tuple[int, int]:
    return max(middle - half, 0), min(middle + half, side)


def loss_of(model: nn.Module, views: list[Tensor], ids: Tensor) -> Tensor:
    """The mean over global crops plus the mean over local ones."""
    groups = torch.cat(views[: GLOBAL[0]]), torch.cat(views[GLOBAL[0] :])
    own = [ids.repeat(count) for count, _ in (GLOBAL, LOCAL)]
    mixed = [cutmix(crops, mine) for crops, mine in zip(groups, own)]
    logits = model(torch.cat([crops for crops, _, _ in mixed])).split([len(crops) for crops in groups])
    losses = [
        share * F.cross_entropy(out, mine) + (1 - share) * F.cross_entropy(out, other)
        for out, mine, (_, other, share) in zip(logits, own, mixed)
    ]
    return losses[0] + losses[1]


def pretrain(
    paths: list[Path], backbone: str, size: int, batch: int, epochs: int, workers: int, device: torch.device
) -> dict[str, Any]:
    """The moment at which each epoch ended, in seconds since the start, and the loss of the last step."""
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
    model = network(backbone, size, len(paths)).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-3)
    for _ in range(epochs):
        for views, ids in loader:
            views = [view.to(device, non_blocking=True) for view in views]
            loss = loss_of(model, views, ids.to(device, non_blocking=True))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        synchronise(device)
        ends.append(time.perf_counter() - started)
    torch.set_float32_matmul_precision(precision)
    return {"ends": ends, "loss": float(loss.detach())}
