"""Frozen networks on the datasets of the papers: every dataset that is there, every network, every probe.

Each (network, dataset, probe) is a file, so a stopped suite repeats nothing that has finished.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch

from vitling.console import Log
from vitling.data.config import DataConfig
from vitling.errors import InvalidFile, UserError
from vitling.evaluation.bundle import CONFIG, WEIGHTS, find_bundle, load
from vitling.evaluation.config import Probe, ProbesConfig
from vitling.evaluation.model import Model
from vitling.evaluation.probes import PROBES, ProbeTask, SplitFeatures, default_ks
from vitling.files import write_json
from vitling.loading import open_regular, read_bytes, read_record
from vitling.metric_names import BY_PAPER, flag_of_paper_metric
from vitling.papers import datasets
from vitling.papers.datasets.entry import Entry
from vitling.papers.locations import find_data
from vitling.papers.suite.config import SuiteConfig
from vitling.papers.suite.table import Cell, summarise
from vitling.runs.evaluate import make_opening_recorder, match_model_input
from vitling.runs.probes import ProbeSplits, compute_split_features, hash_splits, open_probe_splits
from vitling.training.processes import choose_device
from vitling.training.rundir import describe_environment
from vitling.training.signals import raise_on_signal

RESULT = "suite.json"


class CellImages(TypedDict):
    train: int
    validation: int
    evaluated: int


class SuiteCell(TypedDict):
    """Cell of a suite: one network, dataset and probe."""

    made_from: str
    metrics: dict[str, float]
    images: CellImages


@dataclass(frozen=True)
class SuiteJob:
    """A network and a dataset, whose cells are files in a separate folder."""

    run: str
    digest: str  # of the model: training it again makes another network
    entry: Entry
    source: str  # DATA
    made_from: str  # digest of the source and of how it is read
    folder: Path

    def path(self, probe: str) -> Path:
        return self.folder / f"{probe}.json"

    def has_finished(self, probe: str) -> bool:
        """Return whether the probe's file is complete and made from this source; a damaged one is measured again."""
        path = self.path(probe)
        with suppress(InvalidFile):
            return path.exists() and read_record(path, SuiteCell)["made_from"] == self.made_from
        return False


@dataclass(frozen=True)
class SuiteResult:
    """The table of a suite."""

    summary: dict[str, Any]  # content of suite.json
    path: Path
    failed: dict[str, Exception]  # in this session, by what was being measured


def run_suite(config: SuiteConfig) -> SuiteResult:
    """Evaluate what has not finished, and write the table of everything that has."""
    _check(config)
    log, root, out = Log(), Path(config.data_root).absolute(), Path(config.out)
    entries = config.entries()
    sources = {entry.name: source for entry in entries if (source := find_source(entry.name, root))}
    _report_missing(entries, sources, root, log)
    jobs = [
        SuiteJob(run, digest, entry, source, hash_source(source, config.data), folder / entry.name)
        for run in config.runs
        for digest in [hash_model(run, config.weights)]
        for folder in [out / f"{Path(run).resolve().name}-{digest}"]
        for entry in entries
        if (source := sources.get(entry.name))
    ]
    path, failed = out / RESULT, dict[str, Exception]()
    with raise_on_signal(f"Stopped. Run the same command again to continue; finished figures are in {out}."):
        for job in jobs:
            if any(not job.has_finished(probe) for probe in config.probes):
                failed |= _evaluate(job, config, log)
        summary = summarise(_read_cells(jobs, config), config)
        write_json(path, summary)
    return SuiteResult(summary, path, failed)


def find_source(name: str, root: Path) -> str | None:
    """Find a dataset under the root: a copy as distributed, or as `vitling reproduce` takes it."""
    if native := datasets.find_copy(name, root):
        return native
    found = find_data(name, root)
    return f"train={found[0]},test={found[1]}" if found else None


def hash_model(run: str, weights: Literal["last", "best"]) -> str:
    """Hash the weights and everything else that decides answers: sizes, mean and std of the pixels."""
    folder = find_bundle(run, weights)
    digest = hashlib.blake2b(read_bytes(folder / CONFIG))
    with open_regular(folder / WEIGHTS) as file:
        digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()[:8]


def hash_source(source: str, config: DataConfig) -> str:
    settings = json.dumps([source, asdict(replace(config, download=False))], sort_keys=True, default=str)
    return hashlib.blake2b(settings.encode()).hexdigest()[:8]


def _check(config: SuiteConfig) -> None:
    if not config.runs:
        raise UserError("No network is given; type vitling suite RUN ... --data-root DIR")
    if not Path(config.data_root).is_dir():
        raise UserError(f"--data-root {config.data_root} does not exist.")


