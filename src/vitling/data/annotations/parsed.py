"""Annotations as a file gives them, before they are checked against the images."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypedDict

from vitling.data.annotations.split import Problem

Polygons = list[list[float]]  # of one instance: x, y, x, y, ...
Brush = bytes  # packed as by Label Studio
Box = tuple[float, float, float, float]  # left, top, right, bottom


class Runs(TypedDict):
    """Run-length encoded mask as in a file: compressed (a string) or not, and not yet checked."""

    size: list[int]
    counts: str | list[int]


@dataclass(slots=True)
class Shape:
    """One instance. Coordinates are in pixels, or in fractions of the image if the image is `relative`."""

    label: str
    box: Box | None = None  # None: that of the segment
    segment: Runs | Polygons | Brush | None = None
    crowd: bool = False
    area: float | None = None  # pixels
    where: str = ""  # names it in a problem, such as `annotation 17`


@dataclass
class ParsedImage:
    file: str  # as in Files.names
    shapes: list[Shape] = field(default_factory=list)
    size: tuple[int, int] | None = None  # height and width, if the annotations state them
    relative: bool = False


@dataclass
class Parsed:
    """Annotations of all splits."""

    class_names: tuple[str, ...] = ()
    splits: dict[str, list[ParsedImage]] = field(default_factory=lambda: defaultdict(list))
    problems: dict[str, list[Problem]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)

    def add_problem(self, split: str, file: str, what: str) -> None:
        self.problems[split].append(Problem(file, what))
