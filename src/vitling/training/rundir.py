"""The run directory: everything known about a run, in files that other tools can read."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vitling.console import Log
from vitling.data.dataset import BadFile
from vitling.data.host import count_cores, read_number
from vitling.errors import InvalidFile, UserError
from vitling.files import (
    append_line,
    atomic_write,
    check_not_link,
    claim_folder,
    list_names,
    remove_leftovers,
    sync_file,
    write_json,
)
from vitling.formatting import format_count
from vitling.loading import parse_json, read_bytes, read_record
from vitling.records import StepLine
from vitling.shortage import explain_shortage
from vitling.training.trackers import Trackers
from vitling.version import __version__

OWN_NAMES = (  # all that --overwrite may delete
    *("config.json", "environment.json", "metrics.jsonl", "result.json", "evaluation.json", "evaluated.json"),
    *("bad-files.json", "test-openings.jsonl", "log.txt", "report.html", "answers.npz", "mistakes.csv"),
    *("calibration.safetensors", "calibration", "doctor", "pictures", "pretrain", "large", "baselines"),
    *("checkpoints", "model", "best", "tensorboard"),
)
FOLDERS = ("checkpoints", "model", "best")
BAD_FILES_SHOWN = 10
_PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "scikit-learn")


class RunDirectory:
    """A run's files. `writes` is False in all processes but the main one, which then only read."""

    def __init__(self, path: str | os.PathLike, writes: bool = True):
        self.path, self.writes = Path(path), writes
        self.log = Log(self.path / "log.txt", silent=not writes)
        self.trackers = Trackers((), self.path, {})
        self.fresh = False  # whether this start created its contents
        self.kept: set[str] = set()  # names that were there before it
        self.listed = 0  # bad files already reported
        self.release: Callable[[], None] = lambda: None  # ends the claim of the directory

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def prepare(self, resume: bool, overwrite: bool) -> None:
        """Create and claim the directory; raise UserError if it has contents and neither flag says what to do."""
        self._check(resume, overwrite)
        if self.writes:
            self._claim()
            self._check(resume, overwrite)  # again: until the claim, another process may have used the directory
            for folder in (self.path, *(self.path / name for name in FOLDERS)):
                remove_leftovers(folder)
            there = set(self._list_names())
            self.kept = there & {"log.txt"} if self._is_unused(there) else set()  # it may be of another program
            if not resume:
                self._delete(there - self.kept)
            self.checkpoints.mkdir(exist_ok=True)
        self.fresh = not (self.path / "config.json").exists()

    def abandon(self) -> None:
        """Delete what a start with wrong input created, so that the corrected command can use the same --out."""
        if self.fresh and self.writes and not any(self.path.rglob("checkpoints/*")):
            self.trackers.close()
            self._delete(set(self._list_names()) - self.kept)
            self.release()
            with suppress(OSError):  # it has other contents
                self.path.rmdir()

    def _check(self, resume: bool, overwrite: bool) -> None:
        there = set(self._list_names())
        if not there or self._is_unused(there):
            return
        if not self._is_run():
            if resume:
                raise UserError(f"{self.path} is not a vitling run (it has no config.json) and cannot be resumed.")
            if overwrite:
                raise UserError(f"{self.path} is not a vitling run; --overwrite deletes nothing else.")
            raise UserError(f"{self.path} is not empty and is not a vitling run. Use a different --out.")
        if not resume and not overwrite:
            if (self.path / "result.json").exists():
                raise UserError(
                    f"{self.path} is a finished run. Use --resume to show its results, --overwrite to train it again, "
                    "or a different --out."
                )
            raise UserError(
                f"{self.path} is not empty. Use --resume to continue it, --overwrite to start it again, "
                "or a different --out."
            )
        for name in sorted(there & set(OWN_NAMES)):
            if resume:
                check_not_link(self.path / name)

    def _list_names(self) -> list[str]:
        try:
            return list_names(self.path)
        except NotADirectoryError:
            raise UserError(f"--out {self.path} is a file; name a directory.") from None

    def _is_unused(self, there: set[str]) -> bool:
        """Return whether a start was killed before it wrote anything but its log."""
        log = self.path / "log.txt"
        regular = not log.is_symlink() and (log.is_file() or not log.exists())
        empty = self.checkpoints.is_dir() and not list_names(self.checkpoints)
        return there <= {"checkpoints", "log.txt"} and regular and (empty or "checkpoints" not in there)

    def _is_run(self) -> bool:
        """Recognise a run by its config.json, which is written first and deleted last."""
        try:
            return {"checkpoint", "loop"} <= self.read("config.json").keys()
        except (UserError, OSError):
            return False

    def _delete(self, names: set[str]) -> None:
        """Delete the run's files: first result.json, and last config.json, by which a run is recognised."""
        order = {"result.json": -1, "config.json": 1}
        for name in sorted(names & set(OWN_NAMES), key=lambda name: order.get(name, 0)):
            path = self.path / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _claim(self) -> None:
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)  # fails if the directory cannot be written
            self.release = claim_folder(self.path)
        except OSError as problem:
            if explain_shortage(problem):
                raise
            raise UserError(f"{self.path} cannot be written: {problem.strerror}.") from problem

    def start(self, settings: dict[str, Any], trackers: tuple[str, ...]) -> None:
        if self.writes:
            write_json(self.path / "config.json", settings)
            write_json(self.path / "environment.json", describe_environment())
            self.trackers.close()
            self.trackers = Trackers(trackers, self.path, settings)

    def write(self, name: str, value: Any) -> None:
        if self.writes:
            write_json(self.path / name, value)

    def read(self, name: str) -> dict[str, Any]:
        return read_record(self.path / name, dict[str, Any])

    def log_metrics(self, entry: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl and send its numbers to the trackers."""
        if not self.writes:
            return
        append_line(self.path / "metrics.jsonl", json.dumps(entry))
        numbers = {k: v for k, v in entry.items() if isinstance(v, int | float) and k != "step"}
        self.trackers.log(numbers, entry["step"])

    def drop_metrics_after(self, step: int) -> bool:
        """Drop the metrics of steps that will be repeated; return whether there were any."""
        path = self.path / "metrics.jsonl"
        if not self.writes or not path.exists():
            return False
        lines = read_bytes(path).decode(errors="replace").splitlines()
        kept = [line for line in lines if _read_step(line) <= step]
        if len(kept) < len(lines):
            with atomic_write(path, "w") as file:
                file.write("".join(f"{line}\n" for line in kept))
        return len(kept) < len(lines)

    def sync_metrics(self) -> None:
        """Bring metrics.jsonl to the disk: a checkpoint must not outlive the lines that come before it."""
        if self.writes:
            sync_file(self.path / "metrics.jsonl")

    def report_bad_files(self, bad: list[BadFile]) -> None:
        """Write all bad files so far to bad-files.json and log the new ones."""
        new, self.listed = bad[self.listed :], len(bad)
        if not new:
            return
        self.write("bad-files.json", [asdict(file) for file in bad])
        self.log.warning(f"{format_count(len(new), 'image')} left out ({self.path / 'bad-files.json'}):")
        for file in new[:BAD_FILES_SHOWN]:
            self.log.info(f"  {file.key}: {file.reason}")
        if len(new) > BAD_FILES_SHOWN:
            self.log.info(f"  and {len(new) - BAD_FILES_SHOWN} more")

    def log_test_opening(self, why: str) -> None:
        """Record that the test split was opened, and why."""
        self.log.debug(f"test split opened: {why}")
        if self.writes:
            opening = {"time": datetime.now().isoformat(timespec="seconds"), "why": why, "command": sys.argv}
            append_line(self.path / "test-openings.jsonl", json.dumps(opening))

    def close(self) -> None:
        try:
            self.trackers.close()
        finally:
            self.release()


def describe_environment() -> dict[str, Any]:
    """Describe versions, machine and command, so that a figure can be reproduced."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "command": shlex.join(["vitling", *sys.argv[1:]]),
        "python": platform.python_version(),
        "packages": {"vitling": __version__, **{name: _version(name) for name in _PACKAGES}},
        "commit": _commit(),
        "system": platform.platform(),
        "cpus": count_cores(),
        "gpu": gpu,
        "processes": int(read_number("WORLD_SIZE", 1)),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the checkout vitling runs from, if any. Without git, set VITLING_COMMIT."""
    if named := os.environ.get("VITLING_COMMIT"):
        return named
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def _read_step(line: str) -> int:
    try:
        return parse_json(line, StepLine, "metrics.jsonl")["step"]
    except InvalidFile:  # cut short by a kill
        return sys.maxsize
