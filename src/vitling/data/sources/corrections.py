"""Corrected labels from a CSV (--labels), such as the edited suspects.csv of `vitling doctor`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from vitling.data.config import DataConfig
from vitling.data.sources.source import Source, SourceSplit
from vitling.data.sources.table import Row, read_rows
from vitling.errors import UserError
from vitling.formatting import format_count, shorten_list, unescape_cell
from vitling.loading import expand_home, read_bytes

DROP = "drop"  # as a label: leave the image out, unless a class has this name. An empty label does so too
SPLITS = ("train", "val", "test")
Place = tuple[str, int]  # split and index of an image
_COLUMNS = DataConfig()  # the columns are path, label and split, whatever those of the data are


def hash_labels(path: str) -> str:
    """Hash the content of a file of labels, which a resumed run must find unchanged."""
    try:
        return hashlib.blake2b(read_bytes(expand_home(path)), digest_size=16).hexdigest()
    except OSError as problem:
        raise UserError(f"--labels {path} cannot be read: {problem.strerror}.") from None


def check_same_labels(path: str, digest: str, out: str) -> None:
    """Raise UserError if a file of labels has changed since the run in `out` began, when it had this digest."""
    if hash_labels(path) != digest:
        raise UserError(
            f"--labels {path} has changed since {out} began. Restore the file, or start a new run in another --out."
        )


def correct_labels(source: Source, path: str) -> None:
    """Replace the labels of the images that the CSV names, and remove those without a label or marked `drop`."""
    hash_labels(path)
    rows, columns = read_rows(expand_home(path), _COLUMNS)
    if missing := [name for name in ("path", "label") if name not in columns]:
        has = ", ".join(columns)
        raise UserError(f"--labels {path} has no column {missing[0]}, only {has}. It needs the columns path and label.")
    labelled = {name: split for name in SPLITS if (split := source.splits.get(name)) and split.labels is not None}
    if source.multi or not labelled:
        has = "images with several labels each" if source.multi else "no labels to correct"
        raise UserError(f"--labels {path}: {source.name} has {has}. List all images and labels in a CSV and pass that.")
    rows = [row | {name: unescape_cell(row[name]) for name in ("path", "label")} for row in rows]
    corrections = _find_images(labelled, rows, path)
    classes = set(source.class_order or ()) | {word for split in labelled.values() for word in _list_words(split)}
    _check_classes(corrections, classes, path)
    changed, removed = 0, set[Place]()
    words = {name: list(split.labels or ()) for name, split in labelled.items()}
    for (name, i), label in corrections.items():
        if not label or (label == DROP and DROP not in classes):
            removed.add((name, i))
        elif words[name][i] != (label,):
            words[name][i] = (label,)
            changed += 1
    for name, split in labelled.items():
        split.labels = words[name]
        source.splits[name] = split.take([i for i in range(len(split)) if (name, i) not in removed])
    source.notes.append(
        f"{path}: {format_count(changed, 'label')} changed, {format_count(len(removed), 'image')} left out."
    )


def _list_words(split: SourceSplit) -> Iterator[str]:
    return (word for words in split.labels or () for word in words)


def _find_images(splits: Mapping[str, SourceSplit], rows: Sequence[Row], path: str) -> dict[Place, str]:
    """Return the label of each image that the rows name."""
    places: dict[str, list[Place]] = {}
    for name, split in splits.items():
        for i, key in enumerate(split.keys):
            places.setdefault(key, []).append((name, i))
    found: dict[Place, str] = {}
    unknown, several, twice = list[str](), list[str](), list[str]()
    for row in rows:
        key, wanted = row["path"], row.get("split", "")
        here = [place for place in places.get(key, ()) if wanted in ("", place[0])]
        if not here:
            unknown.append(key)
        elif len({name for name, _ in here}) > 1:
            several.append(key)
        for place in here:
            if found.setdefault(place, row["label"]) != row["label"]:
                twice.append(key)
    if unknown:
        example = next(iter(places), "")
        raise UserError(
            f"--labels {path} names {format_count(len(unknown), 'image')} not among the labelled images: "
            f"{shorten_list(unknown)}. Write paths as the data does, such as {example}, or remove these rows."
        )
    if several:
        raise UserError(
            f"--labels {path}: {shorten_list(several)} {'are' if len(several) > 1 else 'is'} in several splits. Add a "
            "column split with train, val or test."
        )
    if twice:
        raise UserError(f"--labels {path} has different labels for the same image: {shorten_list(twice)}. Keep one.")
    return found


def _check_classes(corrections: Mapping[Place, str], classes: set[str], path: str) -> None:
    labels = [label for label in corrections.values() if label and label != DROP and label not in classes]
    if labels:
        counts = [f'"{label}" ({labels.count(label):,})' for label in dict.fromkeys(labels)]
        raise UserError(
            f"--labels {path} has labels that are no class of the data: {shorten_list(counts)}. The classes are "
            f"{shorten_list(sorted(classes))}. Correct the spelling, or write {DROP} to leave the image out."
        )
