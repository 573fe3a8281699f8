"""The settings of `vitling suite`. Plain data without torch; the flags and their help are made from it."""

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
    """Settings of `vitling suite`."""

    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")
    ]
    """Run directories or model folders. If there are several, wins over the first are counted."""
    data_root: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder of the datasets: DIR/flowers102/ and so on, as distributed, or sorted into train/ and test/."""
    probes: Annotated[tuple[Literal["knn", "linear", "logistic"], ...], tyro.conf.arg(name="with")] = ("logistic",)
    """Probes of the features: logistic (used for EsViT's table), linear, knn."""
    table: Literal["all", "esvit-t10", "drloc-t1a", "idmm-t1"] = "all"
    """Use the datasets and metrics of this table."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")] = ()
    """Evaluate only on these datasets; `vitling list datasets` shows all."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")] = "runs/suite"
    """Directory for the results: a file for each network, dataset and probe."""
    weights: Literal["last", "best"] = "last"
    """Weights of the last epoch, or of the best epoch on validation."""
    device: str = "auto"
    """auto, cpu or cuda."""
    allow_bad: bool = False
    """Continue even if more than 1 % of the files cannot be read."""
    data: DataConfig = field(default_factory=DataConfig)
    """How images are read; channels and bits are always the model's."""

    def entries(self) -> list[Entry]:
        """Return the datasets of the table, in its order, except those without a test split."""
        named = {get_entry(name).name for name in self.only}
        found = [
            entry
            for entry in ENTRIES.values()
            if entry.test and (self.table == "all" or self.table in entry.tables) and (not named or entry.name in named)
        ]
        if not found:
            raise UserError(f"No dataset of {self.table} is named {' or '.join(self.only)}.")
        return found
