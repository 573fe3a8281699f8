"""Correspondence of regions between an image and its mirrored view (EsViT, Sec. 2.1 and C.7, Fig. 8).

Each region of the first view is matched to its nearest by cosine in the second; the ten most similar pairs count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.backbones.position import Grid
from vitling.errors import UserError
from vitling.evaluation.inputs import Source
from vitling.evaluation.intervals import mean_interval
from vitling.evaluation.model import Model
from vitling.keys import make_key
from vitling.views.colour import draw_jitter, jitter, per_channel, to_grey
from vitling.views.draws import Draws

TOP = 10  # pairs (EsViT, C.7)
# The paper names RandomGrayscale without a probability: the released code makes every second view grey, and 0.2 is the
# probability of its training views.
Grey = Literal["released", "paper"]
_GREY = {"released": 1.0, "paper": 0.2}
_JITTER = (0.4, 0.4, 0.2, 0.1)  # brightness, contrast, saturation, hue, as in the released code


@dataclass(frozen=True)
class Matches:
    """The most similar pairs of regions of each image, best first; all [B, pairs]. A region is row * width + column."""

    first: Tensor
    second: Tensor
    similarity: Tensor
    grid: Grid

    def locate(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Split region numbers into rows and columns."""
        return regions // self.grid[1], regions % self.grid[1]


@dataclass(frozen=True)
class Correspondence:
    accuracy: float  # fraction of the pairs whose second region is the mirror image of the first
    interval: tuple[float, float] | None  # 95 %, from the accuracies of the images: pairs of one are not independent
    distance: float  # mean, in pixels of the view, between that mirror image and the matched region
    images: int
    pairs: int  # per image
    grid: Grid
    size: int
    grey: Grey
    seed: int
    unread: dict[str, str]  # skipped images, with the reason


def compare_regions(first: Tensor, second: Tensor) -> Tensor:
    """Compute the cosine of each region of the first grid [B, D, h, w] and each of the second, [B, T, T']."""
    mine, theirs = (F.normalize(grid.float().flatten(2), dim=1) for grid in (first, second))
    return mine.transpose(1, 2) @ theirs


def match_regions(first: Tensor, second: Tensor, top: int = TOP) -> Matches:
    """Match the grids [B, D, h, w] of two views."""
    best, nearest = compare_regions(first, second).max(dim=2)
    ranked = best.topk(min(top, best.shape[1]), dim=1)
    grid = (first.shape[-2], first.shape[-1])
    return Matches(ranked.indices, nearest.gather(1, ranked.indices), ranked.values, grid)


def measure_mirror_errors(matches: Matches, size: int) -> Tensor:
    """Measure how far each match is from the mirror image of its region, in pixels [B, pairs]."""
    (row, column), (found_row, found_column) = matches.locate(matches.first), matches.locate(matches.second)
    row_error = (row - found_row) * (size / matches.grid[0])
    column_error = (matches.grid[1] - 1 - column - found_column) * (size / matches.grid[1])
    return torch.hypot(row_error, column_error)


def mirror_views(model: Model, images: Tensor, ids: Sequence[int], grey: Grey, seed: int) -> Tensor:
    """Make the second view of normalised images: mirrored, jittered with probability 0.8, and made grey.

    The draws of an image depend on its id and the seed alone. Images with other than 1 or 3 channels are only mirrored.
    """
    images = images.flip(-1)
    if images.shape[1] not in (1, 3):
        return images
    mean, std = (255 * per_channel(values, images.device) for values in (model.meta.mean, model.meta.std))
    draws = Draws.from_ids([make_key("correspondence", seed)], torch.as_tensor(np.asarray(ids), device=images.device))
    pixels = jitter((images * std + mean).clamp(0, 255), *draw_jitter(draws, _JITTER, 0.8))
    return (to_grey(pixels, draws.chance("grey", _GREY[grey])) - mean) / std


@torch.inference_mode()
def measure_correspondence(
    model: Model, sources: Sequence[Source], grey: Grey = "released", seed: int = 0
) -> Correspondence:
    """Run the benchmark over all images that can be read."""
    errors: list[Tensor] = []
    unread: dict[str, str] = {}
    for batch in model.batches(sources):
        unread |= {sources[row].name: why for row, why in batch.errors.items()}
        if not batch.rows:
            continue
        second = mirror_views(model, batch.images, batch.rows, grey, seed)
        grids = model.backbone(torch.cat([batch.images, second])).grid.chunk(2)
        matches = match_regions(*grids)
        errors.append(measure_mirror_errors(matches, model.meta.size).cpu())
    if not errors:
        raise UserError("None of the images can be read.")
    found = torch.cat(errors)
    return Correspondence(
        accuracy=float((found == 0).double().mean()),
        interval=mean_interval((found == 0).double().mean(dim=1).tolist()),
        distance=float(found.double().mean()),
        images=len(found),
        pairs=found.shape[1],
        grid=matches.grid,
        size=model.meta.size,
        grey=grey,
        seed=seed,
        unread=unread,
    )
