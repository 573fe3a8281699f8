"""Reader for tar files, in place: WebDataset samples (x.jpg next to x.cls or x.json), or a tree of class folders."""

from __future__ import annotations

import math
import os
import posixpath
import tarfile
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.sources.layout import arrange_splits, make_printable, strip_shared_folders
from vitling.data.sources.source import (
    IMAGE_SUFFIXES,
    Source,
    SourceSplit,
    concat_splits,
    drop_empty_labels,
    find_split_in_name,
    remove_unlabelled,
    sort_class_names,
)
from vitling.errors import InvalidFile, UserError
from vitling.formatting import shorten_list
from vitling.loading import check_size, open_regular, parse_json

MAX_LABEL = 1000  # characters
MAX_NAME = 4096  # characters of a member's name, with its folders; Linux opens no longer ones
PAX_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
HEADERS = (*PAX_TYPES, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)  # they describe the next member
MAX_HEADER = 2**16  # bytes
LABEL_KEYS = ("label", "labels", "class", "cls")
Span = tuple[int, int]  # offset and size of a member's bytes


class TarReader:
    """Reader of tar members; row i is the member at spans[i]. pread needs no lock and survives a fork."""

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
        check_size(self.path, size)
        with self.lock:
            if self.handle is None:
                with open_regular(self.path) as file:
                    self.handle = os.dup(file.fileno())
        chunks = []
        while size > 0 and (chunk := os.pread(self.handle, size, offset)):
            chunks.append(chunk)
            offset, size = offset + len(chunk), size - len(chunk)
        return b"".join(chunks)


def read(paths: Sequence[Path], name: str, config: DataConfig) -> Source:
    source = Source(name)
    by_split: dict[str, list[SourceSplit]] = defaultdict(list)
    unlabelled: set[str] = set()
    for path in paths:
        prefix = f"{path.name}/" if len(paths) > 1 else ""
        members = list_members(path)
        samples = _group_samples(members)
        if any(label for _, label in samples.values()):
            split, missing = _read_samples(path, members, samples, config, source)
            shard = {"train": split}
            unlabelled |= {prefix + key for key in missing}
        else:
            shard = _read_tree(path, members, source)
        if set(shard) == {"train"} and (found_split := find_split_in_name(path.stem)):
            shard = {found_split: shard["train"]}
        for split_name, split in shard.items():
            split.keys = [prefix + key for key in split.keys]
            by_split[split_name].append(split)
    source.splits = {split_name: concat_splits(splits) for split_name, splits in by_split.items()}
    drop_empty_labels(source)
    if source.multi:  # a missing label differs from an empty list of labels, which makes a negative
        for split_name, split in list(source.splits.items()):
            remove_unlabelled(source, split_name, [i for i, key in enumerate(split.keys) if key in unlabelled])
    return source


class _Member(tarfile.TarInfo):
    """Refuses long headers: before Python 3.11.10, a megabyte of digits in one takes tarfile an hour."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type in HEADERS and found.size > MAX_HEADER:
            raise ValueError(f"a header of {found.size:,} bytes")
        return found


def list_members(path: Path) -> dict[str, Span]:
    try:
        with open_regular(path) as raw, tarfile.open(fileobj=raw, mode="r:", tarinfo=_Member) as file:
            members = {m.name.removeprefix("./"): (m.offset_data, m.size) for m in file if m.isfile()}
    except Exception as error:  # damaged headers raise errors of many kinds
        hint = "Check that the copy is complete and not compressed."
        raise UserError(f"{path} cannot be read as a tar file: {error}. {hint}") from None
    _check_members(path, members)
    return {name: span for name, span in members.items() if not _is_hidden(name)}


def _check_members(path: Path, members: dict[str, Span]) -> None:
    end = path.stat().st_size
    for name, (offset, size) in members.items():
        if len(name) > MAX_NAME:
            start = make_printable(name[:40])
            raise UserError(f"{path}: the name {start}... has over {MAX_NAME:,} characters. Shorten it and pack again.")
        if not 0 <= offset <= offset + size <= end:
            raise UserError(f"{path} ends before {make_printable(name)} does. Check that the copy is complete.")


def _is_hidden(name: str) -> bool:
    return any(folder.startswith(".") or folder == "__MACOSX" for folder in name.split("/"))


def _read_tree(path: Path, members: dict[str, Span], source: Source) -> dict[str, SourceSplit]:
    names = [name for name in members if posixpath.splitext(name)[1].lower() in IMAGE_SUFFIXES]
    others = Counter(posixpath.splitext(name)[1].lower() or "no suffix" for name in members)
    kinds = [f"{n:,} {suffix}" for suffix, n in others.most_common() if suffix not in IMAGE_SUFFIXES]
    if kinds:
        source.notes.append(f"Ignored files in {path.name} that are not images: {shorten_list(kinds)}.")
    spans = np.array([members[name] for name in names], np.int64).reshape(-1, 2)
    splits, notes = arrange_splits(strip_shared_folders(names), TarReader(path, spans))
    source.notes += notes
    return splits


def _group_samples(members: dict[str, Span]) -> dict[str, tuple[str | None, str | None]]:
    """Group members to samples (image, label) by the file name up to its first dot, as WebDataset does."""
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


def _read_samples(
    path: Path, members: dict[str, Span], samples: dict, config: DataConfig, source: Source
) -> tuple[SourceSplit, list[str]]:
    """Read labelled samples; also return the keys of those without a label."""
    images = [image for image, _ in samples.values()]
    spans = np.array([members[image] for image in images], np.int64)
    files = [label for _, label in samples.values()]
    read_file = TarReader(path, np.array([members[name] if name else (0, 0) for name in files], np.int64))
    parsed = [_parse_label(path, name, read_file(row), config) if name else None for row, name in enumerate(files)]
    keys, labels = [make_printable(image) for image in images], [words or () for words in parsed]
    source.multi |= any(len(words) > 1 for words in labels)
    source.class_order = sort_class_names({*(source.class_order or ()), *(word for words in labels for word in words)})
    split = SourceSplit(keys, TarReader(path, spans), np.arange(len(images)), labels)
    return split, [key for key, words in zip(keys, parsed) if words is None]


def _parse_label(path: Path, name: str, raw: bytes, config: DataConfig) -> tuple[str, ...] | None:
    try:
        text = raw.decode().strip()
        if name.endswith(".cls"):
            return (text,) if text else None
        value: Any = parse_json(text, Any, path)
    except (UnicodeDecodeError, InvalidFile):
        raise UserError(f"{path}: the label {name} is neither text nor JSON.") from None
    if isinstance(value, dict):
        keys = [key for key in (config.label_column, *LABEL_KEYS) if key in value]
        value = value[keys[0]] if keys else None
    words = value if isinstance(value, list) else [value]
    if any(isinstance(word, float) and not math.isfinite(word) for word in words):
        raise UserError(f"{path}: the label {name} is not finite.")
    return None if value is None else tuple(str(word)[:MAX_LABEL] for word in words)
