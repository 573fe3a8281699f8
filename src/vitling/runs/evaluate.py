"""`vitling evaluate RUN DATA`: the metrics of a trained model on a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from vitling.console import Log
from vitling.data.config import DataConfig
from vitling.data.dataset import BadFile, Dataset, Splits
from vitling.data.splits import read_splits
from vitling.data.store import Store, build_store
from vitling.errors import UserError
from vitling.evaluation.bundle import load
from vitling.evaluation.classify import compute_logits, get_labels
from vitling.evaluation.conformal import make_sets, summarise_sets
from vitling.evaluation.metrics import summarise
from vitling.evaluation.mistakes import find_mistakes, write_mistakes
from vitling.evaluation.model import Model
from vitling.files import check_writable, write_json
from vitling.formatting import shorten_list
from vitling.loading import read_record
from vitling.runs.origins import find_run, is_same_data, strip_val
from vitling.settings.evaluation import EvaluationConfig
from vitling.training.processes import choose_device
from vitling.training.rundir import RunDirectory

if TYPE_CHECKING:
    from vitling.runs.dense_model import DenseModel


class Folds(TypedDict, total=False):
    folds: int


class DataSettings(TypedDict, total=False):
    """Settings in config.json that decide which images a run was trained on."""

    source: str
    val: str | None
    seed: int
    split_seed: int | None
    data: Folds


def evaluate(config: EvaluationConfig) -> dict[str, Any]:
    """Compute all metrics on one split (`auto`: test, else val, else train); also written to `out` as JSON."""
    model, data = prepare_evaluation(config)
    model.require_head()
    threshold = None if config.coverage is None else model.find_set_threshold(config.coverage)
    splits = read_splits(config.source, data, needs_train=False)
    splits.on_test_opened = make_opening_recorder(config.run)
    split = _choose_split(splits, config.split)
    dataset = _map_labels(model, _open_split(splits, split, format_command(config)))
    log = Log()
    warn_if_trained_on(config, split, log)
    store = decode_split(model, dataset, split, data, config.allow_bad, log, splits.bad)
    with log.progress("Evaluating", len(store)) as progress:
        logits = compute_logits(model.logits, store, model.meta.size, model.meta.crop_fraction, on_progress=progress)
    summary = summarise(logits, get_labels(store), model.class_names, model.meta.temperature)
    if threshold is not None:
        sets = make_sets(logits / model.meta.temperature, threshold)
        summary["prediction_sets"] = {"coverage": config.coverage, **summarise_sets(sets, get_labels(store))}
    if config.mistakes:
        known = (store.dataset.keys, model.class_names, model.meta.temperature)
        write_mistakes(config.mistakes, find_mistakes(logits, get_labels(store), *known, split))
    unread = [file for file in splits.bad if file.split == split]
    bad_files = [vars(file) for file in (*unread, *store.bad)]
    return write_result(
        config, model, split, summary | {"data_hashes": {split: store.content_hash}, "bad_files": bad_files}
    )


def prepare_evaluation(config: EvaluationConfig) -> tuple[Model, DataConfig]:
    """Check the settings, and load the model and the matching data config."""
    config.check()
    for path in filter(None, (config.out, config.mistakes)):
        check_writable(path)
    model = load(config.run, config.weights, choose_device(config.device))
    model = model if config.size is None else model.resize(config.size)
    return model, match_model_input(model, config.data)


def write_result(config: EvaluationConfig, model: Model, split: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return what was found, together with what was evaluated; also written to --out as JSON."""
    about = {"model": config.run, "weights": config.weights, "size": model.meta.size, "data": config.source}
    result = {**about, "split": split, **found}
    if config.out:
        write_json(Path(config.out), result)
    return result


def format_command(config: EvaluationConfig) -> str:
    """Format the command, the recorded reason for opening the test split."""
    size = "" if config.size is None else f" --size {config.size}"
    return f"vitling evaluate {config.run} {config.source}{size}"


def match_model_input(model: Model, config: DataConfig) -> DataConfig:
    """Set channels and bits to those of the model."""
    return replace(config, channels=model.meta.channels, bits=model.meta.bits)


