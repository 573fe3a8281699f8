"""Copy-paste (Ghiasi et al., 2021): some objects of another image of the batch are pasted onto each image."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import roi_align

from vitling.dense.mask_rcnn import Targets
from vitling.dense.targets import MIN_SIDE
from vitling.views.draws import Draws

MIN_LEFT = 0.1  # fraction of an object's mask that must remain visible


def copy_paste(pixels: Tensor, targets: Targets, draws: Draws, chance: float) -> tuple[Tensor, Targets]:
    """Paste onto each image, with `chance`, each object of the image after it in the batch with a chance of one half.

    Objects that are covered keep the rest of their mask and the box around it; those of which little remains are left
    out. Targets are those of `InstanceTargets.view` with masks. An image that is alone in its batch stays as it is.
    """
    if len(targets) < 2:
        return pixels, targets
    size, most = pixels.shape[-1], max(len(target["labels"]) for target in targets)
    chosen = draws.uniform("copy-paste objects", most) < 0.5
    chosen &= draws.chance("copy-paste", chance)[:, None]
    pasted, changed = [], []
    for i, own in enumerate(targets):
        j = (i + 1) % len(targets)
        picked = chosen[i, : len(targets[j]["labels"])].nonzero()[:, 0]
        others = {name: values[picked] for name, values in targets[j].items()}
        cover = spread_masks(others["masks"], others["mask_boxes"], size).any(dim=0)
        pasted.append(torch.where(cover, pixels[j], pixels[i]))
        uncovered = uncover(own, cover)
        changed.append({name: torch.cat([uncovered[name], others[name]]) for name in own})
    return torch.stack(pasted), changed


def spread_masks(masks: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Resize masks [n, side, side] to their boxes on a canvas, bool [n, size, size]."""
    side = masks.shape[-1]
    centres = torch.arange(size, device=boxes.device) + 0.5
    cells = torch.arange(side, device=boxes.device)

    def weigh(start: Tensor, stop: Tensor) -> Tensor:
        place = (centres - start[:, None]) / (stop - start)[:, None] * side
        inside = (place >= 0) & (place <= side)
        near = (place - 0.5).clamp(0, side - 1)[:, :, None] - cells
        return (1 - near.abs()).clamp(min=0) * inside[:, :, None]

    y, x = weigh(boxes[:, 1], boxes[:, 3]), weigh(boxes[:, 0], boxes[:, 2])
    return y @ masks.float() @ x.mT > 0.5


def uncover(target: dict[str, Tensor], cover: Tensor) -> dict[str, Tensor]:
    """Remove what `cover`, bool [size, size], hides from an image's instances."""
    masks, places = target["masks"], target["mask_boxes"]
    if not len(masks):
        return target
    side, size = masks.shape[-1], cover.shape[-1]
    rows = torch.cat([torch.zeros_like(places[:, :1]), places], dim=1)
    canvas = torch.stack([torch.ones_like(cover), ~cover])[None].float()
    before, visible = (roi_align(canvas, rows, side, sampling_ratio=1, aligned=True) > 0.5).unbind(1)
    whole, left = masks * before, masks * visible  # on the canvas
    touched = (left != whole).flatten(1).any(dim=1)
    boxes = torch.where(touched[:, None], _find_boxes(left, places).clamp(0, size), target["boxes"])
    remains = left.flatten(1).sum(dim=1) >= MIN_LEFT * whole.flatten(1).sum(dim=1)
    masks = torch.where(touched[:, None, None], left, masks)
    kept = remains & ((boxes[:, 2:] - boxes[:, :2]) >= MIN_SIDE).all(dim=1)
    return {"boxes": boxes[kept], "labels": target["labels"][kept], "masks": masks[kept], "mask_boxes": places[kept]}


def _find_boxes(masks: Tensor, places: Tensor) -> Tensor:
    """Return the boxes around masks [n, side, side] that lie in `places`."""
    side, edges = masks.shape[-1], []
    for along, start, stop in ((1, 0, 2), (2, 1, 3)):
        used = masks.amax(dim=along)
        first = used.argmax(dim=1)
        last = side - used.flip(1).argmax(dim=1)
        extent = places[:, stop] - places[:, start]
        edges.append((places[:, start] + first / side * extent, places[:, start] + last / side * extent))
    (left, right), (top, bottom) = edges
    return torch.stack([left, top, right, bottom], dim=1)
