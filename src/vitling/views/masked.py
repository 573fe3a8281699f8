"""Operations on some images of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def works_on_whole_batch(tensor: Tensor) -> bool:
    """Return whether operations run on all images of a batch, as on GPUs and in compiled code.

    Selecting images there would make the host wait for the device. On CPUs selecting is cheap.
    """
    return tensor.device.type != "cpu" or torch.compiler.is_compiling()


def per_image(values: Tensor) -> Tensor:
    """Reshape values [B] to [B, 1, 1, 1], to combine them with images."""
    return values[:, None, None, None]


def apply_masked(
    images: Tensor, mask: Tensor, change: Callable[..., Tensor], *others: Tensor, in_place: bool = False
) -> Tensor:
    """Apply `change(images, *others)` to the images in `mask` [B]; `others` have a row per image.

    GPUs change all images and select afterwards. CPUs change only the selected ones, and if `in_place` write them into
    `images`.
    """
    if works_on_whole_batch(images):
        return torch.where(per_image(mask), change(images, *others), images)
    index = mask.nonzero()[:, 0]
    if not len(index):
        return images
    changed = change(images[index], *(values[index] for values in others))
    return (images if in_place else images.clone()).index_copy_(0, index, changed)


def apply_masked_rare(
    images: Tensor, mask: Tensor, chance: float, change: Callable[..., Tensor], *others: Tensor
) -> Tensor:
    """Apply an expensive `change` where each image is in `mask` with a small `chance`.

    GPUs change the images of `select_rare`. A batch with more images in the mask than that, less than one in a billion,
    keeps the rest unchanged.
    """
    if not works_on_whole_batch(images):
        return apply_masked(images, mask, change, *others)
    index = select_rare(mask, chance)
    selected = images[index]
    changed = change(selected, *(values[index] for values in others))
    return images.index_copy(0, index, torch.where(per_image(mask[index]), changed, selected))


def select_rare(mask: Tensor, chance: float) -> Tensor:
    """Select a fixed number of indices, those in `mask` first: seven standard deviations above the expected number."""
    batch = len(mask)
    enough = math.ceil(batch * chance + 7 * math.sqrt(batch * chance * (1 - chance))) + 1
    return mask.float().topk(min(batch, enough), sorted=False).indices
