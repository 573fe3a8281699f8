"""Run IDMM's fine-tuning recipe literally from random weights: files through PIL, fp32, no compilation, timm's network.

    python benchmarks/literal_finetuning.py train=flowers102-train.tar,test=flowers102-test.tar --out found.json

If `vitling finetune --preset released` misses a published result, this tells whether vitling's views and loop are the
cause or the recipe itself. A batch is mixed in `--parts` parts, like the images of each GPU in the original. The result
is test top-1 of the last epoch.
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
from record import format_command, hash_data, write_rows
from released_style import BETA, cutmix, make_network, write_files
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms as T

from vitling import data
from vitling.data.dataset import Dataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY = (128, 128, 128)
TRANSLATE = 150 / 331  # largest translation, as a fraction of the side
BICUBIC = T.InterpolationMode.BICUBIC


def _draw_sign(most: float, level: float) -> float:
    return random.choice((-1, 1)) * most * level


def _transform(image: Image.Image, map: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, map, fillcolor=GREY)


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance], image: Image.Image, level: float) -> Image.Image:
    return kind(image).enhance(max(0.1, 1 + _draw_sign(0.9, level)))


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
    "sharpness": lambda image, level: _enhance(ImageEnhance.Sharpness, image, level),
    "autocontrast": lambda image, level: ImageOps.autocontrast(image),
    "posterise": lambda image, level: ImageOps.posterize(image, round(8 - 4 * level)),
    "shear_x": lambda image, level: _transform(image, (1, _draw_sign(0.3, level), 0, 0, 1, 0)),
    "shear_y": lambda image, level: _transform(image, (1, 0, 0, _draw_sign(0.3, level), 1, 0)),
    "translate_x": lambda image, level: _transform(image, (1, 0, _draw_sign(TRANSLATE, level) * image.width, 0, 1, 0)),
    "translate_y": lambda image, level: _transform(image, (1, 0, 0, 0, 1, _draw_sign(TRANSLATE, level) * image.height)),
    "rotate": lambda image, level: image.rotate(30 * level, fillcolor=GREY),
    "equalise": lambda image, level: ImageOps.equalize(image),
    "contrast": lambda image, level: _enhance(ImageEnhance.Contrast, image, level),
    "saturation": lambda image, level: _enhance(ImageEnhance.Color, image, level),
    "solarise": lambda image, level: ImageOps.solarize(image, round(256 * (1 - level))),
    "brightness": lambda image, level: _enhance(ImageEnhance.Brightness, image, level),
}


class Uda:
    """UDA's RandAugment: two operations, each applied with probability 0.5, at a strength of 1/9 to 9/9."""

    def __call__(self, image: Image.Image) -> Image.Image:
        for operation in random.choices(list(OPERATIONS.values()), k=2):
            if random.random() < 0.5:
                image = operation(image, random.randint(1, 9) / 9)
        return image


def make_training_view(size: int) -> T.Compose:
    jitter = T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.4)
    crop = T.RandomResizedCrop(size, interpolation=BICUBIC)
    return T.Compose([crop, jitter, T.RandomGrayscale(0.2), Uda(), T.RandomHorizontalFlip(), *_to_tensor()])


