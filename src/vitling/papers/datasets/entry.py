"""Facts about the datasets that are known before their files are there: entries.toml. Imports nothing heavy."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Metric = Literal["accuracy", "mean per class", "11-point mAP", "ROC-AUC"]
Table = Literal["esvit-t10", "esvit-t3", "drloc-t1a", "idmm-t1"]


@dataclass(frozen=True)
class Entry:
    """A dataset. Counts are those of the distributed files; a note says where a paper prints a different one."""

    name: str
    title: str
    classes: int
    train: int
    test: int  # 0: for pre-training only
    reader: str  # module.function in vitling.papers.datasets
    marks: tuple[str, ...]  # files or folders; any of them shows that the dataset is there
    licence: str  # as its authors state it
    where: str  # who distributes it
    cite: str
    tables: tuple[Table, ...]
    folders: tuple[str, ...] = ()  # names under which its archives, or torchvision, unpack it
    val: int = 0  # a validation split, which the papers train on too
    metric: Metric = "accuracy"
    multi: bool = False  # several labels per image
    published: tuple[float, ...] = ()  # EsViT, Table 11, logistic probe: supervised Swin-T and EsViT's, on ImageNet-1K
    class_names: tuple[str, ...] = ()  # in order, where the files only have numbers
    notes: tuple[str, ...] = ()

    @property
    def trained_on(self) -> int:
        """Images that the papers count as training images."""
        return self.train + self.val

    def metric_in(self, table: Table | Literal["all"]) -> Metric:
        """Return the metric of a table: IDMM and DRLoc report accuracy, EsViT what is usual for each dataset."""
        return self.metric if table in ("all", "esvit-t10") or self.multi else "accuracy"


def _read_entries() -> dict[str, Entry]:
    tables = tomllib.loads(Path(__file__).with_name("entries.toml").read_text(encoding="utf-8"))
    entries = {}
    for name, table in tables.items():
        fields: dict[str, Any] = tables.get(table.pop("like", ""), {}) | table
        lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
        entries[name] = Entry(name, **fields | lists)
    return entries


ENTRIES = _read_entries()
