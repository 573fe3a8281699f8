"""IDMM's fine-tuning from random weights, taken literally: files through PIL, fp32, no compilation, timm's network.

    python benchmarks/literal_finetuning.py train=flowers102-train.tar,test=flowers102-test.tar --out found.json

For the question whether a figure that `vitling finetune --preset released` misses is missed by its views and its loop,
or by all that is known of the recipe. Mixing is drawn for each of `--parts` parts of a batch, which on several cards
are what each card has. Test top-1 of the last epoch.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from record import command_of, write_rows
from released_style import BETA, as_files, cutmix, network
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms as T

from vitling import data
from vitling.data.dataset import Dataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY = (128, 128, 128)
TRANSLATE = 150 / 331  # of the side
BICUBIC = T.InterpolationMode.BICUBIC


def _signed(most: float, level: float) -> float:
    return random.choice((-1, 1)) * most * level


def _moved(image: Image.Image, map: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, map, fillcolor=GREY)


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance], image: Image.Image, level: float) -> Image.Image:
    return kind(image).enhance(max(0.1, 1 + _signed(0.9, level)))


def _cutout(image: Image.Image, level: float) -> Image.Image:
    side = round(20 * level)
    left, top = (random.randrange(length) - side // 2 for length in image.size)
    holed = image.copy()
    if side:
        ImageDraw.Draw(holed).rectangle((left, top, left + side - 1, top + side - 1), GREY)
    return holed


OPERATIONS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "invert": lambda image, level: ImageOps.invert(image),
    "cutout": _cutout,
    "sharpness": lambda image, level: _enhanced(ImageEnhance.Sharpness, image, level),
    "autocontrast": lambda image, level: ImageOps.autocontrast(image),
    "posterise": lambda image, level: ImageOps.posterize(image, round(8 - 4 * level)),
    "shear_x": lambda image, level: _moved(image, (1, _signed(0.3, level), 0, 0, 1, 0)),
    "shear_y": lambda image, level: _moved(image, (1, 0, 0, _signed(0.3, level), 1, 0)),
    "translate_x": lambda image, level: _moved(image, (1, 0, _signed(TRANSLATE, level) * image.width, 0, 1, 0)),
    "translate_y": lambda image, level: _moved(image, (1, 0, 0, 0, 1, _signed(TRANSLATE, level) * image.height)),
    "rotate": lambda image, level: image.rotate(30 * level, fillcolor=GREY),
    "equalise": lambda image, level: ImageOps.equalize(image),
    "contrast": lambda image, level: _enhanced(ImageEnhance.Contrast, image, level),
    "saturation": lambda image, level: _enhanced(ImageEnhance.Color, image, level),
    "solarise": lambda image, level: ImageOps.solarize(image, round(256 * (1 - level))),
    "brightness": lambda image, level: _enhanced(ImageEnhance.Brightness, image, level),
}


class Uda:
    """Two operations, each done half of the time, with a strength of 1/9 to 9/9."""

    def __call__(self, image: Image.Image) -> Image.Image:
        for operation in random.choices(list(OPERATIONS.values()), k=2):
            if random.random() < 0.5:
                image = operation(image, random.randint(1, 9) / 9)
        return image


def training_view(size: int) -> T.Compose:
    jitter = T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.4)
    crop = T.RandomResizedCrop(size, interpolation=BICUBIC)
    return T.Compose([crop, jitter, T.RandomGrayscale(0.2), Uda(), T.RandomHorizontalFlip(), *_as_tensor()])


def test_view(size: int) -> T.Compose:
    return T.Compose([T.Resize(size * 8 // 7, BICUBIC), T.CenterCrop(size), *_as_tensor()])


def _as_tensor() -> list[nn.Module | T.ToTensor]:
    return [T.ToTensor(), T.Normalize(MEAN, STD)]


class Files(TorchDataset):
    def __init__(self, images: Dataset, folder: Path, view: T.Compose):
        folder.mkdir()
        self.paths, self.labels, self.view = as_files(images, folder), np.asarray(images.labels), view

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[i]) as file:
            return self.view(file.convert("RGB")), int(self.labels[i])


def mixed(images: Tensor, labels: Tensor, epoch: int) -> tuple[Tensor, Tensor, float]:
    """Even epochs have mixup, odd ones CutMix; the larger share is the image's own."""
    if epoch % 2:
        return cutmix(images, labels)
    share = random.betavariate(BETA, BETA)
    share = max(share, 1 - share)
    partner = torch.randperm(len(images), device=images.device)
    return share * images + (1 - share) * images[partner], labels[partner], share


