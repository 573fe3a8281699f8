"""Helpers for the readers: finding the files of a data set, and making splits of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitling.data.dataset import Reader
from vitling.data.sources.arrays import ArrayReader
from vitling.data.sources.folder import FileReader
from vitling.data.sources.layout import make_printable
from vitling.data.sources.source import Source, SourceSplit
from vitling.errors import UserError
from vitling.papers.datasets.entry import Entry

Names = Sequence[str] | Sequence[tuple[str, ...]]  # the class of each image, or its classes


@dataclass
class Copy:
    """A data set on disk."""

    entry: Entry
    root: Path  # the folder with its marks
    options: dict[str, str] = field(default_factory=dict)  # readers remove those they know

    def require(self, *names: str) -> Path:
        """Return the first of these files or folders that exists."""
        for name in names:
            if (self.root / name).exists():
                return self.root / name
        others = f" (nor {', '.join(names[1:])})" if names[1:] else ""
        title, where = self.entry.title, self.entry.where
        raise UserError(f"{self.root} has no {names[0]}{others}, which {title} needs. Get it from: {where}.")

    def read_lines(self, *names: str) -> list[str]:
        """Read the non-empty lines of a text file."""
        text = self.require(*names).read_text(encoding="utf-8", errors="surrogateescape")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def pop_number(self, option: str, largest: int) -> int:
        """Take an option such as ?split=2; it is 1 by default."""
        text = self.options.pop(option, "1")
        if not text.isdecimal() or not 1 <= int(text) <= largest:
            raise UserError(f"{self.entry.name}: ?{option}={text} must be a number from 1 to {largest}.")
        return int(text)

    def make_source(self, class_order: Sequence[str] | None = None) -> Source:
        """Make a source without splits. Class names of the entry, if any, are in their order."""
        order = self.entry.class_names or None if class_order is None else tuple(class_order)
        return Source(self.entry.name, class_order=order, multi=self.entry.multi)


def find_homes(folder: Path, entry: Entry, itself: bool = True) -> Iterator[Path]:
    """Yield folders with the marks of a data set: those in `folder` under a known name, and `folder` itself."""
    inner = entry.folders
    for name in (*(f"{entry.name}/{name}" for name in inner), entry.name, *inner, *([""] if itself else [])):
        if any((folder / name / mark).exists() for mark in entry.marks):
            yield folder / name


def find_home(folder: Path, entry: Entry) -> Path:
    if found := next(find_homes(folder, entry), None):
        return found
    marks = " or ".join(entry.marks)
    inside = "".join(f", nor in {name}/" for name in dict.fromkeys((entry.name, *entry.folders)))
    problem = f"has no {marks}{inside}" if folder.is_dir() else f"does not exist; it should hold {marks}"
    raise UserError(f"{folder} {problem}. Get {entry.title} from: {entry.where}.")


def make_file_split(
    folder: Path, paths: list[str], names: Names | None, groups: list[str] | None = None
) -> SourceSplit:
    """Make a split of image files. A missing file is reported when it is decoded, like any unreadable file."""
    return make_split([make_printable(path) for path in paths], FileReader(folder, paths), names, groups)


def make_array_split(split: str, images: np.ndarray, names: Names | None) -> SourceSplit:
    return make_split([f"{split}[{i}]" for i in range(len(images))], ArrayReader(images), names)


def make_split(keys: list[str], reader: Reader, names: Names | None, groups: list[str] | None = None) -> SourceSplit:
    labels = None if names is None else [(name,) if isinstance(name, str) else name for name in names]
    printable = labels and [tuple(make_printable(name) for name in several) for several in labels]
    return SourceSplit(keys, reader, np.arange(len(keys)), printable, groups)
