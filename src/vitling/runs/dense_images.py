"""The annotated images of a run: open its data once, decode it, and keep images and annotations in step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from vitling.data.annotations.open import open_annotated
from vitling.data.annotations.split import AnnotatedSplit, DenseTask, count_problems
from vitling.data.dataset import Splits
from vitling.data.store import Store
from vitling.dense.targets import InstanceTargets, MaskTargets, squash_masks
from vitling.formatting import format_count
from vitling.runs.finetune import describe_start
from vitling.settings.dense import DenseConfig, DetectConfig
from vitling.settings.facts import Facts, Start


@dataclass
class AnnotatedSplits:
    """The splits of annotated data. `plain` holds their images alone, as `Stores` takes them."""

    train: AnnotatedSplit
    val: AnnotatedSplit | None
    test: AnnotatedSplit | None
    plain: Splits

    def gather_facts(self, gpu: bool, start: Start) -> Facts:
        side = int(np.median(self.train.sizes.max(axis=1)))
        return Facts(
            len(self.train),
            classes=len(self.train.class_names),
            has_test=self.test is not None,
            side=side,
            gpu=gpu,
            start=start,
        )


def open_dense(config: DenseConfig) -> AnnotatedSplits:
    """Open annotated data for training; problems become warnings."""
    task: DenseTask = "detect" if isinstance(config, DetectConfig) else "segment"
    found = open_annotated(
        config.source,
        task,
        config.annotations,
        config.data,
        config.val,
        config.hold_out_seed(),
        with_masks=not isinstance(config, DetectConfig) or config.masks,
    )
    train, val, test = found["train"], found["val"], found["test"] if config.test else None
    assert train is not None
    held, hidden = (None if split is None else split.dataset for split in (val, test))
    plain = Splits(train.dataset, held, hidden_test=hidden)
    plain.notes += train.notes
    for name, split in (("train", train), ("val", val), ("test", test)):
        if split is not None and split.problems:
            plain.warnings.append(describe_problems(name, split))
    return AnnotatedSplits(train, val, test, plain)


def find_start(config: DenseConfig) -> Start:
    """Return the network of --from; without it there is none."""
    return describe_start(config, config.from_) if config.from_ else Start()


def describe_problems(name: str, split: AnnotatedSplit) -> str:
    """Describe the annotations that are left out, by kind, with one of them."""
    kinds = ", ".join(f"{what} ({count:,})" for what, count in count_problems(split.problems).items())
    first = split.problems[0]
    return f"{name}: {format_count(len(split.problems), 'problem')} left out: {kinds}. The first: {first.file}."


def match_store(split: AnnotatedSplit, store: Store) -> AnnotatedSplit:
    """Leave out the annotations of images that could not be decoded, so that ids agree with the store's."""
    if len(split) == len(store):
        return split
    return split.take(np.flatnonzero(np.isin(split.dataset.rows, store.dataset.rows)))


def make_targets(config: DenseConfig, split: AnnotatedSplit, store: Store) -> InstanceTargets | MaskTargets:
    """Make the targets of training, on the device; semantic masks only if the images are there too."""
    if isinstance(config, DetectConfig):
        assert split.instances is not None
        return InstanceTargets(split.instances, store.device)
    assert split.read_mask is not None
    masks = torch.from_numpy(squash_masks(split.read_mask, len(split), store.size))
    return MaskTargets(masks.to(store.device) if store.placement == "device" else masks)
