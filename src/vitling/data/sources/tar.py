"""Tar files, read in place: WebDataset's samples (x.jpg beside x.cls or x.json), or a tree of class folders."""

from __future__ import annotations

import json
import os
import posixpath
import tarfile
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.sources.layout import arrange_splits, make_printable
from vitling.data.sources.source import (
    IMAGE_SUFFIXES,
    SPLIT_OF,
    Source,
    SourceSplit,
    concat_splits,
    drop_empty_labels,
    remove_unlabelled,
    sort_class_names,
    split_from_name,
)
from vitling.errors import UserError
from vitling.formatting import shorten_list

LABEL_KEYS = ("label", "labels", "class", "cls")
Span = tuple[int, int]  # offset and size of a member's bytes


class TarReader:
    """Row i is the member at spans[i]; pread needs no lock, and a forked process can go on using the file."""

    def __init__(self, path: Path, spans: np.ndarray):
        self.path, self.spans = path, spans
        self.handle: int | None = None
        self.lock = threading.Lock()

    def __reduce__(self):
        return TarReader, (self.path, self.spans)

    def __del__(self):
        if self.handle is not None:
            os.close(self.handle)

    def __call__(self, row: int) -> bytes:
        offset, size = (int(n) for n in self.spans[row])
        with self.lock:
            if self.handle is None:
                self.handle = os.open(self.path, os.O_RDONLY)
        chunks = []
        while size > 0 and (chunk := os.pread(self.handle, size, offset)):
            chunks.append(chunk)
            offset, size = offset + len(chunk), size - len(chunk)
        return b"".join(chunks)


def read(paths: Sequence[Path], name: str, config: DataConfig) -> Source:
    found = Source(name)
    by_split: dict[str, list[SourceSplit]] = defaultdict(list)
    unknown: set[str] = set()
    for path in paths:
        prefix = f"{path.name}/" if len(paths) > 1 else ""
        members = _index(path)
        samples = _samples(members)
        if any(label for _, label in samples.values()):
            part, untold = _labelled_samples(path, members, samples, config, found)
            shard = {"train": part}
            unknown |= {prefix + key for key in untold}
        else:
            shard = _tree(path, members, found)
        if set(shard) == {"train"} and (split := split_from_name(path.stem)):
            shard = {split: shard["train"]}
        for split, part in shard.items():
            part.keys = [prefix + key for key in part.keys]
            by_split[split].append(part)
    found.splits = {split: concat_splits(parts) for split, parts in by_split.items()}
    drop_empty_labels(found)
    if found.multi:  # no label told is another thing than an empty list of them
        for split, part in list(found.splits.items()):
            remove_unlabelled(found, split, [i for i, key in enumerate(part.keys) if key in unknown])
    return found


def _index(path: Path) -> dict[str, Span]:
    try:
        with tarfile.open(path, "r:") as file:
            members = {m.name.removeprefix("./"): (m.offset_data, m.size) for m in file if m.isfile()}
    except (tarfile.TarError, OSError, EOFError) as error:
        hint = "Is the copy complete, and not compressed?"
        raise UserError(f"{path} cannot be read as a tar file: {error}. {hint}") from None
    return {name: span for name, span in members.items() if not _hidden(name)}


def _hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def _tree(path: Path, members: dict[str, Span], found: Source) -> dict[str, SourceSplit]:
    names = [name for name in members if posixpath.splitext(name)[1].lower() in IMAGE_SUFFIXES]
    others = Counter(posixpath.splitext(name)[1].lower() or "no suffix" for name in members)
    kinds = [f"{n:,} {suffix}" for suffix, n in others.most_common() if suffix not in IMAGE_SUFFIXES]
    if kinds:
        found.notes.append(f"Files in {path.name} that are no images were ignored: {shorten_list(kinds)}.")
    spans = np.array([members[name] for name in names], np.int64).reshape(-1, 2)
    parts, notes = arrange_splits(_unwrapped(names), TarReader(path, spans))
    found.notes += notes
    return parts


def _unwrapped(names: list[str]) -> list[str]:
    """`flowers/train/001/x.webp` and its like without the folder that wraps everything."""
    while names:
        tops = {name.split("/", 1)[0] for name in names}
        wraps = len(tops) == 1 and all(name.count("/") >= 2 for name in names)
        if not wraps or tops.pop().lower() in SPLIT_OF:
            break
        names = [name.split("/", 1)[1] for name in names]
    return names


def _samples(members: dict[str, Span]) -> dict[str, tuple[str | None, str | None]]:
    """WebDataset's rule: what stands before the first dot of the file name is the sample. Its image and its label."""
    samples: dict[str, tuple[str | None, str | None]] = {}
    for name in members:
        folder, file = posixpath.split(name)
        stem, _, suffix = file.partition(".")
        key = posixpath.join(folder, stem)
        image, label = samples.get(key, (None, None))
        if f".{suffix.lower()}" in IMAGE_SUFFIXES:
            image = image or name
        elif suffix == "cls" or (suffix == "json" and label is None):
            label = name
        samples[key] = (image, label)
    return {key: sample for key, sample in samples.items() if sample[0]}


def _labelled_samples(
    path: Path, members: dict[str, Span], samples: dict, config: DataConfig, found: Source
) -> tuple[SourceSplit, list[str]]:
    """The images, and the keys of those whose label is not told."""
    images = [image for image, _ in samples.values()]
    spans = np.array([members[image] for image in images], np.int64)
    told = [label for _, label in samples.values()]
    read_label = TarReader(path, np.array([members[name] if name else (0, 0) for name in told], np.int64))
    known = [_label(path, name, read_label(row), config) if name else None for row, name in enumerate(told)]
    keys, labels = [make_printable(image) for image in images], [words or () for words in known]
    found.multi |= any(len(words) > 1 for words in labels)
    found.class_order = sort_class_names({*(found.class_order or ()), *(word for words in labels for word in words)})
    part = SourceSplit(keys, TarReader(path, spans), np.arange(len(images)), labels)
    return part, [key for key, words in zip(keys, known) if words is None]


def _label(path: Path, name: str, raw: bytes, config: DataConfig) -> tuple[str, ...] | None:
    try:
        text = raw.decode().strip()
        if name.endswith(".cls"):
            return (text,) if text else None
        value: Any = json.loads(text)
    except ValueError:
        raise UserError(f"{path}: the label {name} is neither text nor JSON.") from None
    if isinstance(value, dict):
        keys = [key for key in (config.label_column, *LABEL_KEYS) if key in value]
        value = value[keys[0]] if keys else None
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    return None if value is None else (str(value),)
