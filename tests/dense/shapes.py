"""Drawn scenes for tests of detection and segmentation: coloured rectangles and ellipses on a grey background."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageDraw

from vitling.backbones.backbone import Backbone, create
from vitling.data.annotations.instances import Instances
from vitling.data.annotations.rle import encode_mask
from vitling.data.dataset import Dataset
from vitling.data.store import Store, build_store
from vitling.views import BatchKey, Normaliser, Plan, Renderer, ViewBatch, Views

COLOURS = ((200, 40, 40), (40, 160, 60), (60, 80, 220))


class Scenes:
    """`count` images of `sides` (height, width) in turn, with two or three shapes of three classes each."""

    def __init__(self, count: int = 6, sides: tuple[tuple[int, int], ...] = ((60, 80), (90, 60)), seed: int = 0):
        rng = np.random.default_rng(seed)
        self.images: list[np.ndarray] = []
        self.masks: list[np.ndarray] = []  # semantic, 0 is the background, shapes are 1 to 3
        boxes, classes, segments, offsets = [], [], [], [0]
        for i in range(count):
            height, width = sides[i % len(sides)]
            image = Image.fromarray(rng.integers(110, 140, (height, width, 3), dtype=np.uint8))
            semantic = Image.new("L", (width, height), 0)
            for k in rng.permutation(3)[: 2 + i % 2]:
                w, h = rng.integers(18, 34, 2)
                left, top = int(rng.integers(0, width - w)), int(rng.integers(0, height - h))
                corners = (left, top, left + int(w) - 1, top + int(h) - 1)
                own = Image.new("L", (width, height), 0)
                for canvas, fill in ((image, COLOURS[k]), (semantic, int(k) + 1), (own, 1)):
                    pen = ImageDraw.Draw(canvas)
                    (pen.ellipse if k == 1 else pen.rectangle)(corners, fill=fill)
                boxes.append((left / width, top / height, (left + w) / width, (top + h) / height))
                classes.append(int(k))
                segments.append(encode_mask(np.asarray(own)))
            offsets.append(len(boxes))
            self.images.append(np.asarray(image))
            self.masks.append(np.asarray(semantic))
        count = len(boxes)
        self.instances = Instances(
            np.array(offsets), np.array(boxes, np.float32), np.array(classes), np.zeros(count, bool),
            np.full(count, 400.0, np.float32), segments,
        )  # fmt: skip

    def make_store(self, size: int = 96, device: str = "cpu") -> Store:
        count = len(self.images)
        dataset = Dataset("scenes", [f"{i}.png" for i in range(count)], lambda i: self.images[i], np.arange(count))
        return build_store(dataset, size, device=device, use_cache=False)


def small_backbone(name: str = "pvt_v2_b0_small", size: int = 64) -> Backbone:
    return create(name, size=size, seed=0)


def draw_view(plan: Plan, store: Store, epoch: int = 0) -> tuple[Views, torch.Tensor]:
    """Render the first view of all images; return it and their ids."""
    n = len(store)
    batch = ViewBatch(plan, BatchKey(0, epoch, 0, np.arange(n), n), np.arange(n))
    pixels, aspect = store.fetch(batch.instances)
    return batch.render(pixels, aspect, Renderer(Normaliser(store.mean, store.std)))[0], torch.arange(n)
