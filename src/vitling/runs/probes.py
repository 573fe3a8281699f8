"""`vitling evaluate RUN DATA --with PROBES`: probes of a frozen network on a labelled dataset.

Probes are trained on the train split. Their settings (k, learning rate, C) are chosen on validation, which is the
data's own val split or held out of train. Then a probe is trained on both and evaluated on test, else on val, else on
images held out of train.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from vitling import data
from vitling.console import Log
from vitling.data.config import DataConfig
from vitling.data.content import hash_records
from vitling.data.dataset import Dataset, Splits
from vitling.data.holdout import hold_out_images
from vitling.data.inspection import describe_leakage
from vitling.data.scan import ImageFacts
from vitling.data.splits import DEFAULT_HOLD_OUT, read_splits, require_labels
from vitling.errors import UserError
from vitling.evaluation.classify import get_labels
from vitling.evaluation.config import Probe, ProbesConfig
from vitling.evaluation.few_shot import select_shots
from vitling.evaluation.metrics import resolve_metric
from vitling.evaluation.model import Model
from vitling.evaluation.probe_features import compute_probe_features
from vitling.evaluation.probes import PROBES, ProbeTask, SplitFeatures, count_blocks, default_ks
from vitling.formatting import shorten_list
from vitling.runs.evaluate import (
    decode_split,
    format_command,
    make_opening_recorder,
    prepare_evaluation,
    was_trained_on,
    write_result,
)
from vitling.settings.evaluation import EvaluationConfig


def evaluate_probes(config: EvaluationConfig) -> dict[str, Any]:
    """Evaluate each probe, with its chosen setting and all metrics; also written to `out` as JSON."""
    model, data_config = prepare_evaluation(config)
    log, probes = Log(), tuple(dict.fromkeys(config.probes))
    splits = open_probe_splits(config.source, data_config, config.split, config.settings)
    settings = _resolve_settings(config.settings, probes, splits)
    splits.splits.on_test_opened = make_opening_recorder(config.run)
    eval_set = splits.open_eval_split(f"{format_command(config)} --with {' '.join(probes)}")
    for note in splits.notes:
        log.info(note)
    if was_trained_on(config.run, config.source, splits.eval_split, settings.seed if splits.held_out else None):
        log.warning("The network was trained on the images it is evaluated on; expect lower scores on new images.")
    features = compute_split_features(model, splits, eval_set, data_config, config.allow_bad, probes, settings, log)
    task = ProbeTask(model, settings, splits.train.class_names, features)
    found = {
        "trained_on": "train and validation",
        "chosen_on": splits.chosen_on,
        "images": {name: len(part.labels) for name, part in features.items()},
        "data_hashes": hash_splits(splits, features),
        "classes": task.classes,
        "metric": task.metric,
        "seed": settings.seed,
        "notes": splits.notes,
        "probes": {name: PROBES[name](task, log) for name in probes},
        "bad_files": [vars(file) for part in features.values() if part.store for file in part.store.bad],
    }
    return write_result(config, model, splits.eval_split, found)


@dataclass
class ProbeSplits:
    """Train and validation sets, and the split to evaluate on, which `open_eval_split` opens (and records if test)."""

    splits: Splits
    train: Dataset
    validation: Dataset
    eval_split: str  # test or val
    held_out: bool  # without a test or val split: val is held out of train
    chosen_on: str  # origin of the validation images, in words
    notes: list[str]

    def open_eval_split(self, why: str) -> Dataset:
        part = self.splits.open_test(why) if self.eval_split == "test" else self.splits.val
        if part is None or part.labels is None:
            raise UserError(f"The {self.eval_split} split has no labels, so probes cannot be evaluated on it.")
        return part


def open_probe_splits(source: str, config: DataConfig, split: str, settings: ProbesConfig) -> ProbeSplits:
    """Choose the images that probes are trained on, tuned on and evaluated on."""
    if split == "train":
        raise UserError("--split train cannot evaluate probes, which are trained on it. Leave out --split.")
    own = read_splits(source, config)
    require_labels(own)
    if split == "test" and not own.has_test:
        raise UserError("The data has no test split. Leave out --split to evaluate on val or held-out images.")
    on_test = own.has_test and split != "val"
    fraction = None if settings.val is None else str(settings.val)
    splits = data.open(source, config, val=fraction if on_test else None, seed=settings.seed)
    assert splits.val is not None
    own_val = own.val is not None and not config.folds
    if on_test:
        chosen = "val" if own_val and fraction is None else "held out of train"
        found = ProbeSplits(splits, splits.train, splits.val, "test", False, chosen, splits.notes)
    else:
        train, validation = _hold_out(splits.train, config, settings.val or DEFAULT_HOLD_OUT, settings.seed)
        note = f"{len(validation):,} of {len(splits.train):,} train images are held out for validation."
        notes = [*splits.notes, note]
        found = ProbeSplits(splits, train, validation, "val", not own_val, "held out of train", notes)
    found.notes = found.notes + _note_single_images(found)
    return found


def _resolve_settings(settings: ProbesConfig, probes: Sequence[Probe], splits: ProbeSplits) -> ProbesConfig:
    """Restrict k and shots to what the images allow; raise UserError before the evaluation split is opened."""
    labels = splits.train.labels
    assert labels is not None
    resolve_metric(settings.metric, labels.ndim == 2)
    if "knn" in probes:
        ks = settings.knn.k or default_ks(len(labels))
        if max(ks) > len(labels):
            raise UserError(f"--knn.k {max(ks)} is more than the {len(labels)} training images; use a smaller k.")
        settings = replace(settings, knn=replace(settings.knn, k=tuple(dict.fromkeys(ks))))
    if "few-shot" in probes:
        every = np.concatenate([labels, splits.validation.labels])
        shots = select_shots(torch.from_numpy(every), settings.few_shot.shots)
        if left_out := [str(n) for n in settings.few_shot.shots if n not in shots]:
            splits.notes.append(f"--few-shot.shots {' '.join(left_out)} skipped: some classes have fewer images.")
        settings = replace(settings, few_shot=replace(settings.few_shot, shots=tuple(shots)))
    return settings


def compute_split_features(
    model: Model,
    splits: ProbeSplits,
    eval_set: Dataset,
    config: DataConfig,
    allow_bad: bool,
    probes: Sequence[Probe],
    settings: ProbesConfig,
    log: Log,
) -> dict[str, SplitFeatures]:
    """Decode the three splits and compute their features, each image once; warn about leakage between them."""
    blocks = count_blocks(model, settings) if "linear" in probes else 0
    found: dict[str, SplitFeatures] = {}
    facts: dict[str, ImageFacts] = {}
    for name, dataset in (("train", splits.train), ("validation", splits.validation), ("evaluated", eval_set)):
        split = splits.eval_split if name == "evaluated" else name
        own = "val" if name == "validation" and splits.chosen_on == "val" else split
        known = [replace(file, split=split) for file in splits.splits.bad if file.split == own]
        store, meta = decode_split(model, dataset, split, config, allow_bad, log, known), model.meta
        with log.progress(f"Features of {split}", len(store)) as progress:
            frozen = compute_probe_features(
                model.backbone, store, meta.size, meta.crop_fraction, blocks, on_progress=progress
            )
        facts[name] = store.facts
        found[name] = SplitFeatures(store, frozen, get_labels(store).to(frozen.pooled.device))
    for name in ("train", "validation"):  # the probe is trained on both
        if warning := describe_leakage({"train": facts[name], splits.eval_split: facts["evaluated"]}, name):
            log.warning(warning)
    return found


def hash_splits(splits: ProbeSplits, features: dict[str, SplitFeatures]) -> dict[str, str]:
    """Hash the splits of the data. Images held out of train, for validation or evaluation, count as train."""
    parts: dict[str, list[np.ndarray]] = {}
    own = {"train": "train", "validation": "val" if splits.chosen_on == "val" else "train"}
    own["evaluated"] = "train" if splits.held_out else splits.eval_split
    for name, split in own.items():
        store = features[name].store
        assert store is not None
        parts.setdefault(split, []).append(store.records)
    return {split: hash_records(*records) for split, records in parts.items()}


def _hold_out(dataset: Dataset, config: DataConfig, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    too_few = (
        f"{dataset.name} has too few images or groups to hold out {fraction:.0%} for validation; use a larger "
        "fraction such as --val 0.5."
    )
    kept, held, _ = hold_out_images(dataset, [dataset.labels], config, fraction, seed, too_few)
    return dataset.take(kept), dataset.take(held)


def _note_single_images(splits: ProbeSplits) -> list[str]:
    """List the classes whose only image is in train, so that validation lacks them."""
    train, validation = splits.train.count_classes(), splits.validation.count_classes()
    single = [splits.train.class_names[c] for c in np.flatnonzero((train == 1) & (validation == 0))]
    note = f"Classes with a single image, which is in train and not in validation: {shorten_list(single)}."
    return [note] if single else []