def make_test_view(size: int) -> T.Compose:
    return T.Compose([T.Resize(size * 8 // 7, BICUBIC), T.CenterCrop(size), *_to_tensor()])


def _to_tensor() -> list[nn.Module | T.ToTensor]:
    return [T.ToTensor(), T.Normalize(MEAN, STD)]


class Files(TorchDataset):
    def __init__(self, images: Dataset, folder: Path, view: T.Compose):
        folder.mkdir()
        self.paths, self.labels, self.view = write_files(images, folder), np.asarray(images.labels), view

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[i]) as file:
            return self.view(file.convert("RGB")), int(self.labels[i])


def mix(images: Tensor, labels: Tensor, epoch: int) -> tuple[Tensor, Tensor, float]:
    """Apply mixup in even epochs and CutMix in odd ones; `lam`, the weight of the image itself, is at least 0.5."""
    if epoch % 2:
        return cutmix(images, labels)
    lam = random.betavariate(BETA, BETA)
    lam = max(lam, 1 - lam)
    partner = torch.randperm(len(images), device=images.device)
    return lam * images + (1 - lam) * images[partner], labels[partner], lam


def learning_rate(epoch: float, epochs: int, peak: float, warm_up: int) -> float:
    """Return the released schedule, including its misplaced parenthesis; `epoch` is fractional."""
    if epoch < warm_up:
        return peak * epoch / warm_up
    return peak * 0.5 * (1 + math.cos((math.pi * epoch - warm_up) / (epochs - warm_up)))


def compute_loss(model: nn.Module, images: Tensor, labels: Tensor, epoch: int, parts: int, smoothing: float) -> Tensor:
    """Average the loss over the parts, which have the same size except for the last."""
    mixed = [mix(i, own, epoch) for i, own in zip(images.chunk(parts), labels.chunk(parts))]
    logits = model(torch.cat([part for part, _, _ in mixed])).split([len(part) for part, _, _ in mixed])
    losses = []
    for out, own, (_, other, lam) in zip(logits, labels.chunk(parts), mixed):
        mine, theirs = (F.cross_entropy(out, label, label_smoothing=smoothing) for label in (own, other))
        losses.append(lam * mine + (1 - lam) * theirs)
    return torch.stack(losses).mean()


def train(options: argparse.Namespace, model: nn.Module, loader: DataLoader) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=1e-3)
    device, steps, done = torch.device(options.device), len(loader), 0
    model.train()
    for epoch in range(options.epochs):
        for images, labels in loader:
            done += 1
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(done / steps, options.epochs, options.lr, options.warm_up)
            images, labels = (part.to(device, non_blocking=True) for part in (images, labels))
            loss = compute_loss(model, images, labels, epoch, options.parts, smoothing=0.1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1} of {options.epochs}: loss {loss.item():.3f}", flush=True)


@torch.inference_mode()
def measure_top1(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    correct = [(model(images.to(device)).argmax(-1).cpu() == labels).sum().item() for images, labels in loader]
    return sum(correct) / len(loader.dataset)  # type: ignore[arg-type]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", metavar="DATA", help="images with a test split: train=PATH,test=PATH")
    parser.add_argument("--backbone", default="deit_tiny_patch16_224", help="a ViT, DeiT or PVTv2")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--parts", type=int, default=4, help="parts of a batch that are mixed separately")
    parser.add_argument("--lr", type=float, default=5e-4, help="for DeiT; PVTv2 uses 1e-3")
    parser.add_argument("--warm-up", type=int, default=2, help="epochs, for DeiT; PVTv2 uses 10")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args(argv)
    if not options.backbone.startswith(("vit_", "deit_", "pvt_v2_")):
        parser.error(f"--backbone {options.backbone} is not supported; name a ViT, DeiT or PVTv2")
    splits, device = data.open(options.data, val="none"), torch.device(options.device)
    if splits.hidden_test is None or splits.train.task != "single":
        parser.error(f"{options.data} needs one label per image and a test split")
    torch.set_float32_matmul_precision("highest")
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(options.seed)
    model = make_network(options.backbone, options.size, len(splits.train.class_names)).to(device)
    started = time.perf_counter()
    settings = {"batch_size": options.batch, "num_workers": options.workers, "pin_memory": device.type == "cuda"}
    with tempfile.TemporaryDirectory() as folder:
        train_files = Files(splits.train, Path(folder) / "train", make_training_view(options.size))
        lasting = {"persistent_workers": options.workers > 0}
        train(options, model, DataLoader(train_files, shuffle=True, worker_init_fn=_seed_worker, **lasting, **settings))
        test = splits.open_test("the figure")
        accuracy = measure_top1(
            model, DataLoader(Files(test, Path(folder) / "test", make_test_view(options.size)), **settings), device
        )
    row = {name: value for name, value in vars(options).items() if name not in ("data", "out", "workers", "device")}
    row |= {"top1": 100 * accuracy, "images": len(splits.train), "seconds": time.perf_counter() - started}
    print(row)
    command = format_command("literal_finetuning", options, exclude="workers device")
    hashes = hash_data(options.data)
    write_rows(options.out, (__doc__ or "").splitlines()[0], command, [row], data_hashes=hashes)


def _seed_worker(worker: int) -> None:
    """Seed Python's generator, which PIL's operations draw from: every worker would have the same copy."""
    random.seed(torch.initial_seed() % 2**32)


if __name__ == "__main__":
    main()
