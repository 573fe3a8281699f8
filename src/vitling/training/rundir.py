"""The run directory: everything that is known of a run, in files that other tools read too."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vitling.console import Log
from vitling.data.dataset import BadFile
from vitling.errors import UserError
from vitling.files import read_json, write_json
from vitling.training.trackers import Trackers

OURS = (
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "result.json",
    "log.txt",
    "checkpoints",
    "model",
    "best",
)
_PACKAGES = ("vitling", "torch", "torchvision", "timm", "numpy", "pillow", "scikit-learn")


class RunDirectory:
    """`writes` is False on all processes but the main one: they read, and write nothing."""

    def __init__(self, path: str | os.PathLike, writes: bool = True):
        self.path, self.writes = Path(path), writes
        self.log = Log(self.path / "log.txt", silent=not writes)
        self.trackers = Trackers((), self.path, {})

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def prepare(self, resume: bool, overwrite: bool) -> None:
        """Refuses a directory that holds something, unless told what to do with it."""
        if not self.path.exists() or not any(self.path.iterdir()):
            self._make()
            return
        if resume:
            if not (self.path / "config.json").exists():
                raise UserError(f"{self.path} is not a vitling run (no config.json); it cannot be resumed.")
            return
        if not overwrite:
            raise UserError(
                f"{self.path} is not empty. Use --resume to continue it, --overwrite to start it again, "
                "or another --out."
            )
        if not any((self.path / name).exists() for name in OURS):
            raise UserError(
                f"{self.path} is not a vitling run; --overwrite does not delete what vitling did not write."
            )
        if self.writes:
            shutil.rmtree(self.path)
        self._make()

    def _make(self) -> None:
        if self.writes:
            try:
                self.checkpoints.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise UserError(f"{self.path} cannot be written: {problem.strerror}.") from problem

    def start(self, config: Any, trackers: tuple[str, ...]) -> None:
        if self.writes:
            plain = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
            write_json(self.path / "config.json", plain)
            write_json(self.path / "environment.json", environment())
            self.trackers = Trackers(trackers, self.path, plain)

    def write(self, name: str, value: Any) -> None:
        if self.writes:
            write_json(self.path / name, value)

    def read(self, name: str) -> Any:
        return read_json(self.path / name)

    def metrics(self, entry: dict[str, Any]) -> None:
        """One line of metrics.jsonl; numbers go to the trackers too."""
        if not self.writes:
            return
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        numbers = {k: v for k, v in entry.items() if isinstance(v, int | float) and k != "step"}
        self.trackers.log(numbers, entry["step"])

    def forget_after(self, step: int) -> None:
        """Drops the metrics of steps that will be taken again."""
        path = self.path / "metrics.jsonl"
        if not self.writes or not path.exists():
            return
        kept = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
        path.write_text("".join(f"{line}\n" for line in kept))

    def list_bad(self, bad: list[BadFile]) -> None:
        if bad:
            self.write("bad-files.json", [asdict(file) for file in bad])
            self.log.warn(f"{len(bad)} image(s) left out; bad-files.json in the run directory names each:")
            for file in bad[:10]:
                self.log.say(f"  {file.key}: {file.reason}")

    def test_opened(self, why: str) -> None:
        self.log.note(f"test split opened: {why}")
        if self.writes:
            with open(self.path / "test-openings.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps({"why": why, "command": sys.argv}) + "\n")

    def close(self) -> None:
        self.trackers.close()


def environment() -> dict[str, Any]:
    """Versions, machine and command, so that a figure can be made again."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "command": " ".join(sys.argv),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
        "system": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": gpu,
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of the checkout that vitling runs from, if it runs from one."""
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


def _step_of(line: str) -> int:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):  # the line that a kill cut in two
        return sys.maxsize
