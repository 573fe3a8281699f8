"""Drawn scenes for tests of detection and segmentation: coloured shapes on a grey background.

No shape equals its mirror image or its transpose, so a mask that is not turned with its view differs from the pixels.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageDraw

from vitling.backbones.backbone import Backbone, create
from vitling.data.annotations.instances import Instances
from vitling.data.annotations.rle import encode_mask
from vitling.data.annotations.split import AnnotatedSplit
from vitling.data.dataset import Dataset
from vitling.data.store import Store, build_store
from vitling.views import BatchKey, Normaliser, Plan, Renderer, ViewBatch, Views

COLOURS = ((200, 40, 40), (40, 160, 60), (60, 80, 220))
OUTLINES = (
    ((0, 0), (0.4, 0), (0.4, 0.6), (1, 0.6), (1, 1), (0, 1)),  # an L
    ((0, 0), (0.3, 0), (1, 0.7), (1, 1), (0, 1)),  # a square that lacks its corner at the top right
    ((0, 0), (1, 0), (1, 1), (0.65, 1), (0.65, 0.35), (0, 0.35)),  # a 7
)  # of the classes, in fractions of their boxes; each touches all four sides
MARGIN = 2  # px between two shapes
Corners = tuple[int, int, int, int]  # left, top, right, bottom in pixels, the last two beyond the shape


class Scenes:
    """`count` images of `sides` (height, width) in turn, each with two or three shapes of three classes, apart."""

    def __init__(self, count: int = 6, sides: tuple[tuple[int, int], ...] = ((60, 80), (90, 60)), seed: int = 0):
        rng = np.random.default_rng(seed)
        self.images: list[np.ndarray] = []
        self.masks: list[np.ndarray] = []  # semantic, 0 is the background, shapes are 1 to 3
        boxes, classes, areas, segments, offsets = [], [], [], [], [0]
        for i in range(count):
            height, width = sides[i % len(sides)]
            image = Image.fromarray(rng.integers(110, 140, (height, width, 3), dtype=np.uint8))
            semantic = Image.new("L", (width, height), 0)
            placed: list[Corners] = []
            for k in rng.permutation(3)[: 2 + i % 2]:
                placed.append(place_apart(rng, height, width, placed))
                own = Image.new("L", (width, height), 0)
                for canvas, fill in ((image, COLOURS[k]), (semantic, int(k) + 1), (own, 1)):
                    ImageDraw.Draw(canvas).polygon(outline(k, placed[-1]), fill=fill)
                boxes.append(np.array(placed[-1]) / (width, height, width, height))
                classes.append(int(k))
                areas.append(np.asarray(own).sum())
                segments.append(encode_mask(np.asarray(own)))
            offsets.append(len(boxes))
            self.images.append(np.asarray(image))
            self.masks.append(np.asarray(semantic))
        count = len(boxes)
        self.instances = Instances(
            np.array(offsets), np.array(boxes, np.float32), np.array(classes), np.zeros(count, bool),
            np.array(areas, np.float32), segments,
        )  # fmt: skip

    def make_dataset(self) -> Dataset:
        count = len(self.images)
        return Dataset("scenes", [f"{i}.png" for i in range(count)], lambda i: self.images[i], np.arange(count))

    def make_store(self, size: int = 96, device: str = "cpu") -> Store:
        return build_store(self.make_dataset(), size, device=device, use_cache=False)

    def make_split(self) -> AnnotatedSplit:
        sizes = np.array([image.shape[:2] for image in self.images])
        return AnnotatedSplit(self.make_dataset(), ("red", "green", "blue"), sizes, self.instances)


def place_apart(rng: np.random.Generator, height: int, width: int, others: list[Corners]) -> Corners:
    """Draw a box of 18 to 33 px a side that touches none of the others."""
    for _ in range(1000):
        w, h = (int(side) for side in rng.integers(18, 34, 2))
        left, top = int(rng.integers(0, width - w)), int(rng.integers(0, height - h))
        if all(
            left >= o[2] + MARGIN or o[0] >= left + w + MARGIN or top >= o[3] + MARGIN or o[1] >= top + h + MARGIN
            for o in others
        ):
            return left, top, left + w, top + h
    raise ValueError("no room for another shape")


def outline(k: int, corners: Corners) -> list[tuple[float, float]]:
    """Return the outline of class k in a box, for PIL, which fills the pixels under the outline too."""
    left, top, right, bottom = corners
    return [(left + x * (right - left - 1), top + y * (bottom - top - 1)) for x, y in OUTLINES[k]]


def small_backbone(name: str = "pvt_v2_b0_small", size: int = 64) -> Backbone:
    return create(name, size=size, seed=0)


def draw_view(plan: Plan, store: Store, epoch: int = 0) -> tuple[Views, torch.Tensor]:
    """Render the first view of all images; return it and their ids."""
    n = len(store)
    batch = ViewBatch(plan, BatchKey(0, epoch, 0, np.arange(n), n), np.arange(n))
    pixels, aspect = store.fetch(batch.instances)
    return batch.render(pixels, aspect, Renderer(Normaliser(store.mean, store.std)))[0], torch.arange(n)
