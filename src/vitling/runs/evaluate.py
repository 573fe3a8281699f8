"""How good a trained model is on a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np

from vitling.console import Log
from vitling.data.config import DataConfig
from vitling.data.dataset import BadFile, Dataset, Splits
from vitling.data.splits import read_splits
from vitling.data.store import Store, build_store
from vitling.errors import UserError
from vitling.evaluation.bundle import load
from vitling.evaluation.classify import compute_logits, get_labels
from vitling.evaluation.metrics import summarise
from vitling.evaluation.model import Model
from vitling.files import check_writable, read_json, write_json
from vitling.formatting import shorten_list
from vitling.settings.evaluation import EvaluationConfig
from vitling.training.processes import choose_device
from vitling.training.rundir import RunDirectory


def evaluate(config: EvaluationConfig) -> dict[str, Any]:
    """Everything that `summarise` says, of one split; also in `out` (JSON). `auto` takes test, else val, else train."""
    model, data = prepare_evaluation(config)
    model.require_head()
    splits = read_splits(config.source, data, needs_train=False)
    splits.on_test_opened = make_opening_recorder(config.run)
    chosen = _choose(splits, config.split)
    dataset = _in_terms_of(model, _part(splits, chosen, format_command(config)))
    log = Log()
    if was_trained_on(config.run, config.source, chosen):
        log.warning("The model was trained on these images (all but the ones held out); figures on them are too good.")
    store = decode_split(model, dataset, chosen, data, config.allow_bad, log, splits.bad)
    with log.progress("Evaluating", len(store)) as progress:
        logits = compute_logits(model.logits, store, model.meta.size, model.meta.crop_fraction, on_progress=progress)
    summary = summarise(logits, get_labels(store), model.class_names, model.meta.temperature)
    judged = {"model": config.run, "weights": config.weights, "size": model.meta.size}
    result: dict[str, Any] = {**judged, "data": config.source, "split": chosen, **summary}
    unread = [file for file in splits.bad if file.split == chosen]
    result["bad_files"] = [vars(file) for file in (*unread, *store.bad)]
    if config.out:
        write_json(Path(config.out), result)
    return result


def prepare_evaluation(config: EvaluationConfig) -> tuple[Model, DataConfig]:
    """The model, and how it wants images to be read; a UserError before anything was done for nothing."""
    config.check()
    if config.out:
        check_writable(config.out)
    model = load(config.run, config.weights, choose_device(config.device))
    model = model if config.size is None else model.resize(config.size)
    return model, match_model_input(model, config.data)


def format_command(config: EvaluationConfig) -> str:
    """Written down as the reason why the test split was opened."""
    size = "" if config.size is None else f" --size {config.size}"
    return f"vitling evaluate {config.run} {config.source}{size}"


def match_model_input(model: Model, config: DataConfig) -> DataConfig:
    return replace(config, channels=model.meta.channels, bits=model.meta.bits)


def decode_split(
    model: Model,
    dataset: Dataset,
    split: str,
    config: DataConfig,
    allow_bad: bool,
    log: Log,
    known: Sequence[BadFile] = (),
) -> Store:
    """The pixels of a split, large enough for the model's views, with the statistics that it was trained with. `known`:
    what was found to be bad before anything was decoded."""
    meta = model.meta
    with log.progress(f"Decoding {split}", len(dataset)) as progress:
        store = build_store(
            dataset, meta.store_size, config, model.device, "auto", allow_bad, split, True, progress, log.warning, known
        )
    store.mean, store.std = meta.mean, meta.std
    return store


def make_opening_recorder(model_path: str) -> Callable[[str], None]:
    """Where an opening of the test split is written down: in the run that the model is of, if it lies in one."""
    folder = _run_of(model_path)
    if folder is None:
        return lambda why: None
    run = RunDirectory(folder)

    def write_down(why: str) -> None:
        try:
            run.log_test_opening(why)
        except OSError as problem:  # somebody else's run
            Log().warning(f"The opening of the test split is not written down in {folder}: {problem.strerror}.")

    return write_down


def _run_of(model_path: str) -> Path | None:
    """The run itself, or the one whose model/ or best/ was named."""
    path = Path(model_path)
    there = (folder for folder in (path, path.resolve().parent) if (folder / "checkpoints").exists())
    return next((folder for folder in there if (folder / "config.json").exists()), None)


def was_trained_on(model_path: str, source: str, split: str, held_out_by: int | None = None) -> bool:
    """Whether the run was trained on images of this split: train, and the data's own val where --val, folds or
    `?val=train` made it a part of train. A val that was held out of train by a seed: unless the run held out the same.
    Data are known by their name: a copy elsewhere is not."""
    folder = _run_of(model_path)
    if folder is None:
        return False
    config = read_json(folder / "config.json")
    (trained, by), (asked, _) = (_without_val(name) for name in (str(config.get("source", "")), source))
    if trained != asked and Path(trained).resolve() != Path(asked).resolve():
        return False
    merged = config.get("val") is not None or config.get("data", {}).get("folds", 0) > 0 or by == "train"
    if held_out_by is not None:
        own = config.get("split_seed")  # None: its seed
        return merged or (config.get("seed") if own is None else own) != held_out_by
    return split == "train" or (split == "val" and merged)


def _without_val(source: str) -> tuple[str, str]:
    """The name of the data without the option `val`, and what that is."""
    name, _, query = source.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    val = options.pop("val", "")
    return f"{name}?{urlencode(options)}" if options else name, val


def _choose(splits: Splits, split: str) -> str:
    if split == "auto":
        return "test" if splits.has_test else "val" if splits.val is not None else "train"
    there = {"train": len(splits.train) > 0, "val": splits.val is not None, "test": splits.has_test}
    if not there[split]:
        has = ", ".join(name for name, is_there in there.items() if is_there)
        held = " What a run held out of train is judged in its evaluation.json." if split == "val" else ""
        raise UserError(f"The data has no {split} split of its own; it has {has}.{held}")
    return split


def _part(splits: Splits, split: str, why: str) -> Dataset:
    part = splits.open_test(why) if split == "test" else splits.val if split == "val" else splits.train
    if part is None or part.labels is None:
        raise UserError(f"The {split} split has no labels; `vitling predict` answers without them.")
    return part


def _in_terms_of(model: Model, dataset: Dataset) -> Dataset:
    """The same images with the model's class numbers: names decide, not their order."""
    number = {name: c for c, name in enumerate(model.class_names)}
    unknown = [name for name in _used(dataset) if name not in number]
    if unknown:
        raise UserError(
            f"The model does not know {shorten_list(unknown)}. It knows {shorten_list(list(model.class_names))}."
        )
    columns = np.array([number.get(name, -1) for name in dataset.class_names])
    assert dataset.labels is not None
    if dataset.task == "multi" and model.meta.task != "multi":
        raise UserError("The data has several labels an image, and the model was trained to give one.")
    if dataset.task == "multi":
        labels = np.zeros((len(dataset), len(number)), bool)
        known = columns >= 0
        labels[:, columns[known]] = dataset.labels[:, known]
    else:
        labels = columns[dataset.labels]
        if model.meta.task == "multi":  # a table whose rows happen to hold one label each
            labels = np.eye(len(number), dtype=bool)[labels]
    return Dataset(dataset.name, dataset.keys, dataset.reader, dataset.rows, labels, model.class_names, dataset.groups)


def _used(dataset: Dataset) -> list[str]:
    assert dataset.labels is not None
    used = np.unique(dataset.labels) if dataset.task == "single" else np.flatnonzero(dataset.labels.any(axis=0))
    return [dataset.class_names[c] for c in used]