def decode_split(
    model: Model | DenseModel,
    dataset: Dataset,
    split: str,
    config: DataConfig,
    allow_bad: bool,
    log: Log,
    known: Sequence[BadFile] = (),
) -> Store:
    """Decode a split for the model's views, with the pixel statistics of its training.

    `known`: bad files found before decoding.
    """
    meta = model.meta
    with log.progress(f"Decoding {split}", len(dataset)) as progress:
        store = build_store(
            dataset, meta.store_size, config, model.device, "auto", allow_bad, split, True, progress, log.warning, known
        )
    store.mean, store.std = meta.mean, meta.std
    return store


def make_opening_recorder(model_path: str) -> Callable[[str], None]:
    """Return a callback that records an opening of the test split in the model's run, if it is in one."""
    folder = find_run(model_path)
    if folder is None:
        return lambda why: None
    run = RunDirectory(folder)

    def record(why: str) -> None:
        try:
            run.log_test_opening(why)
        except (OSError, UserError) as problem:  # somebody else's run, or something else in place of the file
            reason = (isinstance(problem, OSError) and problem.strerror) or str(problem).rstrip(".")
            Log().warning(f"Cannot record the opening of the test split in {folder}: {reason}.")

    return record


def was_trained_on(model_path: str, source: str, split: str, held_out_by: int | None = None) -> bool:
    """Return whether the run was trained on images of this split.

    That is so for train, and for the data's own val if --val, folds or `?val=train` made it a part of train. A val that
    was held out of train by the seed `held_out_by` counts unless the run held out the same images. Data are compared by
    name, so a copy elsewhere is not recognised.
    """
    folder = find_run(model_path)
    if folder is None:
        return False
    config = read_record(folder / "config.json", DataSettings)
    trained = str(config.get("source", ""))
    if not is_same_data(trained, source):
        return False
    val = strip_val(trained)[1]
    merged = config.get("val") is not None or config.get("data", {}).get("folds", 0) > 0 or val == "train"
    if held_out_by is not None:
        split_seed = config.get("split_seed")  # None: the seed of the run
        return merged or (config.get("seed") if split_seed is None else split_seed) != held_out_by
    return split == "train" or (split == "val" and merged)


def warn_if_trained_on(config: EvaluationConfig, split: str, log: Log) -> None:
    if was_trained_on(config.run, config.source, split):
        log.warning("The model was trained on these images, except those held out; expect lower scores on new images.")


def _choose_split(splits: Splits, split: str) -> str:
    if split == "auto":
        return "test" if splits.has_test else "val" if splits.val is not None else "train"
    exists = {"train": len(splits.train) > 0, "val": splits.val is not None, "test": splits.has_test}
    if not exists[split]:
        available = ", ".join(name for name, is_there in exists.items() if is_there)
        hint = " A run's evaluation.json has the images it held out of train." if split == "val" else ""
        raise UserError(f"The data has no {split} split; it has {available}.{hint}")
    return split


def _open_split(splits: Splits, split: str, why: str) -> Dataset:
    part = splits.open_test(why) if split == "test" else splits.val if split == "val" else splits.train
    if part is None or part.labels is None:
        raise UserError(f"The {split} split has no labels; use `vitling predict`, which needs none.")
    return part


def _map_labels(model: Model, dataset: Dataset) -> Dataset:
    """Renumber the labels as in the model, by class name."""
    number = {name: c for c, name in enumerate(model.class_names)}
    counts = zip(dataset.class_names, dataset.count_classes())
    unknown = [name for name, count in counts if count and name not in number]
    if unknown:
        raise UserError(
            f"The model does not know {shorten_list(unknown)}. It knows {shorten_list(list(model.class_names))}."
        )
    columns = np.array([number.get(name, -1) for name in dataset.class_names])
    assert dataset.labels is not None
    if dataset.task == "multi" and model.meta.task != "multi":
        raise UserError("The images have several labels each, but the model was trained for one.")
    if dataset.task == "multi":
        labels = np.zeros((len(dataset), len(number)), bool)
        known = columns >= 0
        labels[:, columns[known]] = dataset.labels[:, known]
    else:
        labels = columns[dataset.labels]
        if model.meta.task == "multi":  # a table that happens to have one label per row
            labels = np.eye(len(number), dtype=bool)[labels]
    return replace(dataset, labels=labels, class_names=model.class_names, partial_labels=None)
