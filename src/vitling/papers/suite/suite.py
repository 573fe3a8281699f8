"""Frozen networks on the data sets of the papers: each data set that is there, each network, each probe.

What is finished is a file, one for each (network, data set, probe), so a suite that was stopped repeats nothing of it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitling.console import Log
from vitling.data.config import DataConfig
from vitling.errors import UserError
from vitling.evaluation.bundle import CONFIG, WEIGHTS, find_bundle, load
from vitling.evaluation.config import Probe, ProbesConfig
from vitling.evaluation.model import Model
from vitling.evaluation.probe_features import FrozenFeatures
from vitling.files import atomic_write, read_json, write_json
from vitling.metric_names import BY_PAPER, flag_of_paper_metric
from vitling.papers import datasets
from vitling.papers.datasets.entry import Entry
from vitling.papers.locations import find_data
from vitling.papers.suite.config import SuiteConfig
from vitling.papers.suite.table import Cell, summarise
from vitling.runs.evaluate import make_opening_recorder, match_model_input
from vitling.runs.probes import PROBES, ProbeTask, SplitFeatures, compute_split_features, default_ks, open_probe_splits
from vitling.training.processes import choose_device
from vitling.training.rundir import describe_environment
from vitling.training.signals import raise_on_signal

RESULT = "suite.json"
SPLITS = ("train", "validation", "judged")


@dataclass(frozen=True)
class SuiteJob:
    """A network and a data set; their cells are files in a folder of their own."""

    run: str
    digest: str  # of the model: another training in the same place is another network
    entry: Entry
    source: str  # the data set as a DATA
    made_from: str  # digest of the source and of how it is read: figures of other images are not of these
    folder: Path

    def path(self, probe: str) -> Path:
        return self.folder / f"{probe}.json"

    def finished(self, probe: str) -> bool:
        path = self.path(probe)
        return path.exists() and read_json(path).get("made_from") == self.made_from

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
        SuiteJob(run, digest, entry, source, made_from(source, config.data), out / label_of(run, digest) / entry.name)
        for run in config.runs
        for digest in [digest_of(run, config.weights)]
        for entry in entries
        if (source := sources.get(entry.name))
    ]
    path, failed = out / RESULT, []
    with raise_on_signal(f"Stopped. The same command goes on: what is finished is in {out}."):
        for place in places:
            if any(not place.finished(probe) for probe in config.probes):
                failed += _evaluate(place, config, log)
        summary = summarise(_cells(places, config), config)
        write_json(path, summary)
    return Outcome(summary, path, tuple(failed))


def find(name: str, root: Path) -> str | None:
    """The DATA of a data set under the root: a copy as distributed, or one that `vitling reproduce` takes."""
    if native := datasets.find_copy(name, root):
        return native
    found = find_data(name, root)
    return f"train={found[0]},test={found[1]}" if found else None


def label_of(run: str, digest: str) -> str:
    return f"{Path(run).resolve().name}-{digest}"


def digest_of(run: str, weights: Literal["last", "best"]) -> str:
    """Of the weights, and of what else answers hang on: sizes, and mean and deviation of the pixels."""
    folder = find_bundle(run, weights)
    digest = hashlib.blake2b((folder / CONFIG).read_bytes())
    with (folder / WEIGHTS).open("rb") as file:
        digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()[:8]


def made_from(source: str, config: DataConfig) -> str:
    settings = json.dumps([source, asdict(replace(config, download=False))], sort_keys=True, default=str)
    return hashlib.blake2b(settings.encode()).hexdigest()[:8]


def _check(config: SuiteConfig) -> None:
    if not config.runs:
        raise UserError("Which networks? vitling suite RUN ... --data-root DIR")
    if not Path(config.data_root).is_dir():
        raise UserError(f"--data-root {config.data_root}: there is no such folder.")


def _say_what_is_not_there(entries: Sequence[Entry], sources: dict[str, str], root: Path, log: Log) -> None:
    missing = [entry.name for entry in entries if entry.name not in sources]
    if not sources:
        raise UserError(
            f"{root} has none of {', '.join(missing)}. Put each into a folder of its name, as distributed "
            "(`vitling list datasets`), or sorted into NAME/train/CLASS/ and NAME/test/CLASS/."
        )
    if missing:
        log.info(f"Skipped, for they are not in {root}: {', '.join(missing)}.")


def _evaluate(place: SuiteJob, config: SuiteConfig, log: Log) -> list[str]:
    """The cells that are lacking; what fails is said, and ends neither the others nor the suite."""
    lacking = tuple(probe for probe in config.probes if not place.finished(probe))
    if other := [probe for probe in lacking if place.path(probe).exists()]:
        log.info(f"{place.entry.name}, {place.run}: {', '.join(other)} of other images, or read otherwise; again.")
    log.info(f"{place.entry.name}, {place.run}: features")
    try:
        bench, about = _bench(place, lacking, config, log)
    except (UserError, OSError, torch.OutOfMemoryError) as problem:
        log.warning(f"{place.entry.name} is left out for {place.run}: {problem}")
        return [f"{place.entry.name} of {place.run}"]
    failed = []
    for probe in lacking:
        log.info(f"{place.entry.name}, {place.run}: {probe}")
        try:
            _write(place, probe, bench, about, config, log)
        except (UserError, OSError, torch.OutOfMemoryError) as problem:
            log.warning(f"{probe} on {place.entry.name} failed for {place.run}: {problem}")
            failed.append(f"{probe} on {place.entry.name} of {place.run}")
    if not failed:
        for path in place.folder.glob("features-*.npz"):
            path.unlink()
    return failed


def _write(place: SuiteJob, probe: str, bench: ProbeTask, about: dict[str, Any], config: SuiteConfig, log: Log) -> None:
    began = time.monotonic()
    found = PROBES[probe](bench, log)
    metrics = {name: found["metrics"].get(metric.key) for name, metric in BY_PAPER.items()}
    cell = {
        "run": place.run,
        "weights": config.weights,
        "model": place.digest,
        "data": place.entry.name,
        "source": place.source,
        "made_from": place.made_from,
        "probe": probe,
        **{name: found[name] for name in ("chosen", "validation")},
        "metrics": {name: value for name, value in metrics.items() if value is not None},
        "seconds": round(time.monotonic() - began, 3),
        **about,
        "environment": describe_environment(),
    }
    write_json(place.path(probe), cell)


def _bench(
    place: SuiteJob, probes: tuple[Probe, ...], config: SuiteConfig, log: Log
) -> tuple[ProbeTask, dict[str, Any]]:
    """Features of train, validation and test, kept in a file until every probe has seen them."""
    model = load(place.run, config.weights, choose_device(config.device))
    settings = ProbesConfig(metric=flag_of_paper_metric(place.entry.metric))
    path = place.features(settings.linear.blocks if "linear" in probes else 0)
    arrays = _kept(path, place)
    if not arrays:
        _embed(place, model, probes, settings, config, path, log)
        arrays = _kept(path, place)
    parts = {
        name: SplitFeatures(
            None, FrozenFeatures(*(_tensor(arrays[f"{name}_{kind}"], model) for kind in FrozenFeatures._fields)), labels
        )
        for name in SPLITS
        for labels in [_tensor(arrays[f"{name}_labels"], model)]
    }
    images = {name: len(part.labels) for name, part in parts.items()}
    settings = replace(settings, knn=replace(settings.knn, k=default_ks(images["train"])))
    names = tuple(arrays["class_names"].tolist())
    about = {"images": images, "classes": len(names), "notes": arrays["notes"].tolist()}
    return ProbeTask(model, settings, names, parts), about


def _kept(path: Path, place: SuiteJob) -> dict[str, np.ndarray]:
    """The features of before, if they are of these images; else nothing."""
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as file:
        same = "made_from" in file.files and str(file["made_from"]) == place.made_from
        return {name: file[name] for name in file.files} if same else {}


def _tensor(array: np.ndarray, model: Model) -> Tensor:
    return torch.from_numpy(array).to(model.device)


def _embed(
    place: SuiteJob,
    model: Model,
    probes: tuple[Probe, ...],
    settings: ProbesConfig,
    config: SuiteConfig,
    path: Path,
    log: Log,
) -> None:
    data = match_model_input(model, config.data)
    splits = open_probe_splits(place.source, data, "test", settings)
    splits.splits.on_test_opened = make_opening_recorder(place.run)
    test = splits.open_eval_split(f"vitling suite {place.run}, {place.entry.name}")
    parts = compute_split_features(model, splits, test, data, config.allow_bad, probes, settings, log)
    arrays = {"class_names": np.array(splits.train.class_names), "notes": np.array(splits.notes, dtype=np.str_)}
    arrays["made_from"] = np.array(place.made_from)
    for name, part in parts.items():
        known = {**part.frozen._asdict(), "labels": part.labels}
        arrays |= {f"{name}_{kind}": value.cpu().numpy() for kind, value in known.items()}
    with atomic_write(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def _cells(places: Sequence[SuiteJob], config: SuiteConfig) -> list[Cell]:
    found = []
    for place in places:
        for probe in config.probes:
            if place.finished(probe):
                cell, metric = read_json(place.path(probe)), place.entry.metric_in(config.table)
                found.append(Cell(place.run, place.entry.name, probe, metric, cell["metrics"].get(metric), cell))
    return found
