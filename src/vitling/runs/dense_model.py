"""A trained detector or segmentation network that predicts any images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from PIL import Image

from vitling.backbones.backbone import Backbone
from vitling.data.config import MAX_PIXELS, DataConfig
from vitling.data.dataset import Dataset
from vitling.data.decode import decode
from vitling.data.store import Store, build_store
from vitling.dense.detection import DetectionObjective, Detector
from vitling.dense.detections import Detections
from vitling.dense.inference import WholeView, detect_images, segment_images
from vitling.dense.objective import DenseObjective
from vitling.dense.segmentation import SegmentationObjective
from vitling.errors import UserError
from vitling.evaluation.inputs import Input, Source, list_sources
from vitling.ranges import AT_LEAST_1, BITS, CHANNELS, MEAN, SIDE, STD, TEST_SCALE
from vitling.runs.drawing import draw_class_map, draw_detections
from vitling.settings.dense import WIDTH
from vitling.version import __version__
from vitling.views.plan import Plan

BATCH = 16  # images decoded together for predictions
LONGEST_FACTOR = 4  # longer side of a segmented image, in shorter sides
Task = Literal["detect", "segment"]
Prediction = Detections | np.ndarray  # what is found in an image, or the class of each pixel, uint8 [H, W]


@dataclass(frozen=True)
class DenseMeta:
    """Preprocessing of images and meaning of the outputs."""

    task: Task
    model: Literal["mask-rcnn", "cascade", "upernet"]
    class_names: tuple[str, ...]
    size: Annotated[int, SIDE]  # px; canvas in training, for which the backbone was built
    shorter: Annotated[int, SIDE]  # px; shorter side of an image at test time
    longest: Annotated[int, SIDE]  # px; limit of the longer side
    store_size: Annotated[int, SIDE]
    mean: Annotated[tuple[float, ...], MEAN]
    std: Annotated[tuple[float, ...], STD]
    width: Annotated[int, WIDTH]  # channels of the heads
    masks: bool = False  # whether a detector finds masks too
    scales: Annotated[tuple[float, ...], TEST_SCALE] = (1.0,)
    flip: bool = False
    channels: Annotated[int, CHANNELS] = 3
    bits: Annotated[int, BITS] = 16
    max_pixels: Annotated[int, AT_LEAST_1] = MAX_PIXELS
    version: str = __version__

    @property
    def data(self) -> DataConfig:
        return DataConfig(channels=self.channels, bits=self.bits, max_pixels=self.max_pixels)


@dataclass
class DensePrediction:
    """The prediction for one image: `detections`, or `classes` for each pixel; neither if it could not be read."""

    source: str
    class_names: tuple[str, ...] = ()
    detections: Detections | None = None
    classes: np.ndarray | None = None  # uint8 [H, W]
    image: Image.Image | None = field(default=None, repr=False)  # the upright original
    error: str | None = None

    def draw(self, min_score: float = 0.5) -> Image.Image:
        """Draw the prediction on the image."""
        if self.image is None:
            raise UserError(f"{self.source} could not be read: {self.error}.")
        if self.detections is not None:
            return draw_detections(self.image, self.detections, self.class_names, min_score)
        assert self.classes is not None
        return draw_class_map(self.image, self.classes, self.class_names)


def build_objective(
    backbone: Backbone, plan: Plan, meta: DenseMeta, targets: Any = None, frozen: int = 0, copy_paste: float = 0.0
) -> DenseObjective:
    """Build the network of a task on a backbone; without targets it only predicts."""
    classes = len(meta.class_names)
    if meta.task == "segment":
        return SegmentationObjective(backbone, plan, targets, classes, meta.width, frozen)
    kind: Detector = "cascade" if meta.model == "cascade" else "mask-rcnn"
    return DetectionObjective(backbone, plan, targets, classes, kind, meta.masks, meta.width, frozen, copy_paste)


class DenseModel:
    """A network with what is needed to use it."""

    def __init__(self, objective: DenseObjective, meta: DenseMeta):
        self.objective, self.meta = objective, meta

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.meta.class_names

    @property
    def device(self) -> torch.device:
        return next(self.objective.parameters()).device

    def predict_store(self, store: Store) -> Iterator[tuple[int, Prediction]]:
        """Yield the id and the prediction of every image of a store, in any order."""
        meta, view = self.meta, WholeView(self.meta.shorter, self.meta.longest)
        if isinstance(self.objective, SegmentationObjective):
            yield from segment_images(self.objective, store, view, meta.scales, meta.flip)
        else:
            assert isinstance(self.objective, DetectionObjective)
            yield from detect_images(self.objective, store, view)

    def predict(self, inputs: Input | Sequence[Input]) -> list[DensePrediction]:
        """Predict images of any kind: paths, folders, globs, PIL images, arrays."""
        sources = list_sources(inputs)
        return [found for start in range(0, len(sources), BATCH) for found in self._predict(sources[start:][:BATCH])]

    def _predict(self, sources: Sequence[Source]) -> list[DensePrediction]:
        found = [DensePrediction(source.name, self.class_names) for source in sources]
        data, readable = self.meta.data, list[int]()
        for i, source in enumerate(sources):
            try:
                found[i].image = to_picture(decode(source.read(), data.channels, data.bits, data.max_pixels).pixels)
                readable.append(i)
            except Exception as problem:  # files raise errors of almost any kind
                found[i].error = str(problem) or type(problem).__name__
        if not readable:
            return found
        rows = np.array(readable)
        dataset = Dataset("images", [sources[i].name for i in readable], lambda row: sources[row].read(), rows)
        store = build_store(dataset, self.meta.store_size, data, self.device, allow_bad=True, use_cache=False)
        store.mean, store.std = self.meta.mean, self.meta.std
        for i, prediction in self.predict_store(store):
            one = found[int(store.dataset.rows[i])]
            if isinstance(prediction, Detections):
                one.detections = prediction
            else:
                one.classes = prediction
        return found


def to_picture(pixels: Image.Image | np.ndarray) -> Image.Image:
    """Make an RGB picture; of arrays with other channels, the first."""
    if isinstance(pixels, Image.Image):
        return pixels.convert("RGB")
    channels = pixels if pixels.shape[2] == 3 else pixels[:, :, :1].repeat(3, axis=2)
    return Image.fromarray(np.ascontiguousarray(channels))
