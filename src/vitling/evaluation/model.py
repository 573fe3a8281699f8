"""A trained model that predicts classes with probabilities, or computes features, of any images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitling.backbones import Backbone
from vitling.backbones.transfer import check_outputs
from vitling.data.decode import decode, squash
from vitling.data.host import count_cores
from vitling.data.scan import describe_error
from vitling.errors import UserError
from vitling.evaluation.conformal import make_sets
from vitling.evaluation.familiarity import summarise_images
from vitling.evaluation.inputs import Input, Source, list_sources
from vitling.evaluation.meta import BundleMeta
from vitling.evaluation.trust import Trust
from vitling.shortage import raise_if_short
from vitling.views import eval_view

BATCH = 64


@dataclass
class Prediction:
    """The prediction for one image.

    `label` is None if the model is unsure (`abstain`), if images have several labels (see `labels`), or if the image
    could not be read (see `error`).
    """

    source: str
    label: str | None = None
    probability: float | None = None
    labels: list[str] = field(default_factory=list)  # if images have several labels: all with a probability above 0.5
    top: list[tuple[str, float]] = field(default_factory=list)
    unsure: bool = False
    unfamiliar: bool | None = None  # unlike the training images; None if the model cannot tell
    prediction_set: list[str] = field(default_factory=list)  # with `coverage`: classes, the most probable first
    error: str | None = None


class Embeddings(NamedTuple):
    rows: list[int]  # indices of the readable images
    vectors: np.ndarray  # [len(rows), D]
    errors: dict[str, str]


class Model:
    """A backbone, its head if it was trained on labels, and the metadata needed to use them."""

    def __init__(
        self,
        backbone: Backbone,
        head: nn.Linear | None,
        meta: BundleMeta,
        device: torch.device | str = "cpu",
        trust: Trust | None = None,
    ):
        self.device = torch.device(device)
        self.backbone = backbone.to(self.device).eval()
        self.head = None if head is None else head.to(self.device).eval()
        self.meta = meta
        self.trust = trust or Trust()

    def resize(self, size: int) -> Model:
        """Return the same network for views of another size; raise UserError if it cannot take them.

        Its scores and distances are those of one size, so that of another size has none.
        """
        self.backbone.grid_size(size)
        wanted = math.ceil(size / self.meta.crop_fraction)
        meta = replace(self.meta, size=size, store_size=max(self.meta.store_size, wanted))
        return Model(self.backbone, self.head, meta, self.device, self.trust if size == self.meta.size else None)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.meta.class_names

    @torch.inference_mode()
    def features(self, images: Tensor) -> Tensor:
        """Compute pooled features [B, D] of normalised images [B, C, size, size]."""
        return self.backbone(images.to(self.device)).pooled.float()

    @torch.inference_mode()
    def logits(self, images: Tensor) -> Tensor:
        """Compute logits [B, classes] of normalised images [B, C, size, size], before the temperature."""
        return self.require_head()(self.features(images))

    def predict(
        self, inputs: Input | Sequence[Input], top: int = 5, abstain: float | None = None, coverage: float | None = None
    ) -> list[Prediction]:
        """Predict every image, in order; below the probability `abstain` the prediction is unsure.

        `coverage` adds prediction sets, which contain the true class with this probability.
        """
        self.require_head()
        if not isinstance(top, Integral) or top < 1:
            raise UserError(f"--top must be a whole number from 1, not {top!r}.")
        if abstain is not None and not (isinstance(abstain, Real) and 0 <= abstain <= 1):
            raise UserError(f"--abstain must be a probability between 0 and 1, not {abstain!r}.")
        threshold = None if coverage is None else self.find_set_threshold(coverage)
        sources = list_sources(inputs)
        predictions = [Prediction(source.name) for source in sources]
        for batch in self.batches(sources):
            for i, reason in batch.errors.items():
                predictions[i].error = reason
            if batch.rows:
                self._predict_batch([predictions[i] for i in batch.rows], batch.images, top, abstain, threshold)
        return predictions

    def find_set_threshold(self, coverage: float) -> float:
        """Return the highest score in a prediction set; raise UserError if the model cannot make sets."""
        if self.meta.task == "multi":
            raise UserError("--coverage needs one class per image, and this model predicts several labels.")
        return self.trust.find_threshold(coverage)

    @torch.inference_mode()
    def _predict_batch(
        self, predictions: list[Prediction], images: Tensor, top: int, abstain: float | None, threshold: float | None
    ) -> None:
        images = images.to(self.device)
        features = self.backbone(images)
        scaled = self.require_head()(features.pooled.float()) / self.meta.temperature
        check_outputs(scaled)
        every = scaled.sigmoid() if self.meta.task == "multi" else scaled.softmax(dim=1)
        for prediction, probabilities in zip(predictions, every.cpu()):
            self._fill_prediction(prediction, probabilities, top, abstain)
        if self.trust.familiarity is not None:
            unfamiliar = self.trust.familiarity.find_unfamiliar(summarise_images(images, features.grid), scaled)
            for prediction, found in zip(predictions, unfamiliar.tolist()):
                prediction.unfamiliar = found
        if threshold is not None:
            order = scaled.argsort(dim=1, descending=True)
            for prediction, ranked, inside in zip(predictions, order.tolist(), make_sets(scaled, threshold).tolist()):
                prediction.prediction_set = [self.class_names[c] for c in ranked if inside[c]]

    def embed(self, inputs: Input | Sequence[Input]) -> np.ndarray:
        """Compute pooled features [N, D]; raise UserError if an image cannot be read."""
        found = self.embed_sources(list_sources(inputs))
        if found.errors:
            name, reason = next(iter(found.errors.items()))
            raise UserError(f"{len(found.errors)} images cannot be read; the first is {name}: {reason}.")
        return found.vectors

    def embed_sources(
        self, sources: Sequence[Source], on_progress: Callable[[int], None] = lambda done: None
    ) -> Embeddings:
        """Compute features of the readable images, and list why the others cannot be read."""
        rows: list[int] = []
        errors: dict[str, str] = {}
        vectors = [np.zeros((0, self.backbone.dim), np.float32)]
        for batch in self.batches(sources):
            errors |= {sources[i].name: reason for i, reason in batch.errors.items()}
            rows += batch.rows
            if batch.rows:
                features = self.features(batch.images)
                check_outputs(features)
                vectors.append(features.cpu().numpy())
            on_progress(len(rows) + len(errors))
        return Embeddings(rows, np.concatenate(vectors), errors)

    def require_head(self) -> nn.Linear:
        """Return the head; raise UserError if there is none."""
        if self.head is None:
            raise UserError(
                "This model was trained without labels and predicts no classes. Use `vitling embed` for its features, "
                "`vitling evaluate --with knn` to evaluate them, or `vitling finetune --from` to train a classifier."
            )
        return self.head

    def _fill_prediction(self, prediction: Prediction, probabilities: Tensor, top: int, abstain: float | None) -> None:
        best = probabilities.topk(min(int(top), len(probabilities)))
        named = [(self.class_names[c], float(p)) for p, c in zip(best.values, best.indices)]
        prediction.top = named
        prediction.probability = named[0][1]
        prediction.unsure = abstain is not None and named[0][1] < abstain
        if prediction.unsure:
            return
        if self.meta.task == "multi":
            prediction.labels = [n for n, p in zip(self.class_names, probabilities.tolist()) if p > 0.5]
        else:
            prediction.label = named[0][0]

    def batches(self, sources: Sequence[Source]) -> Iterator[_Batch]:
        """Yield the readable images in normalised batches, and why the others cannot be read."""
        with ThreadPoolExecutor(min(16, count_cores())) as pool:
            for start in range(0, len(sources), BATCH):
                part = sources[start : start + BATCH]
                yield self._batch(start, list(pool.map(self._load, part)))

    def _batch(self, start: int, loaded: list[_Loaded | str]) -> _Batch:
        good = {start + i: one for i, one in enumerate(loaded) if not isinstance(one, str)}
        errors = {start + i: one for i, one in enumerate(loaded) if isinstance(one, str)}
        if not good:
            return _Batch([], torch.empty(0), errors)
        pixels = torch.from_numpy(np.stack([one.pixels for one in good.values()])).to(self.device)
        aspect = torch.tensor([one.aspect for one in good.values()], device=self.device)
        meta = self.meta
        images = eval_view(pixels, aspect, meta.size, meta.crop_fraction, meta.mean, meta.std)
        return _Batch(list(good), images, errors)

    def _load(self, source: Source) -> _Loaded | str:
        """Decode an image as the store would; return the reason if that fails."""
        meta = self.meta
        try:
            image = decode(source.read(), meta.channels, meta.bits, meta.max_pixels, draft_size=meta.store_size)
        except Exception as error:  # any other failure concerns this image alone
            raise_if_short(error)
            return describe_error(error)
        return _Loaded(squash(image, meta.store_size, meta.channels), image.width / image.height)


class _Loaded(NamedTuple):
    pixels: np.ndarray
    aspect: float


class _Batch(NamedTuple):
    rows: list[int]
    images: Tensor
    errors: dict[int, str]
