"""Commands to interrupt, each with tiny networks and images, and what they must have written in the end."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import make_folder
from tests.faults import Fault, FileOperations, Killed
from tests.papers.short_stages import FIRST, SECOND
from vitling.cli import run
from vitling.files import LOCK, is_leftover
from vitling.papers import locations, studies
from vitling.papers.stages import FinetuneTask
from vitling.papers.study import Study, StudyRun
from vitling.papers.train_task import TrainTask
from vitling.runs import timing
from vitling.settings.config import TrainConfig
from vitling.training.config import CheckpointConfig

NETWORK = ("--backbone", "vit_micro_patch4_32", "--size", "8", "--batch", "6")
QUIET = ("--loop.device", "cpu", "--loop.trackers", "none", "--checkpoint.every-seconds", "0")
SHORT = (*NETWORK, *QUIET, "--epochs", "2")


@dataclass(frozen=True)
class Scenario:
    """A command that is started in a folder of its own; `again` continues it after an interruption."""

    name: str
    start: Callable[[], int]
    again: Callable[[], int]
    prepare: Callable[[], None] = lambda: None  # what must exist before


def command(*words: str) -> Callable[[], int]:
    return lambda: run(list(words))


def resumed(name: str, *words: str) -> Scenario:
    return Scenario(name, command(*words), command(*words, "--resume"))


def make_data() -> None:
    """Write 9 images to train on and 3 to test on."""
    make_folder(Path("data"), classes=3, each=3, split="train", width=8, height=8)
    make_folder(Path("data"), classes=3, each=1, split="test", first=50, width=8, height=8)


def prepare_model() -> None:
    assert run(["train", "data", "--out", "runs/model", "--method", "supervised", "--val", "none", *SHORT]) == 0


def make_study(name: str) -> Study:
    """Make a study of two runs, one of them in two stages that another study could share."""
    often, small = CheckpointConfig(0.0), {"backbone": "vit_micro_patch4_32", "batch": 6, "epochs": 1}
    first, second = (replace(config, checkpoint=often, **small) for config in (FIRST, SECOND))
    single = TrainConfig(method="supervised", size=8, val="none", checkpoint=often, loop=SECOND.loop, **small)
    runs = (StudyRun("one", TrainTask(single), "made"), StudyRun("two", FinetuneTask(second, first), "made"))
    return Study(name, "two runs", "nowhere", runs)


def prepare_sets() -> None:
    shutil.copytree("data", "sets/made")


def prepare_suite() -> None:
    prepare_model()
    shutil.copytree("data", "sets/cub")


def list_scenarios() -> dict[str, Scenario]:
    one, twin = ("--method", "supervised", "--val", "none"), ("--calibrate", "on")
    suite = ("suite", "runs/model", "--data-root", "sets", "--out", "runs/suite", "--device", "cpu", "--with", "knn")
    reproduce = ("reproduce", "tiny", "--data", "sets", "--runs-out", "runs", "--out", "results/tiny.json")
    export = ("export", "runs/model", "--out", "exported")
    methods = ("--methods", "supervised", "idmm", "--minutes", "600", "--pretrain-epochs", "1", "--epochs", "1")
    scenarios = (
        resumed("train", "train", "data", "--out", "runs/a", "--val", "0.34", "--method", "supervised", *SHORT),
        resumed("train in two stages", "train", "data", "--out", "runs/a", *one[2:], *SHORT, "--pretrain-epochs", "2"),
        resumed("train and enlarge", "train", "data", "--out", "runs/a", *one, *SHORT, *twin, "--final-size", "12"),
        resumed("pretrain", "pretrain", "data", "--out", "runs/a", "--val", "none", *SHORT),
        resumed("train --seeds", "train", "data", "--out", "runs/a", *one, *SHORT, "--epochs", "1", "--seeds", "2"),
        resumed("compare-methods", "compare-methods", "data", "--out", "runs/a", *NETWORK, *QUIET, *methods),
        Scenario("suite", command(*suite), command(*suite), prepare_suite),
        Scenario("reproduce", command(*reproduce), command(*reproduce), prepare_sets),
        Scenario("export", command(*export), command(*export), prepare_model),
    )
    return {scenario.name: scenario for scenario in scenarios}


def make_up(patch: pytest.MonkeyPatch) -> None:
    """Make up the pace, which is never the same twice, and a study with its data."""
    patch.setattr(timing, "measure_pace", lambda *_: (1e6, "off"))
    patch.setattr(studies, "find_study", make_study)
    patch.setitem(locations.DATASETS, "made", locations.StudyDataset("made images", 9, 3))
    patch.setenv("VITLING_COMMIT", "abc123")


@contextmanager
def prepare(scenario: Scenario, base: Path) -> Iterator[Path]:
    """Write what must exist before a scenario to a folder. Within the block, the pace and the study are made up."""
    patch, prepared = pytest.MonkeyPatch(), base / "prepared"
    make_up(patch)
    patch.setenv("VITLING_CACHE", str(prepared / "cache"))
    prepared.mkdir(parents=True)
    patch.chdir(prepared)
    with patch_context(patch), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        make_data()
        scenario.prepare()
        yield prepared


@contextmanager
def patch_context(patch: pytest.MonkeyPatch) -> Iterator[None]:
    try:
        yield
    finally:
        patch.undo()


class Trial:
    """A start of a scenario in a folder of its own, interrupted or not."""

    def __init__(self, scenario: Scenario, before: Path, folder: Path):
        self.scenario, self.folder, self.output = scenario, folder, ""
        shutil.rmtree(folder, ignore_errors=True)  # all work in the same folder: some files name it
        shutil.copytree(before, folder)
        os.chdir(folder)
        os.environ["VITLING_CACHE"] = str(folder / "cache")

    def run(self, act: Callable[[], int], operations: FileOperations | None = None) -> int | None:
        """Return the exit code, or None if the process was killed."""
        shown = io.StringIO()
        try:
            with (
                redirect_stdout(shown),
                redirect_stderr(shown),
                (operations or FileOperations(self.folder)).interpose(),
            ):
                return act()
        except Killed:
            return None
        finally:
            self.output += shown.getvalue()

    def interrupt(self, fault: Fault, at: int) -> None:
        """Let a fault happen, check how the command ends, and continue it."""
        operations = FileOperations(self.folder, fault, at)
        code = self.run(self.scenario.start, operations)
        assert code in {"SIGKILL": (None,), "SIGTERM": (None, 0, 143)}.get(fault, (0, 3)), (code, self.output)
        kept = operations.moments[at].startswith(("unlink", "rmdir"))  # a file that could not be deleted: the next try
        if code != 0 or kept or "The report could not be written" in self.output:
            self.proceed()

    def proceed(self) -> None:
        assert self.run(self.scenario.again) == 0, self.output

    def read_outcome(self) -> dict[str, Any]:
        """Return what does not depend on time: weights, metrics, figures and the names of all files."""
        ignored = {"checkpoints", "cache"}  # what is kept for later: a run without a cache has the same weights
        files = [path for path in self.folder.rglob("*") if path.is_file() and not ignored & set(path.parts)]
        left = [str(path) for path in self.folder.rglob(".*") if path.name == LOCK or is_leftover(path.name)]
        assert not left, left
        outcome = {str(path.relative_to(self.folder)): _read(path) for path in files}
        lines = [(str(path), line) for path in self.folder.rglob("metrics.jsonl") for line in _list_steps(path)]
        assert len(lines) == len(set(lines)), "a row of metrics.jsonl is doubled"
        return outcome


def compare_outcomes(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, value in expected.items():
        assert found[name] == value, f"{name} differs: {str(found[name])[:500]} is not {str(value)[:500]}"


@dataclass
class State:
    """State that a kill leaves on the disk at one or more moments."""

    folder: Path
    moments: list[int]


def record_states(scenario: Scenario, prepared: Path, base: Path) -> tuple[dict[str, Any], list[str], list[State]]:
    """Run a scenario undisturbed; return its outcome, its moments, and all different states that a kill can leave."""
    found: dict[str, State] = {}
    trial = Trial(scenario, prepared, base / "here")

    def record(moment: int) -> None:
        key = _identify(trial.folder)
        if key not in found:
            found[key] = State(base / f"state{moment}", [])
            shutil.copytree(trial.folder, found[key].folder, copy_function=_link_or_copy)
        found[key].moments.append(moment)

    operations = FileOperations(trial.folder, on_moment=record)
    assert trial.run(scenario.start, operations) == 0, trial.output
    return trial.read_outcome(), operations.moments, list(found.values())


_NEVER_CHANGED = (".pt", ".safetensors", ".png")  # replaced as a whole, so a link to the file is a copy


def _link_or_copy(source: str, target: str) -> None:
    os.link(source, target) if source.endswith(_NEVER_CHANGED) else shutil.copyfile(source, target)


def _identify(folder: Path) -> str:
    """Identify a state, whatever a log says and however much of a temporary file is written: nobody reads those."""
    digest = hashlib.blake2b()
    for path in sorted(path for path in folder.rglob("*") if "data" not in path.parts and "sets" not in path.parts):
        name = str(path.relative_to(folder))
        hidden = any(is_leftover(part) for part in path.parts)
        digest.update(re.sub(r"\.[^.]{8}\.part", ".part", name).encode())
        if path.is_file() and not hidden and path.name not in ("log.txt", LOCK):
            same = path.suffix in _NEVER_CHANGED
            digest.update(str(path.stat().st_ino).encode() if same else path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> Any:
    readers: dict[str, Callable[[Path], Any]] = {
        ".safetensors": lambda path: hashlib.blake2b(path.read_bytes()).hexdigest(),
        ".jsonl": lambda path: [_drop_times(json.loads(line)) for line in path.read_text().splitlines()],
        ".json": lambda path: _drop_times(json.loads(path.read_text())),
    }
    own = path.suffix in readers and path.name not in ("environment.json", "request.json", "test-openings.jsonl")
    return readers[path.suffix](path) if own else None


def _list_steps(path: Path) -> list[str]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [f"{row['kind']} {row['step']}" for row in rows]


def _drop_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_times(part) for key, part in value.items() if key not in _CHANGING}
    return [_drop_times(part) for part in value] if isinstance(value, list) else value


_CHANGING = (
    *("seconds", "seconds_compiling", "images_per_second", "data_wait", "minutes", "time", "environment", "command"),
    *("resume", "out", "source", "made_from", "explicit"),  # of one start, or of the folder that it works in
)
