"""From `NAME:DIR?option=value` to the parts of a data set of the papers, their numbers checked."""

from __future__ import annotations

import importlib
import zlib
from pathlib import Path
from urllib.parse import parse_qsl

from vitling.data.sources.source import Source, concat_splits
from vitling.errors import UserError
from vitling.papers.datasets.entry import Entry
from vitling.papers.datasets.files import Copy, home


def read_entry(entry: Entry, rest: str) -> Source:
    where, _, query = rest.partition("?")
    if not where:
        raise UserError(f"Say where the files are: {entry.name}:DIR")
    copy = Copy(entry, home(Path(where).expanduser(), entry), dict(parse_qsl(query, keep_blank_values=True)))
    merged = copy.options.pop("val", None)
    found = _parts(copy)
    if unknown := [*copy.options, *(["val"] if merged not in (None, "train") else [])]:
        raise UserError(f"{entry.name}:{rest}: it takes no option {unknown[0]}.")
    found.notes += other_numbers(entry, found)
    if merged and "val" in found.splits:  # as the papers train
        found.splits["train"] = concat_splits([found.splits["train"], found.splits.pop("val")])
    return found


def _parts(copy: Copy) -> Source:
    module, _, function = copy.entry.layout.reader.partition(".")
    reader = getattr(importlib.import_module(f"vitling.papers.datasets.{module}"), function)
    try:
        return reader(copy)
    except (LookupError, ValueError, TypeError, EOFError, OSError, zlib.error) as error:  # as files cut short lead to
        raise UserError(
            f"{copy.root} is not as {copy.entry.title} is distributed ({type(error).__name__}: {error}). Is a file cut "
            f"short? It comes from: {copy.entry.where}."
        ) from error


def other_numbers(entry: Entry, found: Source) -> list[str]:
    """What differs from the full data set, in words: a figure of a part of it is not one of the data set."""
    wanted = {"train": entry.train, "val": entry.val, "test": entry.test}
    there = {split: len(found.splits[split]) if split in found.splits else 0 for split in wanted}
    notes = [
        f"{entry.name}: {there[split]:,} {split} images, not {wanted[split]:,}."
        for split in wanted
        if wanted[split] and there[split] != wanted[split]
    ]
    if entry.classes and (classes := _classes(found)) != entry.classes:
        notes.append(f"{entry.name}: {classes:,} classes, not {entry.classes:,}.")
    return notes


def _classes(found: Source) -> int:
    if found.class_order is not None:
        return len(found.class_order)
    return len({name for part in found.splits.values() for names in part.labels or () for name in names})
