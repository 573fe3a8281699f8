"""Images for the report: features of a split, their map, neighbours, thumbnails and calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from vitling.data.dataset import Dataset, Splits, sample_evenly
from vitling.data.sources import read_source
from vitling.data.sources.corrections import check_same_labels
from vitling.data.store import Store, build_store
from vitling.errors import UserError
from vitling.evaluation.bundle import load
from vitling.evaluation.features import compute_pooled_features
from vitling.evaluation.knn import find_nearest
from vitling.evaluation.metrics import bin_confidence, calibration_error
from vitling.evaluation.model import Model
from vitling.evaluation.predictions import hash_names, load_predictions
from vitling.evaluation.projection import TSNE_LEAST, compute_tsne, project
from vitling.report.data import Bin, ImageMap, Reliability, Sprites, TrainingImages, list_mistakes
from vitling.report.sprites import make_sprites
from vitling.runs.images import open_for_pretraining, open_labelled
from vitling.runs.report_files import RunFiles
from vitling.runs.thumbnails import draw_thumbnails
from vitling.runs.timing import EVALUATION_SPEED
from vitling.settings.config import PretrainConfig
from vitling.training.processes import choose_device

NEIGHBOURS = 6
TSNE_SECONDS = 0.005  # of one image, on a busy core


@dataclass(frozen=True)
class Limits:
    """Limits on the contents of a report, and on the time to make it."""

    images: int = 10_000  # of the map
    training: int = 20_000  # images among which neighbours are found
    tsne: int = 5_000
    thumbnails: int = 7_000_000  # bytes
    attention: int = 1_500_000  # bytes
    matches: int = 270_000  # bytes

    def share(self, runs: int) -> Limits:
        """Return the limits of one of several runs on a page."""
        return replace(
            self, thumbnails=self.thumbnails // runs, attention=self.attention // runs, matches=self.matches // runs
        )

    def fit(self, seconds: float, images_per_second: float) -> Limits:
        """Lower the limits to what fits into the time, at the pace of the run's training."""
        images = max(100, int(0.5 * seconds * EVALUATION_SPEED * images_per_second))
        return replace(
            self,
            images=min(self.images, images * 2 // 3),
            training=min(self.training, images // 3),
            tsne=min(self.tsne, int(0.3 * seconds / TSNE_SECONDS)),
        )


@dataclass
class RunImages:
    """The images of a finished run and what its network makes of them."""

    files: RunFiles
    limits: Limits
    on_test_opened: Callable[[str], None] = field(default=lambda why: None)

    @cached_property
    def owner(self) -> RunFiles:
        """The stage that trained the saved model."""
        return self.files if self.files.has_classifier else self.files.stages[0][1]

    @cached_property
    def model(self) -> Model:
        return load(self.files.folder, device=choose_device(self.owner.resolved.config.loop.device))

    @cached_property
    def splits(self) -> Splits:
        splits = open_splits(self.owner)
        splits.on_test_opened = self.on_test_opened
        return splits

    @cached_property
    def split(self) -> str:
        """The split that the map shows: val, or test if there is none, or train."""
        if self.splits.val is not None:
            return "val"
        tested = "test" in self.files.result.get("last", {}) and self.splits.has_test
        return "test" if tested else "train"

    @cached_property
    def dataset(self) -> Dataset:
        if self.split == "test":
            return self.splits.open_test("report")
        return self.splits.val if self.split == "val" and self.splits.val is not None else self.splits.train

    @cached_property
    def shown(self) -> Store:
        return self._build_store(self.dataset, self._choose_rows(self.dataset, self.limits.images), self.split)

    @cached_property
    def training(self) -> Store:
        if self.split == "train":
            return self.shown
        train = self.splits.train
        return self._build_store(train, sample_evenly(len(train), self.limits.training), "train")

    @cached_property
    def features(self) -> Tensor:
        return self._compute_features(self.shown)

    @cached_property
    def logits(self) -> Tensor | None:
        if self.model.head is None:
            return None
        with torch.inference_mode():
            return self.model.head(self.features).float().cpu()

    def _compute_features(self, store: Store) -> Tensor:
        meta = self.model.meta
        return compute_pooled_features(self.model.backbone, store, meta.size, meta.crop_fraction, batch=64)

    def _choose_rows(self, dataset: Dataset, limit: int) -> np.ndarray:
        """Choose the images of the map: all, or else the mistakes first and a sample of the others."""
        n = len(dataset)
        if n <= limit:
            return np.arange(n)
        order = np.random.default_rng(0).permutation(n)
        part = f"last/{self.split}"
        if self.split != "train" and part in (known := load_predictions(self.files.folder)):
            predictions = known[part]
            if not predictions.is_multi_label:
                wrong = np.isin(hash_names(dataset.keys), predictions.keys[~predictions.correct])
                order = order[np.argsort(~wrong[order], kind="stable")]
        return np.sort(order[:limit])

    def _build_store(self, dataset: Dataset, rows: np.ndarray, split: str) -> Store:
        """Decode images as the run did. The cache has whole splits, so that it does not help with a part of one."""
        config, is_part = self.owner.resolved.config, len(rows) < len(dataset)
        store = build_store(
            dataset.take(rows) if is_part else dataset,
            config.store_size or self.model.meta.store_size,
            config.data,
            self.model.device,
            config.store,
            allow_bad=True,
            split=split,
            use_cache=config.cache and not is_part,
        )
        store.mean, store.std = self.model.meta.mean, self.model.meta.std
        return store


def open_splits(stage: RunFiles) -> Splits:
    """Open the data of a stage, split as it was for training."""
    config = stage.resolved.config
    if config.labels is not None:
        check_same_labels(config.labels, config.labels_hash, str(stage.folder))
    source = read_source(config.source, config.data, config.labels)
    if isinstance(config, PretrainConfig):
        return open_for_pretraining(config, source)
    return open_labelled(config, source)


def make_map(images: RunImages) -> ImageMap | None:
    """Place the images by their features, with neighbours among the training images and thumbnails."""
    store, features = images.shown, images.features.cpu()
    if len(store) < 2:
        return None
    if not features.isfinite().all():
        raise UserError("The features of the images are not finite. Did training diverge?")
    labels, texts = _describe_labels(store.dataset)
    predicted, confidence = _predict(images)
    rows = _find_neighbours(images)
    near = np.unique(rows)
    rows = np.searchsorted(near, rows)
    mistakes = list_mistakes(labels, predicted, confidence)
    sprites, tiles, near_tiles = _make_thumbnails(images, mistakes, rows, near)
    placed = project(features.double().numpy())
    train, train_labels = images.training.dataset, _describe_labels(images.training.dataset)[0]
    return ImageMap(
        split=images.split,
        total=len(images.dataset),
        keys=tuple(store.dataset.keys),
        labels=labels,
        texts=texts,
        predicted=predicted,
        confidence=confidence,
        pca=_to_pairs(placed[:, :2]),
        tsne=_to_pairs(compute_tsne(placed)) if TSNE_LEAST <= len(placed) <= images.limits.tsne else (),
        tiles=tiles,
        neighbours=tuple(map(tuple, rows.tolist())),
        training=TrainingImages(
            tuple(train.keys[i] for i in near), tuple(train_labels[i] for i in near) if train_labels else (), near_tiles
        ),
        sprites=sprites,
    )


def _describe_labels(dataset: Dataset) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the class of each image (-1: none, or several) and, where there may be several, all of them in words."""
    known = dataset.labels if dataset.labels is not None else dataset.partial_labels
    if known is None:
        return (-1,) * len(dataset), ()
    if known.ndim == 1:
        return tuple(known.tolist()), ()
    texts = (", ".join(dataset.class_names[c] for c in np.flatnonzero(row)) for row in known)
    return (-1,) * len(dataset), tuple(texts)


def _predict(images: RunImages) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the predicted class of each image and its calibrated probability; nothing for several labels."""
    if images.logits is None or images.model.meta.task != "single":
        return (), ()
    best = (images.logits / images.model.meta.temperature).softmax(dim=1).max(dim=1)
    return tuple(best.indices.tolist()), tuple(best.values.tolist())


def _find_neighbours(images: RunImages) -> np.ndarray:
    """Find the nearest training images of each image, [N, k]."""
    queries = torch.nn.functional.normalize(images.features.float(), dim=1)
    if images.split == "train":
        bank, first = queries, 0
    else:
        bank, first = torch.nn.functional.normalize(images._compute_features(images.training).float(), dim=1), None
    k = min(NEIGHBOURS, len(bank) - (first is not None))
    return find_nearest(bank, queries, k, first)[1].cpu().numpy()


def _to_pairs(points: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Scale to a standard deviation of one, which keeps the numbers short."""
    scaled = points / max(float(points.std()), 1e-12)
    return tuple((float(x), float(y)) for x, y in scaled)


def _make_thumbnails(
    images: RunImages, mistakes: Sequence[int], rows: np.ndarray, near: np.ndarray
) -> tuple[Sprites, tuple[int, ...], tuple[int, ...]]:
    """Draw thumbnails of the mistakes, their neighbours, the other images and theirs, until the limit is reached."""
    order: dict[tuple[bool, int], int] = {}  # (is a training image, row) -> tile
    others = sorted(set(range(len(rows))) - set(mistakes))
    for group in (list(mistakes), others):
        for of_training, some in ((False, group), (True, np.unique(rows[group]).tolist())):
            for row in some:
                order.setdefault((of_training, int(row)), len(order))

    chosen = [(images.training, int(near[row])) if of_training else (images.shown, row) for of_training, row in order]
    sprites, drawn = make_sprites(draw_thumbnails(chosen), images.limits.thumbnails)

    def tile(of_training: bool, row: int) -> int:
        number = order[of_training, row]
        return number if number < drawn else -1

    own = tuple(tile(False, i) for i in range(len(rows)))
    return sprites, own, tuple(tile(True, i) for i in range(len(near)))


def measure_reliability(images: RunImages) -> tuple[Reliability, ...]:
    """Compare confidence and accuracy, before and after calibration."""
    labels = images.shown.dataset.labels
    if images.logits is None or labels is None or labels.ndim != 1 or images.split == "train":
        return ()
    if len(images.shown) < len(images.dataset):  # of a large split the mistakes are shown first
        return ()
    truth, temperature = torch.from_numpy(labels), images.model.meta.temperature
    lines = [("before calibration", images.logits)]
    how = "after calibration" + (" on these images" if images.split == "val" else "")
    lines += [(how, images.logits / temperature)] if temperature != 1 else []
    return tuple(
        Reliability(name, calibration_error(logits, truth), tuple(_make_bins(logits, truth))) for name, logits in lines
    )


def _make_bins(logits: Tensor, truth: Tensor) -> Iterator[Bin]:
    confidence, correct, bin_of = bin_confidence(logits, truth)
    for number in bin_of.unique():
        inside = bin_of == number
        yield Bin(float(confidence[inside].mean()), float(correct[inside].double().mean()), int(inside.sum()))
