"""An operation for some images of a batch."""

from __future__ import annotations

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
