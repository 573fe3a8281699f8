"""`vitling doctor RUN`: images of a run whose label is probably wrong, by confident learning.

A network that was trained on wrong labels has memorised them, so its own predictions hide them. By default, logistic
regression and k-NN on features of a stage that used no labels classify each tenth of the images, knowing the labels of
the others. With --folds, the second stage is trained again instead.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from vitling.console import Log
from vitling.data.config import DataConfig
from vitling.data.dataset import Splits
from vitling.data.holdout import assign_folds
from vitling.data.look_alikes import group_look_alikes
from vitling.data.store import Store
from vitling.errors import UserError
from vitling.evaluation.bundle import load
from vitling.evaluation.classify import get_labels
from vitling.evaluation.confident import LOW_AGREEMENT, check_labels
from vitling.evaluation.features import compute_pooled_features
from vitling.evaluation.out_of_fold import FOLDS, predict_out_of_fold
from vitling.evaluation.suspects import (
    FILE,
    FOLDER,
    PROBABILITIES,
    SHEET,
    SUMMARY,
    Diagnosis,
    draw_suspects,
    list_suspects,
    write_probabilities,
    write_suspects,
)
from vitling.files import check_writable, write_json
from vitling.runs.doctor_folds import predict_by_folds
from vitling.runs.evaluate import decode_split, match_model_input
from vitling.runs.images import open_labels
from vitling.runs.origins import find_label_free, read_settings
from vitling.settings.config import LabelledConfig
from vitling.settings.doctor import DoctorConfig
from vitling.training.processes import choose_device


def diagnose(config: DoctorConfig) -> Diagnosis:
    """Find the suspects of a run and write suspects.csv, suspects.png, labels.json and probabilities.npz."""
    config.check()
    log, run = Log(), Path(config.run)
    settings = read_settings(run)
    settings = replace(settings, labels=config.labels or settings.labels)
    out = Path(config.out or run / FOLDER)
    if config.out is None and out.is_symlink():
        raise UserError(f"{out} is a link, and a run writes only into its own directory. Pass --out.")
    check_writable(out / FILE)
    _check_unedited(out)
    start = find_label_free(run, settings.source, required=not config.folds)
    splits, names = open_labels(settings)
    if config.folds:
        if not isinstance(settings, LabelledConfig):
            raise UserError(f"--folds trains a second stage again, and {run} has none. Leave it out.")
        store, probabilities = predict_by_folds(config, settings, splits, start, out, log)
        method = f"second stage trained {config.folds} times"
    else:
        assert start is not None
        store, probabilities = _predict_by_features(config, start, settings.data, splits, log)
        method = f"logistic regression and k-NN on {start}, {FOLDS} folds"
    dataset = store.dataset
    assert dataset.labels is not None
    known = np.flatnonzero(~np.isnan(probabilities).any(axis=1))
    if len(known) < len(dataset):
        log.warning(f"{len(dataset) - len(known):,} images are not checked: their class has no others.")
    checked, labels, p = dataset.take(known), dataset.labels[known], probabilities[known]
    check = check_labels(p, labels)
    agreement = float((p.argmax(axis=1) == labels).mean())
    if agreement < LOW_AGREEMENT:
        advice = "train longer" if config.folds else "pass --folds 5, or train the first stage longer"
        log.warning(
            f"The classifiers agree with only {agreement:.0%} of the labels, so most suspects are labelled correctly; "
            f"{advice}."
        )
    origin = dict(zip(splits.train.rows.tolist(), names))
    found = list_suspects(
        check, p, labels, checked.class_names, checked.keys, [origin[int(row)] for row in checked.rows]
    )
    write_probabilities(out / PROBABILITIES, checked.keys, checked.class_names, labels, p)
    write_suspects(out / FILE, found, config.fill)
    if found:
        shown = [replace(one, image=int(known[one.image])) for one in found[: config.top]]
        draw_suspects(store, shown, out / SHEET)
    diagnosis = Diagnosis(
        source=settings.source,
        images=len(dataset),
        classes=len(dataset.class_names),
        unchecked=len(dataset) - len(known),
        method=method,
        agreement=agreement,
        expected_wrong=check.expected_wrong,
        suspects=found,
        csv=str(out / FILE),
        sheet=str(out / SHEET),
    )
    write_json(out / SUMMARY, asdict(diagnosis))
    return diagnosis


def _check_unedited(out: Path) -> None:
    """Raise UserError if suspects.csv is newer than labels.json, which is written after it: somebody has edited it."""
    mine, summary = out / FILE, out / SUMMARY
    if mine.exists() and not (summary.exists() and mine.stat().st_mtime_ns <= summary.stat().st_mtime_ns):
        raise UserError(f"{mine} has been edited and is not overwritten. Pass another --out, or delete it.")


def _predict_by_features(
    config: DoctorConfig, start: Path, data: DataConfig, splits: Splits, log: Log
) -> tuple[Store, np.ndarray]:
    """Decode the images and compute their out-of-fold probabilities by a classifier on frozen features."""
    model = load(start, device=choose_device(config.device))
    data = match_model_input(model, data)
    store = decode_split(model, splits.train, "train", data, config.allow_bad, log, splits.bad)
    features = compute_pooled_features(model.backbone, store, model.meta.size, model.meta.crop_fraction)
    groups, _ = group_look_alikes(store.dataset, data, store.facts)  # groups and near duplicates stay together
    folds = assign_folds(store.dataset.labels, groups, len(store.dataset), FOLDS, config.seed)
    labels = get_labels(store).to(features.device)
    with log.progress("Classifying", FOLDS) as progress:
        return store, predict_out_of_fold(features, labels, len(store.dataset.class_names), folds, progress)
