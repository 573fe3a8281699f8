"""Facts about a data set that are known before its files are there. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Metric = Literal["accuracy", "mean per class", "11-point mAP", "ROC-AUC"]
Table = Literal["esvit-t10", "esvit-t3", "drloc-t1a", "idmm-t1"]

ESVIT: Table = "esvit-t10"
PRETRAINING: Table = "esvit-t3"
DRLOC: Table = "drloc-t1a"
IDMM: Table = "idmm-t1"
NO_LICENCE = "none stated"


@dataclass(frozen=True)
class Layout:
    """How the files are distributed, and which function reads them."""

    reader: str  # module.function in vitling.papers.datasets
    marks: tuple[str, ...]  # files or folders; any of them shows that the data set is there
    folders: tuple[str, ...] = ()  # names under which its archives, or torchvision, unpack it


@dataclass(frozen=True)
class Entry:
    """A data set. Counts are those of the distributed files; a note tells where a paper prints another."""

    name: str
    title: str
    classes: int
    train: int
    test: int  # 0: for pre-training only
    layout: Layout
    licence: str  # as its authors state it
    where: str  # who distributes it
    cite: str
    tables: tuple[Table, ...]
    val: int = 0  # a validation split, which the papers train on too
    metric: Metric = "accuracy"
    multi: bool = False  # several labels per image
    notes: tuple[str, ...] = ()

    @property
    def trained_on(self) -> int:
        """Images that the papers count as training images."""
        return self.train + self.val

    def metric_in(self, table: Table | Literal["all"]) -> Metric:
        """Return the metric of a table: IDMM and DRLoc report accuracy, EsViT what is usual for each data set."""
        return self.metric if table in ("all", ESVIT) or self.multi else "accuracy"
