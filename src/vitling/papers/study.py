"""A study: the runs behind a table of a paper, with the paper's figures. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from vitling.papers.figures import read_figures

TOP_1 = "top-1 on test, last epoch, %"


@dataclass(frozen=True)
class RunContext:
    """Everything a task needs to know about where it runs."""

    out: Path
    seed: int = 0
    train: str = ""  # DATA of the two splits
    test: str = ""
    weights: str = ""  # weights file to start from
    epochs: int | None = None  # length of a trial; None: the recipe's own
    data: str = ""  # names of the two datasets
    pretrain_data: str = ""
    pretrain_source: str = ""  # DATA of `pretrain_data`
    folder: Path = Path()  # holds all datasets
    stages: Path = Path("runs/stages")  # holds stages, which runs may share


class Task(Protocol):
    """The work of one run. A second call on the same `out` resumes it, and returns the stored answer once it has
    finished (result.json exists). A task that consists of shareable stages also has `stages(context)`."""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that tells this task from others, as JSON."""

    def __call__(self, context: RunContext) -> dict[str, Any]:
        """Return the row of the results: `value` is the table's figure; `seconds` (of a finished run), `epochs`,
        `images`, `curves` and other keys are stored as they are."""


@dataclass(frozen=True)
class FieldsTask:
    """Base of tasks whose settings are their fields."""

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class StudyRun:
    """One figure of a table and the task that measures it."""

    name: str  # valid as a folder name
    task: Task
    data: str = ""  # a name in locations.DATASETS; "" if the run needs no data
    weights: str = ""  # backbone whose ImageNet weights it starts from
    paper: float | None = None  # None: that of its name in figures.toml; an int is a count, and printed as one
    baseline: str = ""  # name of the run it is compared with
    note: str = ""
    pretrain_data: str = ""  # dataset for pre-training, if it differs from `data`
    others: tuple[str, ...] = ()  # further datasets, which the task finds in the folder of all
    cell: tuple[str, str] | None = None  # row and column in the study's picture

    @property
    def needed_data(self) -> tuple[str, ...]:
        return tuple(name for name in (self.pretrain_data, self.data, *self.others) if name)


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper."""

    name: str
    title: str
    source: str  # document and table
    runs: tuple[StudyRun, ...]
    unit: str = TOP_1
    also: tuple[str, ...] = ()  # other tables with the same figures
    picture: Literal["", "heatmap", "tsne", "curves", "scatter", "bars"] = ""  # drawn next to the results

    @classmethod
    def from_runs(
        cls, name: str, title: str, source: str, runs: Iterable[StudyRun], unit: str = TOP_1, **options: Any
    ) -> Study:
        """Make a study whose runs get the paper's figures by their name."""
        known = read_figures(name)
        compared = (run if run.paper is not None else replace(run, paper=known.get(run.name)) for run in runs)
        return cls(name, title, source, tuple(compared), unit, **options)

    def select_runs(self, parts: Sequence[str]) -> list[StudyRun]:
        """List the runs with one of `parts` in their name; `=NAME` selects that run alone."""
        return [run for run in self.runs if any(matches_name(run.name, part) for part in parts)]

    @property
    def data(self) -> tuple[str, ...]:
        """Names of all datasets, in the order of the runs."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.needed_data))


def matches_name(name: str, part: str) -> bool:
    return name == part[1:] if part.startswith("=") else part in name
