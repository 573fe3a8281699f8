"""Runs what a study still lacks, one run after the other, and writes down what each gave."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitling.console import Log
from vitling.errors import Interrupted, RunAborted, UserError
from vitling.files import check_writable, read_json, try_lock_folder
from vitling.papers import locations as datasets
from vitling.papers.ledger import Ledger, Rows, fingerprint
from vitling.papers.parallel import helper_command, run_helpers
from vitling.papers.reuse import reuse_rows
from vitling.papers.study import RunContext, Study, StudyRun
from vitling.papers.train_task import free_memory
from vitling.report.pictures import draw
from vitling.training.signals import raise_on_signal


@dataclass(frozen=True)
class Outcome:
    results: dict[str, Any]  # what is in the file
    path: Path
    failed: tuple[str, ...]  # in this session
    picture: Path | None = None  # that was drawn


@dataclass(frozen=True)
class _Job:
    run: StudyRun
    context: RunContext

    @property
    def name(self) -> str:
        return f"{self.run.name}, seed {self.context.seed}"

    @property
    def key(self) -> tuple[str, int]:
        return self.run.name, self.context.seed


def reproduce(
    study: Study,
    data: str | None = None,
    seeds: int = 1,
    only: tuple[str, ...] = (),
    minutes: float | None = None,
    epochs: int | None = None,
    runs_out: str | None = None,
    out: str | None = None,
    at_once: int = 1,
    sharing: int = 1,
) -> Outcome:
    """`epochs` makes it a trial, whose results are kept apart from the study's; `at_once` processes share the runs.

    `sharing` is for those that another began: how many they are in all, which rows say."""
    _check(seeds, epochs, minutes, at_once)
    folder = Path(runs_out or f"runs/{study.name}{f'-trial{epochs}' if epochs else ''}")
    path = Path(out or (folder / "results.json" if epochs else f"results/{study.name}.json"))
    check_writable(path)
    ledger, log = Ledger(path, study, epochs), Log()
    lacking = _lacking(ledger, _chosen(study, only), seeds)
    taken = reuse_rows(ledger, lacking)
    lacking, before = [one for one in lacking if one not in taken], ledger.rows()
    for same, seed in taken:
        log.info(f"{same.name}, seed {seed}, is {before[same.name, seed]['origin']}.")
    everywhere = RunContext(
        folder, epochs=epochs, stages=Path(runs_out or "runs") / "stages"
    )  # stages: for all studies
    jobs = _ready(lacking, data, everywhere, log)
    for run in ledger.stale():
        log.warning(f"{path} has figures of {run} that were made with other settings; delete its rows to run it again.")
    settings = {"data": data, "seeds": seeds, "only": only, "minutes": minutes, "epochs": epochs}
    processes = max(1, min(at_once, len(jobs)))
    command = helper_command(study.name, **settings, runs_out=runs_out, out=out, sharing=processes)
    session = _Session(ledger, before, minutes, max(processes, sharing), log)
    with raise_on_signal("Stopped. What has finished is kept."):  # between trainings, which save themselves
        with run_helpers(command, processes - 1, folder, log):
            session.run_all(jobs)
        if at_once > 1:
            session.run_all(jobs)  # what a process that was killed has left
    failed = session.failed_of(jobs)
    results, picture = ledger.content(), path.with_suffix(".png")
    drawn = study.picture and draw(results, picture, folder)
    return Outcome(results, path, tuple(failed), picture if drawn else None)


def _check(seeds: int, epochs: int | None, minutes: float | None, at_once: int) -> None:
    for flag, value in (("seeds", seeds), ("epochs", epochs), ("at-once", at_once)):
        if value is not None and value < 1:
            raise UserError(f"--{flag} must be at least 1, not {value}.")
    if minutes is not None and minutes < 0:
        raise UserError(f"--minutes must not be negative, but is {minutes:g}.")
    if int(os.environ.get("WORLD_SIZE") or "1") > 1:
        raise UserError("A study runs in one process. Start it without torchrun.")
    if at_once > 1 and os.name == "nt":
        raise UserError("--at-once: on Windows processes cannot tell what others work at. Leave it out.")


def _chosen(study: Study, only: tuple[str, ...]) -> list[StudyRun]:
    chosen = study.select_runs(only) if only else list(study.runs)
    if not chosen:
        raise UserError(f"No run of {study.name} has {' or '.join(only)} in its name; {study.runs[0].name} is one.")
    return chosen


def _lacking(ledger: Ledger, chosen: list[StudyRun], seeds: int) -> list[tuple[StudyRun, int]]:
    """The whole table with one seed first."""
    rows = ledger.rows()
    pairs = ((run, seed) for seed in range(seeds) for run in chosen)
    return [(run, seed) for run, seed in pairs if "value" not in rows.get((run.name, seed), {})]


def _ready(lacking: list[tuple[StudyRun, int]], data: str | None, everywhere: RunContext, log: Log) -> list[_Job]:
    """Those whose data and weights are there; what the others want is said."""
    where = datasets.check_folder(data) if any(run.needed_data for run, _ in lacking) else Path()
    splits = {
        name: datasets.find_data(name, where) for name in {name: 0 for run, _ in lacking for name in run.needed_data}
    }
    weights = {name: datasets.find_weights(name, where) for name in {run.weights: 0 for run, _ in lacking} if name}
    jobs = [
        _Job(run, _start(run, seed, replace(everywhere, folder=where), splits, weights))
        for run, seed in lacking
        if all(splits[name] for name in run.needed_data) and (not run.weights or weights[run.weights])
    ]
    no_data, no_weights = ([name for name, place in found.items() if not place] for found in (splits, weights))
    missing = [f"  {line}" for line in datasets.wanted(no_data, no_weights, where)]
    if lacking and not jobs:
        raise UserError("\n".join([f"Nothing can run: {where} lacks", *missing]))
    if missing:
        log.info("\n".join([f"{len(lacking) - len(jobs)} of {len(lacking)} runs are skipped: {where} lacks", *missing]))
    return jobs


def _start(
    run: StudyRun, seed: int, everywhere: RunContext, splits: dict[str, Any], weights: dict[str, str | None]
) -> RunContext:
    train, test = splits.get(run.data) or ("", "")
    pretrain_source, _ = splits.get(run.pretrain_data) or ("", "")
    return replace(
        everywhere,
        out=everywhere.out / f"{run.name}-seed{seed}",
        seed=seed,
        data=run.data,
        train=train,
        test=test,
        pretrain_data=run.pretrain_data,
        pretrain_source=pretrain_source,
        weights=weights.get(run.weights) or "",
    )


class _Session:
    """This process's part in the runs: those that no other of this machine works at, or has ended since it began."""

    def __init__(self, ledger: Ledger, before: Rows, minutes: float | None, sharing: int, log: Log):
        self.ledger, self.before, self.minutes, self.sharing, self.log = ledger, before, minutes, sharing, log
        self.began = time.monotonic()
        self.tried: list[_Job] = []

    def run_all(self, jobs: list[_Job]) -> None:
        left = [job for job in jobs if not self._has_ended(job)]
        while left:
            spent, over = (time.monotonic() - self.began) / 60, len(jobs) - len(left)
            if self.minutes is not None and spent >= self.minutes:
                self.log.info(f"{spent:.0f} minutes are spent; {len(left)} runs are left for another time.")
                return
            with _free_one(left) as job:
                if job is None:
                    self.log.info(f"The last {len(left)} of {len(jobs)} runs are other processes'.")
                    return
                left.remove(job)
                if not self._has_ended(job):
                    to_go = f" {_about(spent / over * (len(left) + 1))} to go." if over else ""
                    self.log.info(f"Run {over + 1} of {len(jobs)}: {job.name}.{to_go}")
                    self._run(job)

    def _run(self, job: _Job) -> None:
        self.tried.append(job)
        reason = _run(job, self.ledger, {"at_once": self.sharing} if self.sharing > 1 else {})
        if reason:
            self.log.warning(f"{job.name} failed: {reason}")
        free_memory()

    def _has_ended(self, job: _Job) -> bool:
        """One that was stopped has not: it goes on from its checkpoint."""
        row = self.ledger.rows().get(job.key, {})
        return job in self.tried or ({"value", "failed"} & row.keys() != set() and row != self.before.get(job.key))

    def failed_of(self, jobs: list[_Job]) -> list[str]:
        """Here and in other processes."""
        rows = self.ledger.rows()
        return [job.name for job in jobs if self._has_ended(job) and "failed" in rows.get(job.key, {})]


