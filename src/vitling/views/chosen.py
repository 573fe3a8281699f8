"""An operation for some images of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def apply_to(
    images: Tensor, chosen: Tensor, change: Callable[..., Tensor], *per_image: Tensor, owned: bool = False
) -> Tensor:
    """`change(images, *per_image)` for the chosen images [B]; the others stay.

    On GPUs all are changed and the chosen ones kept: to look which they are would make the host wait. CPUs work on the
    chosen ones alone, and in place where `images` is `owned`, that is, nobody else's.
    """
    if images.device.type != "cpu" or torch.compiler.is_compiling():
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

    GPUs work on a fixed number, the chosen ones first: six deviations above what is expected. More would be chosen once
    in a billion batches; those would be left alone.
    """
    if images.device.type == "cpu" and not torch.compiler.is_compiling():
        return apply_to(images, chosen, change, *per_image)
    batch = len(images)
    enough = min(batch, math.ceil(batch * chance + 6 * math.sqrt(batch * chance * (1 - chance))) + 1)
    index = chosen.float().topk(enough, sorted=False).indices
    some = images[index]
    changed = change(some, *(values[index] for values in per_image))
    return images.index_copy(0, index, torch.where(chosen[index][:, None, None, None], changed, some))
