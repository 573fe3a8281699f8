"""Measure what a study still lacks, run by run, and record each result."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitling.console import Log
from vitling.data.host import read_number
from vitling.errors import Interrupted, RunAborted, UserError
from vitling.files import check_writable, try_lock_folder
from vitling.loading import read_record
from vitling.papers.ledger import Ledger, Rows, fingerprint
from vitling.papers.locations import DATASETS, check_folder, describe_missing, find_data, find_weights
from vitling.papers.parallel import make_helper_command, run_helpers
from vitling.papers.pictures.draw import draw
from vitling.papers.reuse import reuse_rows
from vitling.papers.study import RunContext, Study, StudyRun
from vitling.papers.train_task import free_graphs
from vitling.records import Environment
from vitling.training.signals import raise_on_signal


@dataclass(frozen=True)
class ReproduceResult:
    """Results of a session and of those before it."""

    results: dict[str, Any]  # content of the file
    path: Path
    failed: tuple[str, ...]  # in this session
    picture: Path | None = None


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
) -> ReproduceResult:
    """Run what is missing in results/NAME.json.

    `epochs` makes it a trial, whose results are kept apart. `at_once` processes share the runs; helper processes are
    told their total number with `sharing`, and write it to their rows.
    """
    _check(seeds, epochs, minutes, at_once)
    folder = Path(runs_out or f"runs/{study.name}{f'-trial{epochs}' if epochs else ''}")
    path = Path(out or (folder / "results.json" if epochs else f"results/{study.name}.json"))
    check_writable(path)
    ledger, log = Ledger(path, study, epochs), Log()
    missing = _list_missing(ledger, _select_runs(study, only), seeds)
    reused = reuse_rows(ledger, missing)
    missing, rows = [pair for pair in missing if pair not in reused], ledger.rows()
    for run, seed in reused:
        log.info(f"{run.name}, seed {seed}, is {rows[run.name, seed]['origin']}.")
    base = RunContext(folder, epochs=epochs, stages=Path(runs_out or "runs") / "stages")
    jobs = _make_jobs(missing, data, base, log)
    for name in ledger.find_stale():
        log.warning(f"{path} has rows of {name} with different settings; delete them to run it again.")
    settings = {"data": data, "seeds": seeds, "only": only, "minutes": minutes, "epochs": epochs}
    processes = max(1, min(at_once, len(jobs)))
    command = make_helper_command(study.name, **settings, runs_out=runs_out, out=out, sharing=processes)
    session = _Session(ledger, rows, minutes, max(processes, sharing), log)
    with raise_on_signal("Stopped. Finished runs are kept."):  # between trainings, which save themselves
        with run_helpers(command, processes - 1, folder, log):
            session.run_all(jobs)
        if at_once > 1:
            session.run_all(jobs)  # whatever a killed helper has left
    failed = session.list_failed(jobs)
    results, picture = ledger.make_content(), path.with_suffix(".png")
    drawn = study.picture and draw(results, picture, folder)
    return ReproduceResult(results, path, tuple(failed), picture if drawn else None)


def _check(seeds: int, epochs: int | None, minutes: float | None, at_once: int) -> None:
    for flag, value in (("seeds", seeds), ("epochs", epochs), ("at-once", at_once)):
        if value is not None and value < 1:
            raise UserError(f"--{flag} must be at least 1, not {value}.")
    if minutes is not None and minutes < 0:
        raise UserError(f"--minutes must not be negative, but is {minutes:g}.")
    if read_number("WORLD_SIZE", 1) > 1:
        raise UserError("A study runs in one process; start it without torchrun.")


def _select_runs(study: Study, only: tuple[str, ...]) -> list[StudyRun]:
    selected = study.select_runs(only) if only else list(study.runs)
    if not selected:
        raise UserError(f"No run of {study.name} has {' or '.join(only)} in its name; {study.runs[0].name} is one.")
    return selected


def _list_missing(ledger: Ledger, runs: list[StudyRun], seeds: int) -> list[tuple[StudyRun, int]]:
    """List runs and seeds without a value, the whole table with one seed first."""
    rows = ledger.rows()
    pairs = ((run, seed) for seed in range(seeds) for run in runs)
    return [(run, seed) for run, seed in pairs if "value" not in rows.get((run.name, seed), {})]


def _make_jobs(missing: list[tuple[StudyRun, int]], data: str | None, base: RunContext, log: Log) -> list[_Job]:
    """Make jobs of the runs whose data and weights are there, and log what the others need."""
    folder = check_folder(data) if any(run.needed_data for run, _ in missing) else Path()
    splits = {name: find_data(name, folder) for name in dict.fromkeys(n for run, _ in missing for n in run.needed_data)}
    weights = {name: find_weights(name, folder) for name in dict.fromkeys(run.weights for run, _ in missing) if name}
    jobs = []
    for run, seed in missing:
        if not all(splits[name] for name in run.needed_data) or (run.weights and not weights[run.weights]):
            continue
        train, test = splits.get(run.data) or ("", "")
        pretrain_source, _ = splits.get(run.pretrain_data) or ("", "")
        context = replace(
            base,
            out=base.out / f"{run.name}-seed{seed}",
            seed=seed,
            folder=folder,
            data=run.data,
            train=train,
            test=test,
            pretrain_data=run.pretrain_data,
            pretrain_source=pretrain_source,
            weights=weights.get(run.weights) or "",
        )
        jobs.append(_Job(run, context))
    no_data, no_weights = ([name for name, place in found.items() if not place] for found in (splits, weights))
    needed = describe_missing(no_data, no_weights, folder)
    if missing and not jobs:
        raise UserError(f"Nothing can run. Missing in {folder}: {'; '.join(needed)}.")
    if needed:
        skipped = f"{len(missing) - len(jobs)} of {len(missing)} runs are skipped."
        log.info("\n  ".join([f"{skipped} Missing in {folder}:", *needed]))
    return jobs


class _Session:
    """This process's share of the runs: those that no other process on this machine works on or has finished."""

    def __init__(self, ledger: Ledger, rows: Rows, minutes: float | None, sharing: int, log: Log):
        self.ledger, self.rows, self.minutes, self.sharing, self.log = ledger, rows, minutes, sharing, log
        self.began = time.monotonic()
        self.tried: list[_Job] = []

    def run_all(self, jobs: list[_Job]) -> None:
        left = [job for job in jobs if not self._has_ended(job)]
        while left:
            spent, done = (time.monotonic() - self.began) / 60, len(jobs) - len(left)
            if self.minutes is not None and spent >= self.minutes:
                self.log.info(f"{spent:.0f} minutes have passed; {len(left)} runs are left for the next start.")
                return
            with _claim_job(left) as job:
                if job is None:
                    self.log.info(f"Other processes work on the last {len(left)} of {len(jobs)} runs.")
                    return
                left.remove(job)
                if not self._has_ended(job):
                    rest = f" {_format_minutes(spent / done * (len(left) + 1))} to go." if done else ""
                    self.log.info(f"Run {done + 1} of {len(jobs)}: {job.name}.{rest}")
                    self._run(job)

    def _run(self, job: _Job) -> None:
        self.tried.append(job)
        reason = _run_job(job, self.ledger, {"at_once": self.sharing} if self.sharing > 1 else {})
        if reason:
            self.log.warning(f"{job.name} failed: {reason}")
        free_graphs()

    def _has_ended(self, job: _Job) -> bool:
        """Return whether a job has finished or failed since this session began; a stopped one is resumed."""
        row = self.ledger.rows().get(job.key, {})
        return job in self.tried or ({"value", "failed"} & row.keys() != set() and row != self.rows.get(job.key))

    def list_failed(self, jobs: list[_Job]) -> list[str]:
        """List the jobs that failed here or in other processes."""
        rows = self.ledger.rows()
        return [job.name for job in jobs if self._has_ended(job) and "failed" in rows.get(job.key, {})]


