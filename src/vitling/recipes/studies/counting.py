"""How many images and classes a data set has, beside what a paper says of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from vitling.recipes.studies.study import Start


@dataclass(frozen=True)
class Counting:
    """The images of a split. They are not decoded; their number, and that of the classes, is what a run would get."""

    split: Literal["train", "test"]
    classes: int  # by the paper

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def __call__(self, start: Start) -> dict[str, Any]:
        from vitling import data

        found = data.open(f"train={getattr(start, self.split)}", val="none").train
        classes = len(found.class_names)
        other = {} if classes == self.classes else {"caution": f"{classes} classes, not {self.classes}"}
        return {"value": len(found), "classes": classes, **other}