def _report_missing(entries: Sequence[Entry], sources: dict[str, str], root: Path, log: Log) -> None:
    missing = [entry.name for entry in entries if entry.name not in sources]
    if not sources:
        raise UserError(
            f"{root} has none of {', '.join(missing)}. Put each into a folder of its name, as distributed "
            "(`vitling list datasets`), or sorted into NAME/train/CLASS/ and NAME/test/CLASS/."
        )
    if missing:
        log.info(f"Skipped, because {root} does not have them: {', '.join(missing)}.")


def _evaluate(job: SuiteJob, config: SuiteConfig, log: Log) -> dict[str, Exception]:
    """Evaluate the missing cells. A failure is logged, and ends neither the others nor the suite."""
    missing = tuple(probe for probe in config.probes if not job.has_finished(probe))
    if other := [probe for probe in missing if job.path(probe).exists()]:
        log.info(
            f"{job.entry.name}, {job.run}: {', '.join(other)} was measured with other images or other settings of the "
            "data; measuring it again."
        )
    log.info(f"{job.entry.name}, {job.run}: features")
    try:
        task, about = _prepare_task(job, missing, config, log)
    except (UserError, OSError, torch.OutOfMemoryError) as problem:
        log.warning(f"{job.entry.name} is skipped for {job.run}: {problem}")
        return {f"{job.entry.name} of {job.run}": problem}
    failed: dict[str, Exception] = {}
    for probe in missing:
        log.info(f"{job.entry.name}, {job.run}: {probe}")
        try:
            _write_cell(job, probe, task, about, config, log)
        except (UserError, OSError, torch.OutOfMemoryError) as problem:
            log.warning(f"{probe} on {job.entry.name} failed for {job.run}: {problem}")
            failed[f"{probe} on {job.entry.name} of {job.run}"] = problem
    return failed


def _write_cell(
    job: SuiteJob, probe: str, task: ProbeTask, about: dict[str, Any], config: SuiteConfig, log: Log
) -> None:
    began = time.monotonic()
    found = PROBES[probe](task, log)
    metrics = {name: found["metrics"].get(metric.key) for name, metric in BY_PAPER.items()}
    cell = {
        "run": job.run,
        "weights": config.weights,
        "model": job.digest,
        "data": job.entry.name,
        "source": job.source,
        "made_from": job.made_from,
        "probe": probe,
        **{name: found[name] for name in ("chosen", "validation")},
        "metrics": {name: value for name, value in metrics.items() if value is not None},
        "seconds": round(time.monotonic() - began, 3),
        **about,
        "environment": describe_environment(),
    }
    write_json(job.path(probe), cell)


def _prepare_task(
    job: SuiteJob, probes: tuple[Probe, ...], config: SuiteConfig, log: Log
) -> tuple[ProbeTask, dict[str, Any]]:
    """Compute features of train, validation and test for the probes; return them with their part of the cells."""
    model = load(job.run, config.weights, choose_device(config.device))
    settings = ProbesConfig(metric=flag_of_paper_metric(job.entry.metric))
    splits, features = _compute_features(job, model, probes, settings, config, log)
    images = {name: len(part.labels) for name, part in features.items()}
    settings = replace(settings, knn=replace(settings.knn, k=default_ks(images["train"])))
    names = splits.train.class_names
    about = {
        "images": images,
        "classes": len(names),
        "notes": splits.notes,
        "data_hashes": hash_splits(splits, features),
    }
    parts = {name: part._replace(store=None) for name, part in features.items()}  # frees the images
    return ProbeTask(model, settings, names, parts), about


def _compute_features(
    job: SuiteJob, model: Model, probes: tuple[Probe, ...], settings: ProbesConfig, config: SuiteConfig, log: Log
) -> tuple[ProbeSplits, dict[str, SplitFeatures]]:
    data = match_model_input(model, config.data)
    splits = open_probe_splits(job.source, data, "test", settings)
    splits.splits.on_test_opened = make_opening_recorder(job.run)
    test = splits.open_eval_split(f"vitling suite {job.run}, {job.entry.name}")
    return splits, compute_split_features(model, splits, test, data, config.allow_bad, probes, settings, log)


def _read_cells(jobs: Sequence[SuiteJob], config: SuiteConfig) -> list[Cell]:
    found = []
    for job in jobs:
        for probe in config.probes:
            if job.has_finished(probe):
                cell, metric = read_record(job.path(probe), SuiteCell), job.entry.metric_in(config.table)
                found.append(Cell(job.run, job.entry.name, probe, metric, cell["metrics"].get(metric), cell))
    return found
