"""Reader for folders of images: class folders, with or without train/val/test and `unlabelled`, or flat."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from vitling.data.config import DataConfig
from vitling.data.dataset import BadFile
from vitling.data.sources.layout import Layout, arrange_splits, make_printable
from vitling.data.sources.source import IMAGE_SUFFIXES, SPLIT_OF, UNREAD_SUFFIXES, Source
from vitling.formatting import shorten_list
from vitling.loading import read_bytes

Identity = tuple[int, int]  # device and inode of a folder
MAX_DEPTH = 100  # folders inside each other
Kind = Literal["file", "folder", "dead", "closed"]  # dead: broken link; closed: no permission


class FileReader:
    """Reader of files; row i is the file at paths[i]."""

    def __init__(self, root: Path, paths: list[str]):
        self.root, self.paths = str(root), paths

    def __call__(self, row: int) -> bytes:
        return read_bytes(os.path.join(self.root, self.paths[row]))


def read(root: Path, config: DataConfig) -> Source:
    paths: list[str] = []
    dead: list[str] = []
    source = Source(make_printable(root.resolve().name))
    others: Counter[str] = Counter()
    folders: list[str] = []
    for path, kind in walk_files(str(root), "", set()):
        if kind == "closed":
            source.notes.append(f"The folder {make_printable(path)} cannot be read.")
        elif kind == "folder":
            folders.append(path)
        elif os.path.splitext(path)[1].lower() not in IMAGE_SUFFIXES:
            others[os.path.splitext(path)[1].lower() or "no suffix"] += 1
        else:
            (paths if kind == "file" else dead).append(path)
    layout = Layout([*paths, *dead])
    source.splits, notes = arrange_splits(paths, FileReader(root, paths), layout)
    source.notes += notes
    for path in dead:
        if place := layout.place(path):
            source.bad.append(BadFile(make_printable(path), "broken link", place[0]))
    if empty := _find_empty_folders(folders, paths):
        source.notes.append(f"No images in {shorten_list(empty)}.")
    unread = Counter({suffix: n for suffix, n in others.items() if suffix in UNREAD_SUFFIXES})
    if unread:
        source.warnings.append(
            f"{_count_kinds(unread)} files are skipped: vitling cannot read them. Convert them to JPEG or PNG."
        )
    if rest := others - unread:
        source.notes.append(f"Ignored files that are not images: {_count_kinds(rest)}.")
    if warning := layout.describe_nesting(paths):
        source.warnings.append(warning)
    return source


def _count_kinds(counts: Counter[str]) -> str:
    return shorten_list([f"{n:,} {suffix}" for suffix, n in counts.most_common()])


def walk_files(
    root: str, below: str, seen: set[Identity], above: frozenset[Identity] = frozenset(), links: int = 0
) -> Iterator[tuple[str, Kind]]:
    """Walk everything that is not hidden, following links except those to a folder above.

    `links` counts the links on the way. Behind two, no folder is walked twice: links to each other would never end.
    """
    try:
        here = os.stat(os.path.join(root, below))
        entries = sorted(os.scandir(os.path.join(root, below)), key=lambda entry: entry.name)
    except OSError:
        yield below or ".", "closed"
        return
    identity = (here.st_dev, here.st_ino)
    if identity in above or (links > 1 and identity in seen) or len(above) > MAX_DEPTH:
        return
    above |= {identity}
    seen.add(identity)
    for entry in entries:
        path = f"{below}/{entry.name}" if below else entry.name
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            continue
        kind = _classify(entry)
        yield path, kind
        if kind == "folder":
            yield from walk_files(root, path, seen, above, links + entry.is_symlink())


def _classify(entry: os.DirEntry) -> Kind:
    try:
        return "folder" if entry.is_dir() else "file" if entry.is_file() else "dead"
    except OSError:  # a link to itself
        return "dead"


def _find_empty_folders(folders: list[str], paths: list[str]) -> list[str]:
    """List folders at the level of classes that have no image."""
    filled = {"/".join(path.split("/")[:depth]) for path in paths for depth in (1, 2)}
    at_class_level = [f for f in folders if "/" not in f or (f.count("/") == 1 and f.split("/")[0] in SPLIT_OF)]
    return [make_printable(folder) for folder in at_class_level if folder not in filled]
