"""What a suite evaluates. Plain data, no torch; the command line is made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from vitling.data.config import DataConfig
from vitling.errors import UserError
from vitling.papers.datasets import ENTRIES, get_entry
from vitling.papers.datasets.entry import Entry


@dataclass(frozen=True)
class SuiteConfig:
    """Evaluate frozen networks on the data sets of the papers: those that are there.

    What is finished is not done again; delete its file in --out to repeat it.

    vitling suite runs/first runs/second --data-root DIR --table esvit-t10
    """

    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")
    ]
    """Run directories or model folders. With several, wins are counted over the first."""
    data_root: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder of the data sets: DIR/flowers102/ and so on, as distributed or sorted into train/ and test/."""
    probes: Annotated[tuple[Literal["knn", "linear", "logistic"], ...], tyro.conf.arg(name="with")] = ("logistic",)
    """How features are judged: logistic (EsViT's, and what its figures are of), linear, knn."""
    table: Literal["all", "esvit-t10", "drloc-t1a", "idmm-t1"] = "all"
    """Whose data sets and metrics: those of one table of a paper."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")] = ()
    """Only these data sets; `vitling list datasets` shows them."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs/suite"
    """Where the figures go: a file for each network, data set and probe."""
    weights: Literal["last", "best"] = "last"
    """Of the last epoch, or of the best on validation."""
    device: str = "auto"
    """auto, cpu, cuda."""
    allow_bad: bool = False
    """Go on although more than 1 % of the files cannot be read."""
    data: DataConfig = field(default_factory=DataConfig)
    """How the images are read; channels and bits are the model's."""

    def entries(self) -> list[Entry]:
        """The data sets of the table, in its order; those that are only trained on are none of a suite."""
        named = {get_entry(name).name for name in self.only}
        found = [
            entry
            for entry in ENTRIES.values()
            if entry.test and (self.table == "all" or self.table in entry.tables) and (not named or entry.name in named)
        ]
        if not found:
            raise UserError(f"No data set of {self.table} is named {' or '.join(self.only)}.")
        return found
