"""The files of a dataset: finding them, and making splits of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from vitling.data.dataset import Reader
from vitling.data.sources.arrays import ArrayReader
from vitling.data.sources.folder import FileReader
from vitling.data.sources.layout import make_printable
from vitling.data.sources.source import Source, SourceSplit
from vitling.errors import UserError
from vitling.loading import open_text
from vitling.papers.datasets.entry import Entry

T = TypeVar("T")
Names = Sequence[str] | Sequence[tuple[str, ...]]  # the class of each image, or its classes


class Copy:
    """A dataset on disk. Its reader adds the splits to `source`."""

    def __init__(self, entry: Entry, root: Path, options: dict[str, str] | None = None):
        self.entry, self.root = entry, root  # root: the folder with its marks
        self.options = options or {}  # readers remove those they know
        self.last: Path | None = None  # file or folder that the reader asked for last
        self.source = Source(entry.name, class_order=entry.class_names or None, multi=entry.multi)

    def require(self, *names: str) -> Path:
        """Return the first of these files or folders that exists."""
        for name in names:
            if (self.root / name).exists():
                self.last = self.root / name
                return self.last
        others = f" (nor {', '.join(names[1:])})" if names[1:] else ""
        title, where = self.entry.title, self.entry.where
        raise UserError(f"{self.root} has no {names[0]}{others}, which {title} needs. Get it from: {where}.")

    def read_lines(self, *names: str) -> list[str]:
        """Read the non-empty lines of a text file."""
        with open_text(self.require(*names), errors="surrogateescape") as file:
            return [line.strip() for line in file.read().splitlines() if line.strip()]

    def pop_number(self, option: str, largest: int) -> int:
        """Take an option such as ?split=2; it is 1 by default."""
        text = self.options.pop(option, "1")
        if not text.isdecimal() or not 1 <= int(text) <= largest:
            raise UserError(f"{self.entry.name}: ?{option}={text} must be a number from 1 to {largest}.")
        return int(text)

    def order_classes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Set the order of the classes, where the files have names for them."""
        self.source.class_order = tuple(names)
        return self.source.class_order

    def add_files(
        self, split: str, folder: Path, paths: list[str], names: Names | None, groups: list[str] | None = None
    ) -> None:
        """Add a split of image files. A missing file is reported when it is decoded, like any unreadable file."""
        self.add_split(split, [make_printable(path) for path in paths], FileReader(folder, paths), names, groups)

    def add_arrays(self, split: str, images: np.ndarray, names: Names | None) -> None:
        word = "unlabeled" if split == "pool" else split  # as STL-10 calls it
        self.add_split(split, [f"{word}[{i}]" for i in range(len(images))], ArrayReader(images), names)

    def add_split(
        self, split: str, keys: list[str], reader: Reader, names: Names | None, groups: list[str] | None = None
    ) -> None:
        labels = None if names is None else [(name,) if isinstance(name, str) else name for name in names]
        if labels is not None and len(labels) != len(keys):
            raise UserError(f"{self.root}: {split} has {len(keys):,} images, but {len(labels):,} labels.")
        printable = labels and [tuple(make_printable(name) for name in several) for several in labels]
        self.source.splits[split] = SourceSplit(keys, reader, np.arange(len(keys)), printable, groups)


def pick(values: Sequence[T], number: float, first: int = 0) -> T:
    """Return the value with this number, counted from `first`; raise IndexError if there is none, as for -1."""
    index = int(number) - first
    if isinstance(number, bool) or index + first != number or not 0 <= index < len(values):
        raise IndexError(f"{number} is not a number from {first} to {first + len(values) - 1}")
    return values[index]


def find_homes(folder: Path, entry: Entry, itself: bool = True) -> Iterator[Path]:
    """Yield folders with the marks of a dataset: those in `folder` under a known name, and `folder` itself."""
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
