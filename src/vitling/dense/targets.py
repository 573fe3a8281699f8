"""Annotations that follow the views: boxes and masks on a canvas, computed on the device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from vitling.data.annotations.instances import CROP_SIDE, Instances
from vitling.data.annotations.split import IGNORE, MaskReader
from vitling.data.host import count_cores

MIN_SIDE = 1.0  # canvas pixels; smaller boxes are left out
MIN_VISIBLE = 0.1  # fraction of a box's area that must lie on the canvas


class InstanceTargets:
    """Instances of a split, held on the device. Masks are squares within their own boxes."""

    def __init__(self, instances: Instances, device: torch.device | str):
        counts = np.diff(instances.offsets)
        self.most = int(counts.max(initial=1))  # instances in one image
        self.first, self.counts = (
            torch.from_numpy(some.copy()).to(device) for some in (instances.offsets[:-1], counts)
        )
        kept = ~instances.crowd if len(instances) else np.zeros(1, bool)
        boxes = instances.boxes if len(instances) else np.zeros((1, 4), np.float32)
        classes = instances.classes if len(instances) else np.zeros(1, np.int64)
        self.boxes, self.classes, self.kept = (torch.from_numpy(a.copy()).to(device) for a in (boxes, classes, kept))
        self.masks = None
        if instances.segments is not None:
            crops = instances.crop_masks() if len(instances) else np.zeros((1, CROP_SIDE, CROP_SIDE), np.uint8)
            self.masks = torch.from_numpy(crops).to(device)

    def view(self, ids: Tensor, boxes: Tensor, size: int) -> list[dict[str, Tensor]]:
        """Return the instances that each view shows, in canvas pixels.

        "boxes" are clipped to the canvas, "labels" count from 1 as in torchvision. If there are masks, "masks" are
        uint8 [n, side, side] within "mask_boxes", which are not clipped. Crowds, tiny boxes, and boxes of which little
        is visible are left out.
        """
        rows = self.first[ids][:, None] + torch.arange(self.most, device=ids.device)
        rows = rows.clamp(max=len(self.boxes) - 1)
        valid = torch.arange(self.most, device=ids.device) < self.counts[ids][:, None]
        placed = place_boxes(self.boxes[rows], boxes[:, None], size)
        clipped = placed.clamp(0, size)
        sides, whole = clipped[..., 2:] - clipped[..., :2], placed[..., 2:] - placed[..., :2]
        visible = sides.prod(dim=-1) >= MIN_VISIBLE * whole.prod(dim=-1)
        shown = valid & self.kept[rows] & visible & (sides >= MIN_SIDE).all(dim=-1)
        numbers = shown.sum(dim=1).tolist()  # the only point at which the host waits
        image, place = shown.nonzero(as_tuple=True)
        rows = rows[image, place]
        fields = {"boxes": clipped[image, place], "labels": self.classes[rows] + 1}
        if self.masks is not None:
            mirrored = boxes[image, 2] < 0
            masks = self.masks[rows]
            fields["masks"] = torch.where(mirrored[:, None, None], masks.flip(2), masks)
            fields["mask_boxes"] = placed[image, place]
        split = {name: values.split(numbers) for name, values in fields.items()}
        return [{name: values[i] for name, values in split.items()} for i in range(len(numbers))]


def place_boxes(boxes: Tensor, views: Tensor, size: int) -> Tensor:
    """Convert boxes (left, top, right, bottom) in fractions of the image to pixels of a view of `Views.boxes`."""
    corners = (boxes.unflatten(-1, (2, 2)) - views[..., None, :2]) / views[..., None, 2:] * size
    return torch.cat([corners.amin(dim=-2), corners.amax(dim=-2)], dim=-1)


class MaskTargets:
    """Semantic masks of a split, uint8 [N, S, S], squashed like the images; on the device, or in host memory if they do
    not fit, for which the device waits at every step."""

    def __init__(self, masks: Tensor):
        self.masks = masks

    def view(self, ids: Tensor, boxes: Tensor, size: int) -> Tensor:
        """Return the class of each pixel of the views, int64 [B, size, size]; IGNORE outside of the image."""
        side = self.masks.shape[-1]
        centres = (torch.arange(size, device=boxes.device) + 0.5) / size
        along = boxes[:, :2, None] + boxes[:, 2:, None] * centres  # x and y, [B, 2, size]
        inside = (along >= 0) & (along <= 1)
        x, y = (along * side).long().clamp(0, side - 1).unbind(1)
        masks = self.masks
        if masks.device != ids.device:
            masks = masks[ids.cpu()].to(ids.device)
            ids = torch.arange(len(ids), device=ids.device)
        found = masks[ids[:, None, None], y[:, :, None], x[:, None, :]].long()
        return torch.where(inside[:, 1, :, None] & inside[:, 0, None, :], found, IGNORE)


def squash_masks(read_mask: MaskReader, images: int, side: int) -> np.ndarray:
    """Read semantic masks and resample each to side x side by its nearest pixels, uint8 [images, side, side]."""
    squashed = np.empty((images, side, side), np.uint8)

    def squash(i: int) -> None:
        mask = read_mask(i)
        y, x = (((np.arange(side) + 0.5) * length / side).astype(np.int64) for length in mask.shape)
        squashed[i] = mask[y[:, None], x[None, :]]

    with ThreadPoolExecutor(count_cores()) as pool:
        list(pool.map(squash, range(images)))
    return squashed
