"""A study: the runs behind a table of a paper, and the figures that the paper gives. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class RunContext:
    """What a run is told when it starts."""

    out: Path
    seed: int = 0
    train: str = ""  # where the splits of its data set lie, for a run that has one
    test: str = ""
    weights: str = ""  # a file, for a run that does not start from scratch
    epochs: int | None = None  # of a trial, instead of the recipe's
    data: str = ""  # the names of the two data sets
    pretrain_data: str = ""
    pretrain_source: str = ""  # the images of `before`
    folder: Path = Path()  # of all data sets
    stages: Path = Path("runs/stages")  # where stages lie, which several runs may share


class Task(Protocol):
    """What a run does. Called with an `out` that an earlier start left, it goes on from there, and if that one has
    finished (it has a result.json) it gives the same answer at once. One that consists of stages, which runs may share,
    has `stages(start)` too."""

    @property
    def settings(self) -> dict[str, Any]:
        """What makes this run another one than its neighbours; JSON can hold it."""

    def __call__(self, context: RunContext) -> dict[str, Any]:
        """`value` is the figure of the table. `seconds` (of a finished start), `epochs`, `images`, `curves`
        and whatever else is worth keeping go into the results as they are."""


@dataclass(frozen=True)
class StudyRun:
    name: str  # a folder can have it
    task: Task
    data: str = ""  # a name of datasets.DATASETS; "" where none is wanted
    weights: str = ""  # the backbone whose ImageNet weights it starts from
    paper: float | None = None  # an int is a count, and shown as one
    baseline: str = ""  # the run that this one is meant to be better than
    note: str = ""
    pretrain_data: str = ""  # the data set that it is pre-trained on, if that is another one
    others: tuple[str, ...] = ()  # further data sets, which its work finds in the folder of all
    cell: tuple[str, str] | None = None  # row and column in the study's picture, where it has one

    @property
    def wants(self) -> tuple[str, ...]:
        """Its data sets."""
        return tuple(name for name in (self.pretrain_data, self.data, *self.others) if name)


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    source: str  # document and table
    runs: tuple[StudyRun, ...]
    unit: str = "top-1 on test, last epoch, %"
    also: tuple[str, ...] = ()  # other tables with the same figures
    picture: Literal["", "heatmap", "tsne", "curves", "scatter", "bars"] = ""  # beside the results: report/pictures.py

    def select_runs(self, parts: Sequence[str]) -> list[StudyRun]:
        """The runs with one of these in their name; `=NAME` is that run alone."""
        return [run for run in self.runs if any(named(run.name, part) for part in parts)]

    @property
    def data(self) -> tuple[str, ...]:
        """Every data set once, in the order of the runs."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.wants))


def named(name: str, part: str) -> bool:
    return name == part[1:] if part.startswith("=") else part in name
