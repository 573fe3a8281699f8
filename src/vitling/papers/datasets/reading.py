"""From `NAME:DIR?option=value` to the splits of a dataset, with its counts checked."""

from __future__ import annotations

import importlib
from urllib.parse import parse_qsl

from vitling.data.sources.source import Source, concat_splits
from vitling.errors import UserError
from vitling.loading import expand_home
from vitling.papers.datasets.entry import Entry
from vitling.papers.datasets.files import Copy, find_home


def read_entry(entry: Entry, rest: str) -> Source:
    """Read `NAME:rest` and note counts that differ from those of the entry."""
    where, _, query = rest.partition("?")
    if not where:
        raise UserError(f"The folder is missing; type {entry.name}:DIR.")
    copy = Copy(entry, find_home(expand_home(where), entry), dict(parse_qsl(query, keep_blank_values=True)))
    val = copy.options.pop("val", None)
    found = _run_reader(copy)
    if unknown := [*copy.options, *(["val"] if val not in (None, "train") else [])]:
        raise UserError(f"{entry.name}:{rest}: unknown option {unknown[0]}.")
    found.notes += check_counts(entry, found)
    if val and "val" in found.splits:  # as the papers train
        found.splits["train"] = concat_splits([found.splits["train"], found.splits.pop("val")])
    return found


def _run_reader(copy: Copy) -> Source:
    module, _, function = copy.entry.reader.partition(".")
    reader = getattr(importlib.import_module(f"vitling.papers.datasets.{module}"), function)
    try:
        reader(copy)
    except UserError:
        raise
    except Exception as error:  # truncated and altered files raise errors of almost any kind
        title, where, reason = copy.entry.title, copy.entry.where, f"{type(error).__name__}: {str(error)[:200]}"
        file = copy.root if copy.last is None else f"{copy.last}, or a file read before it,"
        raise UserError(
            f"{file} is not as {title} is distributed ({reason}). It may be cut short. Get it from: {where}."
        ) from error
    return copy.source


def check_counts(entry: Entry, found: Source) -> list[str]:
    """Describe what differs from the full dataset; figures on a part of it must not pass as its figures."""
    expected = {"train": entry.train, "val": entry.val, "test": entry.test}
    counts = {split: len(found.splits.get(split, ())) for split in expected}
    notes = [
        f"{entry.name}: {counts[split]:,} {split} images, not {expected[split]:,}."
        for split in expected
        if expected[split] and counts[split] != expected[split]
    ]
    if entry.classes and (classes := _count_classes(found)) != entry.classes:
        notes.append(f"{entry.name}: {classes:,} classes, not {entry.classes:,}.")
    return notes


def _count_classes(found: Source) -> int:
    if found.class_order is not None:
        return len(found.class_order)
    return len({name for split in found.splits.values() for names in split.labels or () for name in names})