@contextmanager
def _free_one(jobs: list[_Job]) -> Iterator[_Job | None]:
    """The first that no other process works at, for this one alone as long as the block lasts. One that would have to
    wait for a stage that another process is training comes last."""
    for ready in (True, False):
        for job in jobs:
            with try_lock_folder(job.context.out) as mine:
                if mine and not (ready and _must_wait(job)):
                    yield job
                    return
    yield None


def _must_wait(job: _Job) -> bool:
    stages = getattr(job.run.task, "stages", None)
    return stages is not None and any(stage.is_claimed_elsewhere for stage in stages(job.context))


def _about(minutes: float) -> str:
    if minutes < 0.75:
        return "Less than a minute"
    return f"About {minutes:.0f} minutes" if minutes >= 1.5 else "About a minute"


def _run(job: _Job, ledger: Ledger, how: dict[str, int]) -> str | None:
    """The reason of a failure, which ends this run and not the study. `how` goes into its row."""
    out, began = job.context.out, time.monotonic()
    row = {"run": job.run.name, "seed": job.context.seed} | how
    was_finished = (out / "result.json").exists()

    def record(given: dict[str, Any]) -> None:
        shared = sum(stage["seconds"] for stage in given.get("stages", []) if stage["shared"])
        own = given.get("seconds", 0.0) - shared  # over all starts, also those that were killed
        took = own if was_finished and own else max(own, time.monotonic() - began)
        about = {"minutes": took / 60, "fingerprint": fingerprint(job.run), "environment": _environment(out)}
        ledger.record(row | given | about)

    try:
        given = job.run.task(job.context)
    except Interrupted as stop:
        record({"stopped": str(stop)})
        raise
    except Exception as problem:
        plain = isinstance(problem, UserError | RunAborted)
        reason = str(problem) if plain else f"{type(problem).__name__}: {str(problem).partition(chr(10))[0][:300]}"
        record({"failed": _without_folders(reason, job.context)})
        return reason
    cautions = [*([given["caution"]] if "caution" in given else []), *_other_images(job.run, given)]
    record(given | ({"caution": "; ".join(cautions)} if cautions else {}))
    return None


def _without_folders(reason: str, context: RunContext) -> str:
    """Where things lie on this machine says nothing elsewhere."""
    for folder in (context.out.parent, context.stages, context.folder):
        for written in (str(folder.resolve()), str(folder)):
            reason = reason.replace(f"{written}{os.sep}", "") if written != "." else reason
    return reason


def _other_images(run: StudyRun, given: dict[str, Any]) -> list[str]:
    """A figure from a part of a data set is not one of the data set."""
    own, before = (datasets.DATASETS.get(name) for name in (run.data, run.pretrain_data))
    seen = (
        ("images", "training images", own and own.train),
        ("images_tested", "test images", own and own.test),
        ("images_before", "images to pre-train on", before and before.train),
    )
    return [
        f"{given[key]:,} {what}, not {count:,}"
        for key, what, count in seen
        if count is not None and given.get(key) not in (None, count)
    ]


def _environment(out: Path) -> dict[str, Any]:
    """Versions and machine of the run's last start; its command names folders that say nothing elsewhere."""
    from vitling.training.rundir import describe_environment

    there = out / "environment.json"
    found = read_json(there) if there.exists() else describe_environment()
    return {name: value for name, value in found.items() if name != "command"}
