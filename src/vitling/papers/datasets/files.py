"""For the readers: where the files of a data set are, and parts made of lists of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitling.data.sources.folder import FileReader
from vitling.data.sources.layout import make_printable
from vitling.data.sources.source import SourceSplit
from vitling.errors import UserError
from vitling.papers.datasets.entry import Entry

Labels = Sequence[tuple[str, ...]]


@dataclass
class Copy:
    """A data set on disk: what a reader is given."""

    entry: Entry
    root: Path  # where its marks are
    options: dict[str, str] = field(default_factory=dict)  # a reader takes out those that it knows

    def need(self, *names: str) -> Path:
        """The first of these files or folders that is there."""
        for name in names:
            if (self.root / name).exists():
                return self.root / name
        others = f" (nor {', '.join(names[1:])})" if names[1:] else ""
        raise UserError(
            f"{self.root} has no {names[0]}{others}, which {self.entry.title} needs. It comes from: {self.entry.where}."
        )

    def lines(self, *names: str) -> list[str]:
        """Of a text file, without empty ones."""
        text = self.need(*names).read_text(encoding="utf-8", errors="surrogateescape")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def choice(self, option: str, most: int) -> int:
        """A number from 1 on, such as ?split=2; 1 where nothing is said."""
        text = self.options.pop(option, "1")
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise UserError(f"{self.entry.name}: ?{option}={text} must be a number from 1 to {most}.")
        return int(text)


def homes(folder: Path, entry: Entry, itself: bool = True) -> Iterator[Path]:
    """Folders with the marks of a data set: those inside `folder` with its name, or one as distributed, and itself."""
    inner = entry.layout.folders
    for name in (*(f"{entry.name}/{name}" for name in inner), entry.name, *inner, *([""] if itself else [])):
        if any((folder / name / mark).exists() for mark in entry.layout.marks):
            yield folder / name


def home(folder: Path, entry: Entry) -> Path:
    found = next(homes(folder, entry), None)
    if found:
        return found
    marks = " or ".join(entry.layout.marks)
    inside = "".join(f", nor in {name}/" for name in dict.fromkeys((entry.name, *entry.layout.folders)))
    is_there = "has no" if folder.is_dir() else "does not exist: it would have"
    raise UserError(f"{folder} {is_there} {marks}{inside}. {entry.title} comes from: {entry.where}.")


def listed(folder: Path, paths: list[str], labels: Labels | None, groups: list[str] | None = None) -> SourceSplit:
    """Images at these paths in a folder. One that is not there is named when it is decoded, like any bad file."""
    keys = [make_printable(path) for path in paths]
    return SourceSplit(keys, FileReader(folder, paths), np.arange(len(paths)), labels, groups)


def words(names: Sequence[str]) -> list[tuple[str, ...]]:
    """One class an image, as parts have it."""
    return [(make_printable(name),) for name in names]