def rate(epoch: float, epochs: int, peak: float, warm_up: int) -> float:
    """As released, its misplaced parenthesis included; `epoch` with its fraction."""
    if epoch < warm_up:
        return peak * epoch / warm_up
    return peak * 0.5 * (1 + math.cos((math.pi * epoch - warm_up) / (epochs - warm_up)))


def loss_of(model: nn.Module, images: Tensor, labels: Tensor, epoch: int, parts: int, smoothing: float) -> Tensor:
    """The mean over the parts, which have equally many images but for the last."""
    changed = [mixed(i, own, epoch) for i, own in zip(images.chunk(parts), labels.chunk(parts))]
    logits = model(torch.cat([part for part, _, _ in changed])).split([len(part) for part, _, _ in changed])
    losses = []
    for out, own, (_, other, share) in zip(logits, labels.chunk(parts), changed):
        mine, theirs = (F.cross_entropy(out, label, label_smoothing=smoothing) for label in (own, other))
        losses.append(share * mine + (1 - share) * theirs)
    return torch.stack(losses).mean()


def train(options: argparse.Namespace, model: nn.Module, loader: DataLoader) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=1e-3)
    device, steps, done = torch.device(options.device), len(loader), 0
    model.train()
    for epoch in range(options.epochs):
        for images, labels in loader:
            done += 1
            for group in optimiser.param_groups:
                group["lr"] = rate(done / steps, options.epochs, options.lr, options.warm_up)
            images, labels = (part.to(device, non_blocking=True) for part in (images, labels))
            loss = loss_of(model, images, labels, epoch, options.parts, smoothing=0.1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1} of {options.epochs}: loss {loss.item():.3f}", flush=True)


@torch.inference_mode()
def top1(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    right = [(model(images.to(device)).argmax(-1).cpu() == labels).sum().item() for images, labels in loader]
    return sum(right) / len(loader.dataset)  # type: ignore[arg-type]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", metavar="DATA", help="with a test split: train=PATH,test=PATH")
    parser.add_argument("--backbone", default="deit_tiny_patch16_224", help="a ViT, DeiT or PVTv2")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--parts", type=int, default=4, help="of a batch, each with its own mixing")
    parser.add_argument("--lr", type=float, default=5e-4, help="DeiT's; PVTv2 has 1e-3")
    parser.add_argument("--warm-up", type=int, default=2, help="epochs; PVTv2 has 10")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="write what was measured as JSON")
    options = parser.parse_args(argv)
    if not options.backbone.startswith(("vit_", "deit_", "pvt_v2_")):
        parser.error(f"--backbone {options.backbone}: a ViT, DeiT or PVTv2")
    splits, device = data.open(options.data, val="none"), torch.device(options.device)
    if splits.hidden_test is None or splits.train.task != "single":
        parser.error(f"{options.data}: with one label an image, and a test split")
    torch.set_float32_matmul_precision("highest")
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(options.seed)
    model = network(options.backbone, options.size, len(splits.train.class_names)).to(device)
    started = time.perf_counter()
    settings = {"batch_size": options.batch, "num_workers": options.workers, "pin_memory": device.type == "cuda"}
    with tempfile.TemporaryDirectory() as folder:
        train_files = Files(splits.train, Path(folder) / "train", training_view(options.size))
        lasting = {"persistent_workers": options.workers > 0}
        train(options, model, DataLoader(train_files, shuffle=True, worker_init_fn=_seeded, **lasting, **settings))
        test = splits.open_test("the figure")
        accuracy = top1(
            model, DataLoader(Files(test, Path(folder) / "test", test_view(options.size)), **settings), device
        )
    row = {name: value for name, value in vars(options).items() if name not in ("data", "out", "workers", "device")}
    row |= {"top1": 100 * accuracy, "images": len(splits.train), "seconds": time.perf_counter() - started}
    print(row)
    command = command_of("literal_finetuning", options, leaving="workers device")
    write_rows(options.out, (__doc__ or "").splitlines()[0], command, [row])


def _seeded(worker: int) -> None:
    """PIL's operations draw from Python's generator, of which every worker would have the same copy."""
    random.seed(torch.initial_seed() % 2**32)


if __name__ == "__main__":
    main()
