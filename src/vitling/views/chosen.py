"""An operation for some images of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def whole_batches(tensor: Tensor) -> bool:
    """GPUs, and compiled code, do the same to all images of a batch: to look which want it would make the host wait.
    CPUs have time to look."""
    return tensor.device.type != "cpu" or torch.compiler.is_compiling()


def apply_to(
    images: Tensor, chosen: Tensor, change: Callable[..., Tensor], *per_image: Tensor, owned: bool = False
) -> Tensor:
    """`change(images, *per_image)` for the chosen images [B]; the others stay.

    On GPUs all are changed and the chosen ones kept. CPUs work on the chosen ones alone, and in place where `images` is
    `owned`, that is, nobody else's.
    """
    if whole_batches(images):
        return torch.where(chosen[:, None, None, None], change(images, *per_image), images)
    index = chosen.nonzero()[:, 0]
    if not len(index):
        return images
    changed = change(images[index], *(values[index] for values in per_image))
    return (images if owned else images.clone()).index_copy_(0, index, changed)


def apply_to_few(
    images: Tensor, chosen: Tensor, chance: float, change: Callable[..., Tensor], *per_image: Tensor
) -> Tensor:
    """The same where each image is chosen with a small `chance` and the change is dear.

    GPUs work on a `few` of the batch. More than those would be chosen less than once in a billion batches; the rest
    would be left alone.
    """
    if not whole_batches(images):
        return apply_to(images, chosen, change, *per_image)
    index = few(chosen, chance)
    some = images[index]
    changed = change(some, *(values[index] for values in per_image))
    return images.index_copy(0, index, torch.where(chosen[index][:, None, None, None], changed, some))


def few(chosen: Tensor, chance: float) -> Tensor:
    """Indices, a fixed number of them, the chosen ones first: seven deviations above what is expected."""
    batch = len(chosen)
    enough = math.ceil(batch * chance + 7 * math.sqrt(batch * chance * (1 - chance))) + 1
    return chosen.float().topk(min(batch, enough), sorted=False).indices
