"""What is known of a data set of the papers before its files are there. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Metric = Literal["accuracy", "mean per class", "11-point mAP", "ROC-AUC"]
Table = Literal["esvit-t10", "esvit-t3", "drloc-t1a", "idmm-t1"]

ESVIT: Table = "esvit-t10"
PRETRAINING: Table = "esvit-t3"  # what is pre-trained on
DRLOC: Table = "drloc-t1a"
IDMM: Table = "idmm-t1"
NO_LICENCE = "none stated"


@dataclass(frozen=True)
class Layout:
    """How the files are distributed, and what reads them."""

    reader: str  # module.function in vitling.papers.datasets
    marks: tuple[str, ...]  # files or folders; one that is there shows where the data set is
    folders: tuple[str, ...] = ()  # names under which its archives, or torchvision, unpack it


@dataclass(frozen=True)
class Entry:
    """A data set. Numbers are of the files as distributed; where a paper prints another, a note says so."""

    name: str
    title: str
    classes: int
    train: int
    test: int  # 0: it is only trained on
    layout: Layout
    licence: str  # as its authors state it
    where: str  # who hands it out
    cite: str
    tables: tuple[Table, ...]
    val: int = 0  # a validation split of its own, which the papers train on too
    metric: Metric = "accuracy"
    multi: bool = False  # several classes an image
    notes: tuple[str, ...] = ()

    @property
    def trained_on(self) -> int:
        """Images that the papers count as training images."""
        return self.train + self.val

    def metric_in(self, table: Table | Literal["all"]) -> Metric:
        """IDMM and DRLoc report accuracy throughout; EsViT what the field reports of each."""
        return self.metric if table in ("all", ESVIT) or self.multi else "accuracy"