@contextmanager
def _claim_job(jobs: list[_Job]) -> Iterator[_Job | None]:
    """Lock the first job that no other process works on. Jobs that have to wait for a stage come last."""
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


def _format_minutes(minutes: float) -> str:
    if minutes < 0.75:
        return "Less than a minute"
    return f"About {minutes:.0f} minutes" if minutes >= 1.5 else "About a minute"


def _run_job(job: _Job, ledger: Ledger, extra: dict[str, int]) -> str | None:
    """Run and record one job; return the reason if it failed, which does not end the study."""
    out, began = job.context.out, time.monotonic()
    row = {"run": job.run.name, "seed": job.context.seed} | extra
    was_finished = (out / "result.json").exists()

    def record(given: dict[str, Any]) -> None:
        shared = sum(stage["seconds"] for stage in given.get("stages", []) if stage["shared"])
        own = given.get("seconds", 0.0) - shared  # over all starts, killed ones included
        took = own if was_finished and own else max(own, time.monotonic() - began)
        about = {"minutes": took / 60, "fingerprint": fingerprint(job.run), "environment": _read_environment(out)}
        ledger.record(row | given | about)

    try:
        given = job.run.task(job.context)
    except Interrupted as stop:
        record({"stopped": str(stop)})
        raise
    except Exception as problem:
        plain = isinstance(problem, UserError | RunAborted)
        reason = str(problem) if plain else f"{type(problem).__name__}: {str(problem).partition(chr(10))[0][:300]}"
        record({"failed": _strip_folders(reason, job.context)})
        return reason
    cautions = [*([given["caution"]] if "caution" in given else []), *_compare_counts(job.run, given)]
    record(given | ({"caution": "; ".join(cautions)} if cautions else {}))
    return None


def _strip_folders(reason: str, context: RunContext) -> str:
    """Remove this machine's folders from a message."""
    for folder in (context.out.parent, context.stages, context.folder):
        for written in (str(folder.resolve()), str(folder)):
            reason = reason.replace(f"{written}{os.sep}", "") if written != "." else reason
    return reason


def _compare_counts(run: StudyRun, given: dict[str, Any]) -> list[str]:
    """Describe counts that differ from the dataset's: a figure on a part of it is not its figure."""
    own, source = (DATASETS.get(name) for name in (run.data, run.pretrain_data))
    seen = (
        ("images", "training images", own and own.train),
        ("images_tested", "test images", own and own.test),
        ("images_before", "images to pre-train on", source and source.train),
    )
    return [
        f"{given[key]:,} {what}, not {count:,}"
        for key, what, count in seen
        if count is not None and given.get(key) not in (None, count)
    ]


def _read_environment(out: Path) -> dict[str, Any]:
    """Read versions and machine of the run's last start, without its command, which names local folders."""
    from vitling.training.rundir import describe_environment

    path = out / "environment.json"
    found = read_record(path, Environment) if path.exists() else describe_environment()
    return {name: value for name, value in found.items() if name != "command"}
