"""Frozen networks on the data sets of the papers: each data set that is there, each network, each probe.

What is finished is a file, one for each (network, data set, probe), so a suite that was stopped repeats nothing of it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from vitling.console import Log
from vitling.data import papers
from vitling.data.dataset import Dataset, Splits
from vitling.data.papers.entry import Entry
from vitling.data.splits import open as open_data
from vitling.data.splits import require_labels
from vitling.data.store import build_store
from vitling.errors import UserError
from vitling.evaluation.bundle import WEIGHTS, bundle_folder, load
from vitling.evaluation.config import LinearConfig
from vitling.evaluation.model import Model
from vitling.evaluation.paper_metrics import METRICS, all_metrics
from vitling.evaluation.probe_features import frozen_over
from vitling.files import atomic, read_json, write_json
from vitling.recipes.evaluate import log_of_openings
from vitling.recipes.studies.datasets import find_data
from vitling.recipes.suite_config import SuiteConfig
from vitling.recipes.suite_probes import OF_BLOCKS, PROBES, Bench, Features
from vitling.recipes.suite_table import Cell, summary_of
from vitling.training.processes import choose_device
from vitling.training.rundir import environment
from vitling.training.signals import ended

RESULT = "suite.json"
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Place:
    """A network and a data set; their cells are files in a folder of their own."""

    run: str
    digest: str  # of the weights: another training in the same place is another network
    entry: Entry
    source: str  # the data set as a DATA
    folder: Path

    def path(self, probe: str) -> Path:
        return self.folder / f"{probe}.json"

    def finished(self, probe: str) -> bool:
        return self.path(probe).exists()

    def features(self, blocks: int) -> Path:
        return self.folder / f"features-{blocks}.npz"


@dataclass(frozen=True)
class Outcome:
    summary: dict[str, Any]  # what is in suite.json
    path: Path
    failed: tuple[str, ...]  # in this session


def suite(config: SuiteConfig) -> Outcome:
    """Evaluates what is not finished, and gives the table of all that is."""
    _check(config)
    log, root, out = Log(), Path(config.data_root).absolute(), Path(config.out)
    entries = config.entries()
    sources = {entry.name: source for entry in entries if (source := find(entry.name, root))}
    _say_what_is_not_there(entries, sources, root, log)
    places = [
        Place(run, digest, entry, sources[entry.name], out / label_of(run, digest) / entry.name)
        for run in config.runs
        for digest in [digest_of(run, config.weights)]
        for entry in entries
        if entry.name in sources
    ]
    path, failed = out / RESULT, []
    with ended(f"Stopped. The same command goes on: what is finished is in {out}."):
        for place in places:
            if any(not place.finished(probe) for probe in config.probes):
                failed += _evaluate(place, config, log)
        summary = summary_of(_cells(places, config), config)
        write_json(path, summary)
    return Outcome(summary, path, tuple(failed))


def find(name: str, root: Path) -> str | None:
    """The DATA of a data set under the root: a copy as distributed, or one that `vitling reproduce` takes."""
    if native := papers.find(name, root):
        return native
    found = find_data(name, root)
    return f"train={found[0]},test={found[1]}" if found else None


def label_of(run: str, digest: str) -> str:
    return f"{Path(run).resolve().name}-{digest}"


def digest_of(run: str, weights: Literal["last", "best"]) -> str:
    with (bundle_folder(run, weights) / WEIGHTS).open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:8]


def _check(config: SuiteConfig) -> None:
    if not config.runs:
        raise UserError("Which networks? vitling suite RUN ... --data-root DIR")
    if not Path(config.data_root).is_dir():
        raise UserError(f"--data-root {config.data_root}: there is no such folder.")
    if unknown := [name for name in config.probes if name not in PROBES]:
        raise UserError(f"--with {' '.join(unknown)}: there is {', '.join(PROBES)}.")


def _say_what_is_not_there(entries: Sequence[Entry], sources: dict[str, str], root: Path, log: Log) -> None:
    missing = [entry.name for entry in entries if entry.name not in sources]
    if not sources:
        raise UserError(
            f"{root} has none of {', '.join(missing)}. Put each into a folder of its name, as distributed "
            "(`vitling list datasets`), or sorted into NAME/train/CLASS/ and NAME/test/CLASS/."
        )
    if missing:
        log.say(f"Skipped, for they are not in {root}: {', '.join(missing)}.")


def _evaluate(place: Place, config: SuiteConfig, log: Log) -> list[str]:
    """The cells that are lacking; what fails is said, and ends neither the others nor the suite."""
    try:
        model = load(place.run, config.weights, choose_device(config.device))
        about, parts = _features(place, model, config, log)
    except UserError as problem:
        log.warn(f"{place.entry.name} is left out for {place.run}: {problem}")
        return [f"{place.entry.name} of {place.run}"]
    failed = []
    train, val, test = parts
    bench = Bench(train, val, test, about["classes"], METRICS[place.entry.metric])
    for probe in config.probes:
        if place.finished(probe):
            continue
        log.say(f"{place.entry.name}, {place.run}: {probe}")
        try:
            _write(place, probe, bench, about, config)
        except UserError as problem:
            log.warn(f"{probe} on {place.entry.name} failed for {place.run}: {problem}")
            failed.append(f"{probe} on {place.entry.name} of {place.run}")
    if not failed:
        for path in place.folder.glob("features-*.npz"):
            path.unlink()
    return failed


def _write(place: Place, probe: str, bench: Bench, about: dict[str, Any], config: SuiteConfig) -> None:
    began = time.monotonic()
    answers = PROBES[probe](bench)
    metrics = all_metrics(answers.scores, bench.test.labels)
    cell = {
        "run": place.run,
        "weights": config.weights,
        "model": place.digest,
        "data": place.entry.name,
        "source": place.source,
        "probe": probe,
        "settings": answers.settings,
        "metrics": metrics,
        "seconds": round(time.monotonic() - began, 3),
        **about,
        "environment": environment(),
    }
    write_json(place.path(probe), cell)


def _features(place: Place, model: Model, config: SuiteConfig, log: Log) -> tuple[dict[str, Any], list[Features]]:
    """Of train, val and test; kept in a file until every probe has seen them."""
    lacking = [probe for probe in config.probes if not place.finished(probe)]
    blocks = LinearConfig().blocks if OF_BLOCKS & set(lacking) else 0
    path = place.features(blocks)
    if not path.exists():
        _embed(place, model, config, min(blocks, len(model.backbone.parts())), path, log)
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    about: dict[str, Any] = {"images": {split: len(arrays[f"{split}_labels"]) for split in SPLITS}}
    about |= {"classes": int(arrays["classes"]), "notes": arrays["notes"].tolist()}
    parts = [
        Features(*(torch.from_numpy(arrays[f"{split}{part}"]).to(model.device) for part in ("", "_blocks", "_labels")))
        for split in SPLITS
    ]
    return about, parts


def _embed(place: Place, model: Model, config: SuiteConfig, blocks: int, path: Path, log: Log) -> None:
    data = replace(config.data, channels=model.meta.channels, bits=model.meta.bits)
    splits = open_data(place.source, data)
    require_labels(splits)
    splits.on_test_opened = log_of_openings(place.run)
    arrays: dict[str, np.ndarray] = {}
    for split, dataset in _parts(splits, place):
        with log.bar(f"{place.entry.name}: decoding {split}", len(dataset)) as progress:
            where = model.meta.store_size, data, model.device, "auto", config.allow_bad, split, True
            store = build_store(dataset, *where, progress, log.warn)  # type: ignore[arg-type]
        store.mean, store.std = model.meta.mean, model.meta.std
        with log.bar(f"{place.entry.name}: features of {split}", len(store)) as progress:
            size, crop = model.meta.size, model.meta.crop_fraction
            found = frozen_over(model.backbone, store, size, crop, blocks, on_progress=progress)
        assert store.labels is not None
        known = {split: found.pooled, f"{split}_blocks": found.blocks, f"{split}_labels": store.labels}
        arrays |= {name: value.cpu().numpy() for name, value in known.items()}
    arrays["classes"] = np.array(len(splits.train.class_names))
    arrays["notes"] = np.array(splits.notes, dtype=np.str_)
    with atomic(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def _parts(splits: Splits, place: Place) -> list[tuple[str, Dataset]]:
    test = splits.open_test(f"vitling suite {place.run}, {place.entry.name}")
    assert splits.val is not None  # a tenth of train, where the data have none
    return [("train", splits.train), ("val", splits.val), ("test", test)]


def _cells(places: Sequence[Place], config: SuiteConfig) -> list[Cell]:
    found = []
    for place in places:
        for probe in config.probes:
            if place.finished(probe):
                cell, metric = read_json(place.path(probe)), place.entry.metric_in(config.table)
                found.append(Cell(place.run, place.entry.name, probe, metric, cell["metrics"].get(metric), cell))
    return found
