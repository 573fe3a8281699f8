"""Splits and classes from the folders of images, on disk or in a tar."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from vitling.data.dataset import Reader
from vitling.data.sources.source import SPLIT_OF, SourceSplit
from vitling.formatting import format_count, shorten_list


class Layout:
    """Meaning of the folders, decided from all paths.

    CLASS/x.jpg and SPLIT/CLASS/x.jpg are labelled; x.jpg, SPLIT/x.jpg and unlabelled/x.jpg are not. Folders below a
    class folder belong to that class.
    """

    def __init__(self, paths: Sequence[str]):
        self.split_folders, self.class_folders = _find_split_folders(paths)

    def place(self, path: str) -> tuple[str, str] | None:
        """Return split and class ("" for none) of an image, or None if it lies next to the splits and is not used."""
        folders = path.split("/")[:-1]
        split = "train"
        if folders and folders[0] in self.split_folders:
            split = self.split_folders[folders.pop(0)]
        elif self.split_folders and not (folders and (folders[0] in self.class_folders or _is_pool(folders[0]))):
            return None
        if folders and _is_pool(folders[0]):
            return "pool", ""
        return split, folders[0] if folders else ""

    def describe_nesting(self, paths: Sequence[str]) -> str:
        """Describe classes that look like sites or patients with the classes below them; "" if there are none."""
        below: dict[str, set[str]] = defaultdict(set)
        for path in paths:
            folders = path.split("/")[:-1]
            folders = folders[1:] if folders and folders[0] in self.split_folders else folders
            if folders and not _is_pool(folders[0]):
                below[folders[0]].add(folders[1] if len(folders) > 1 else "")
        inner = set().union(*below.values())
        repeated = sum(len(names) for names in below.values()) > len(inner)
        if len(below) < 2 or len(inner) < 2 or "" in inner or not (repeated or min(map(len, below.values())) > 1):
            return ""
        tops, names = (shorten_list(sorted(map(make_printable, words)), 3) for words in (below, inner))
        what = "whose subfolders have the same names" if repeated else "which contain only folders"
        return (
            f"The classes are the outer folders ({tops}), {what} ({names}). If those are the classes, move them to the "
            "top, or pass a CSV with a label column."
        )


def arrange_splits(
    paths: Sequence[str], reader: Reader, layout: Layout | None = None
) -> tuple[dict[str, SourceSplit], list[str]]:
    """Build the splits of images at relative paths (row i is path i), in ImageFolder's order, and notes."""
    layout = layout or Layout(paths)
    placed: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    ignored: set[str] = set()
    for i, path in enumerate(paths):
        place = layout.place(path)
        if place is None:
            top, *below = path.split("/", 1)
            ignored.add(make_printable(top + "/" if below else path))
        else:
            placed[place[0]][place[1]].append(i)
    notes = [f"Not used (next to the splits): {shorten_list(sorted(ignored))}."] if ignored else []
    splits = {}
    for name, by_class in placed.items():
        loose = by_class.pop("", [])
        if by_class and loose:
            notes.append(f"Not used (next to the class folders of {name}): {format_count(len(loose), 'image')}.")
        splits[name] = _make_split(paths, by_class or {"": loose}, reader)
    return splits, notes


def strip_shared_folders(paths: Sequence[str]) -> list[str]:
    """Strip folders that contain everything, such as `flowers/` of `flowers/train/001/x.webp`, down to a split.

    The file and the folder that it lies in are kept.
    """
    shared = posixpath.commonprefix([path.split("/")[:-2] for path in paths])
    depth = next((k for k, folder in enumerate(shared) if folder.lower() in SPLIT_OF), len(shared))
    return [path.split("/", depth)[-1] for path in paths]


def _find_split_folders(paths: Sequence[str]) -> tuple[dict[str, str], set[str]]:
    """Find the top folders that are splits, and those that are classes of train next to a split (such as test/).

    A folder named like a split may be a class (`train` next to `bus`). It is a split if it contains class folders or
    if there are only splits next to it.
    """
    depth: dict[str, int] = {}
    for path in paths:
        top, *below = path.split("/")
        if below:
            depth[top] = max(depth.get(top, 0), len(below))
    splits = {top: SPLIT_OF[top.lower()] for top in depth if top.lower() in SPLIT_OF and not _is_pool(top)}
    others = {top for top in depth if top not in splits and not _is_pool(top)}
    if others and not any(depth[top] > 1 for top in splits):
        return {}, set()
    return splits, others if "train" not in splits.values() else set()


def _is_pool(folder: str) -> bool:
    return SPLIT_OF.get(folder.lower()) == "pool"


def _make_split(paths: Sequence[str], by_class: dict[str, list[int]], reader: Reader) -> SourceSplit:
    rows, labels = [], []
    for name in sorted(by_class):
        ordered = sorted(by_class[name], key=lambda i: posixpath.split(paths[i]))
        rows += ordered
        labels += [(make_printable(name),)] * len(ordered)
    keys = [make_printable(paths[i]) for i in rows]
    return SourceSplit(keys, reader, np.array(rows, np.int64), labels if any(by_class) else None)


def make_printable(path: str) -> str:
    """Escape bytes that are not UTF-8, for JSON and terminals; different names stay different."""
    try:
        return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half surrogates of another origin, such as JSON
        return path.encode("utf-8", "backslashreplace").decode()
