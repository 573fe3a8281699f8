"""Loss of the pixel store: crops from it compared with crops from the files, PSNR in dB.

python benchmarks/store_loss.py flowers102-train.tar --out results/store-loss-flowers102.json
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from record import format_command, hash_data, write_rows

from vitling.data.config import DataConfig
from vitling.data.dataset import Dataset
from vitling.data.decode import BadImage, Decoded, decode, squash
from vitling.data.splits import read_splits
from vitling.data.store import choose_size
from vitling.errors import UserError
from vitling.views.draws import Draws
from vitling.views.geometry import crop, random_boxes
from vitling.views.plan import Group, Plan
from vitling.views.policies import make_plan

IMAGES = 64  # images measured, evenly spaced
VIEWS = 4  # crops measured per image and group of views
PLANS = {"224 px": Plan((Group(224),)), "112 px": Plan((Group(112),)), "idmm-pretrain": make_plan("idmm-pretrain")}


@dataclass(frozen=True)
class StoreLoss:
    """Peak signal-to-noise ratio, in dB, of crops from a store of `size` pixels: the mean and the 5 % quantile."""

    size: int
    mean: float
    low: float
    chosen: bool  # the size that `train` would choose


def measure_store_loss(source: str, plan: Plan) -> list[StoreLoss]:
    """Measure the loss of the plan's random crops at several store sizes."""
    dataset = read_splits(source, DataConfig(), needs_train=False).train
    chosen, largest = choose_size(dataset, plan.store_side(len(dataset))), plan.largest
    decoded = _decode_some(dataset)
    usual = (round(largest * factor / 32) * 32 or largest for factor in (1, 8 / 7, 10 / 7, 12 / 7, 2, 16 / 7))
    expected = [[_crop_file(image, i, group) for group in plan.groups] for i, image in enumerate(decoded)]
    losses = []
    for size in sorted({*usual, chosen}):
        ratios = np.concatenate([_measure_psnr(image, i, plan, size, expected[i]) for i, image in enumerate(decoded)])
        losses.append(StoreLoss(size, float(ratios.mean()), float(np.quantile(ratios, 0.05)), size == chosen))
    return losses


def _decode_some(dataset: Dataset) -> list[Decoded]:
    found = []
    for i in np.linspace(0, len(dataset) - 1, min(IMAGES, len(dataset))).astype(int).tolist():
        try:
            image = decode(dataset.read(i))
        except BadImage:
            continue
        if isinstance(image.pixels, Image.Image):
            found.append(image)
    if not found:
        raise UserError("DATA needs colour image files, and none of the sampled files could be read as one.")
    return found


def _draw_boxes(image: Decoded, i: int, group: Group) -> torch.Tensor:
    aspect = torch.full((VIEWS,), image.width / image.height)
    return random_boxes(Draws.from_ids([i], torch.arange(VIEWS)), aspect, group.policy.scale, group.policy.ratio)


def _crop_file(image: Decoded, i: int, group: Group) -> np.ndarray:
    """Crop the decoded file with Pillow: [VIEWS, size, size, 3]."""
    assert isinstance(image.pixels, Image.Image)
    cut, size = [], (group.size, group.size)
    for left, top, width, height in _draw_boxes(image, i, group).tolist():
        right, bottom = min(left + width, 1.0), min(top + height, 1.0)
        box = (left * image.width, top * image.height, right * image.width, bottom * image.height)
        cut.append(np.asarray(image.pixels.resize(size, Image.Resampling.BICUBIC, box=box), dtype=float))
    return np.stack(cut)


def _measure_psnr(image: Decoded, i: int, plan: Plan, size: int, expected: list[np.ndarray]) -> np.ndarray:
    stored, errors = torch.from_numpy(squash(image, size, 3))[None], []
    for group, from_file in zip(plan.groups, expected, strict=True):
        ours = crop(stored, _draw_boxes(image, i, group), group.size, "bicubic").permute(0, 2, 3, 1).double().numpy()
        errors.append(((ours - from_file) ** 2).mean(axis=(1, 2, 3)))
    return 10 * np.log10(255**2 / np.maximum(np.concatenate(errors), 1e-3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", help="a folder of images, a tar, ...")
    parser.add_argument("--out")
    options = parser.parse_args()
    rows = [
        {
            "views": name,
            "store": loss.size,
            "chosen": loss.chosen,
            "psnr": round(loss.mean, 2),
            "worst_in_twenty": round(loss.low, 2),
        }
        for name, plan in PLANS.items()
        for loss in measure_store_loss(options.data, plan)
    ]
    for row in rows:
        print(row)
    hashes, command = hash_data(options.data), format_command("store_loss", options)
    write_rows(options.out, (__doc__ or "").splitlines()[0].rstrip("."), command, rows, data_hashes=hashes)


if __name__ == "__main__":
    main()
