"""Predictions for whole images of a store: from the canvas back to each original."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.data.annotations.rle import RLE, write_runs
from vitling.data.store import Store
from vitling.dense.detection import DetectionObjective
from vitling.dense.detections import Detections
from vitling.dense.segmentation import SegmentationObjective
from vitling.views.geometry import crop
from vitling.views.renderer import Normaliser

BATCH = 8  # images
MAX_SCORES = 5e8  # in memory at once; limits a batch, and of an original with more, classes are enlarged


@dataclass(frozen=True)
class WholeView:
    """Size at which a network sees a whole image, keeping its aspect ratio."""

    shorter: float
    """Pixels of the shorter side."""
    longest: float
    """Most pixels of the longer side."""

    def measure(self, aspect: float) -> tuple[int, int]:
        """Return height and width in pixels of an image of `aspect` = width / height."""
        shorter = min(self.shorter, self.longest / max(aspect, 1 / aspect))
        return max(1, round(shorter * max(1, 1 / aspect))), max(1, round(shorter * max(1, aspect)))


def render_whole(pixels: Tensor, sides: tuple[int, int], normalise: Normaliser) -> Tensor:
    """Resize stored images to `sides` (height, width)."""
    (height, width), size = sides, max(sides)
    boxes = torch.tensor([(0.0, 0.0, size / width, size / height)] * len(pixels), device=pixels.device)
    return normalise(crop(pixels, boxes, size, "bilinear", outside=True))[:, :, :height, :width]


@torch.inference_mode()
def segment_images(
    objective: SegmentationObjective,
    store: Store,
    view: WholeView,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the id and the class of each pixel, uint8 [H, W] at the original size, of all images of a store.

    Images are grouped by their size, so that what a network sees does not depend on other images.
    """
    objective.eval()
    normalise, sizes = Normaliser(store.mean, store.std), list_sizes(store)
    largest = objective.classes * max(scales) ** 2 * view.shorter * min(view.longest, 4 * view.shorter)
    for ids in _group_by_sides(sizes, view, max(1, min(BATCH, int(MAX_SCORES / largest)))):
        pixels, base = store.fetch(ids), view.measure(sizes[ids[0]][1] / sizes[ids[0]][0])
        scores = torch.zeros((), device=pixels[0].device)
        for scale in scales:
            sides = (max(1, round(base[0] * scale)), max(1, round(base[1] * scale)))
            images = render_whole(pixels[0], sides, normalise)
            for mirrored in (False, True) if flip else (False,):
                with autocast(images.device):
                    logits = objective.predict(images.flip(3) if mirrored else images)
                probabilities = F.softmax(logits.flip(3) if mirrored else logits, dim=1)
                scores = scores + F.interpolate(probabilities, size=base, mode="bilinear", align_corners=False)
        for i, some in zip(ids.tolist(), scores):
            yield i, _enlarge_classes(some, sizes[i])


@torch.inference_mode()
def detect_images(
    objective: DetectionObjective, store: Store, view: WholeView, batch: int = BATCH
) -> Iterator[tuple[int, Detections]]:
    """Yield the id and the detections, in pixels of the original, of all images of a store.

    Images are grouped by their size, so that what a network sees does not depend on other images.
    """
    objective.eval()
    normalise, sizes = Normaliser(store.mean, store.std), list_sizes(store)
    for ids in _group_by_sides(sizes, view, batch):
        sides = view.measure(sizes[ids[0]][1] / sizes[ids[0]][0])
        images = render_whole(store.fetch(ids)[0], sides, normalise)
        with autocast(images.device):
            found = objective.predict(images, [sides] * len(ids))
        for i, some in zip(ids.tolist(), found):
            yield i, restore_detections(some, sides, sizes[i])


def restore_detections(found: dict[str, Tensor], side: tuple[int, int], size: tuple[int, int]) -> Detections:
    """Convert an image's detections from `side` (height, width) on the canvas to its original `size`."""
    scale = torch.tensor([size[1] / side[1], size[0] / side[0]] * 2)
    boxes = (found["boxes"].float().cpu() * scale).numpy()
    masks = None
    if "masks" in found:
        probabilities = found["masks"].float().cpu().numpy()
        masks = [paste_mask(some, box, size) for some, box in zip(probabilities, boxes)]
    return Detections(boxes, found["scores"].float().cpu().numpy(), found["labels"].cpu().numpy() - 1, masks)


def paste_mask(probabilities: np.ndarray, box: np.ndarray, size: tuple[int, int]) -> RLE:
    """Resize a mask [n, n] bilinearly to its box and encode it in an image of `size` = (height, width)."""
    height, width = size
    left, top, right, bottom = box.tolist()
    y, first_row = _sample_line(top, bottom, height, len(probabilities))
    x, first_column = _sample_line(left, right, width, len(probabilities))
    columns = np.zeros((len(x), height), bool)  # the mask's own columns, at full height
    columns[:, first_row : first_row + len(y)] = (y @ probabilities @ x.T).T > 0.5
    flat = np.concatenate([[False], columns.ravel(), [False]])
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + first_column * height
    return write_runs(np.diff(np.concatenate([[0], edges, [height * width]])), height, width)


def _sample_line(start: float, stop: float, length: int, cells: int) -> tuple[np.ndarray, int]:
    """Return the weights [pixels, cells] of the pixels whose centres lie between two places, and the first pixel."""
    first, last = max(0, int(np.ceil(start - 0.5))), min(length, int(np.ceil(stop - 0.5)))
    centres = (np.arange(first, max(first, last)) + 0.5 - start) / max(stop - start, 1e-6) * cells
    place = np.clip(centres - 0.5, 0, cells - 1)
    return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(cells))), first


def _group_by_sides(sizes: Sequence[tuple[int, int]], view: WholeView, batch: int) -> Iterator[np.ndarray]:
    groups: dict[tuple[int, int], list[int]] = {}
    for i, (height, width) in enumerate(sizes):
        groups.setdefault(view.measure(width / height), []).append(i)
    for members in groups.values():
        yield from (np.array(members[start : start + batch]) for start in range(0, len(members), batch))


def _enlarge_classes(scores: Tensor, size: tuple[int, int]) -> np.ndarray:
    """Resize scores [K, h, w] to an original's size and return the best class of each pixel."""
    height, width = size
    if len(scores) * height * width > MAX_SCORES:
        best = scores.argmax(dim=0)[None, None].to(torch.uint8)
        return F.interpolate(best, size=size, mode="nearest")[0, 0].cpu().numpy()
    enlarged = F.interpolate(scores[None], size=size, mode="bilinear", align_corners=False)[0]
    return enlarged.argmax(dim=0).to(torch.uint8).cpu().numpy()


def list_sizes(store: Store) -> list[tuple[int, int]]:
    """List height and width of the originals."""
    return list(zip(store.facts.height.tolist(), store.facts.width.tolist()))


def autocast(device: torch.device) -> AbstractContextManager:
    """Compute in bf16 on GPUs that support it."""
    enabled = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)
