"""Inspection of a dataset before training: contents, bad files, duplicates, leakage."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from vitling.data.annotations.config import AnnotationConfig
from vitling.data.annotations.open import find_task, open_annotated
from vitling.data.annotations.split import DenseTask
from vitling.data.annotations.summary import AnnotationSummary, find_range, summarise_annotations
from vitling.data.config import DataConfig
from vitling.data.content import hash_records, make_records
from vitling.data.dataset import BadFile, Dataset, Splits
from vitling.data.duplicates import Leak, find_duplicates, find_exact_duplicates, find_leaks
from vitling.data.scan import ImageFacts, scan
from vitling.data.sources import read_source
from vitling.data.splits import read_splits
from vitling.formatting import shorten_list

MAX_IMBALANCE = 10  # largest class over smallest; from here on a warning
SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
}


@dataclass
class SplitSummary:
    """Figures of one split. A range is (smallest, median, largest), or None if no image could be decoded."""

    content_hash: str  # of images and labels (data/content.py)
    images: int
    usable: int
    classes: dict[str, int]
    imbalance: float | None  # largest class over smallest
    groups: int | None
    width: tuple[float, float, float] | None
    height: tuple[float, float, float] | None
    aspect: tuple[float, float, float] | None  # width over height
    modes: dict[str, int]
    formats: dict[str, int]
    exact_duplicates: list[list[str]]
    near_duplicates: list[list[str]]


@dataclass
class Inspection:
    """Result of `inspect`, as written to inspection.json."""

    spec: str
    name: str
    task: str
    splits: dict[str, SplitSummary]
    bad: list[BadFile] = field(default_factory=list)
    leakage: list[dict[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    annotations: dict[str, AnnotationSummary] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def inspect(
    spec: str | os.PathLike[str],
    config: DataConfig | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    labels: str | None = None,
    settings: AnnotationConfig | None = None,
) -> Inspection:
    """Decode every image of every split once and summarise them. `on_progress` gets the number done and the total.

    `labels`: a CSV of corrected labels. Boxes and masks are read too, if there are any.
    """
    config, settings = config or DataConfig(), settings or AnnotationConfig()
    task = None if labels else find_task(str(spec), settings)
    annotations: dict[str, AnnotationSummary] = {}
    if task is None:
        splits = read_splits(read_source(str(spec), config, labels) if labels else spec, config, needs_train=False)
    else:
        splits, annotations = _read_annotated(str(spec), task, settings, config)
    datasets = {"train": splits.train, "val": splits.val, "pool": splits.pool}
    datasets["test"] = splits.open_test("inspect") if splits.has_test else None
    present = {split: dataset for split, dataset in datasets.items() if dataset is not None}
    facts = _scan_all(present, config, on_progress)
    leaks = find_leaks(facts)
    described = (describe_two_labels(present["train"], facts["train"]), _describe_leaks(leaks))
    result = Inspection(
        spec=str(spec),
        name=posixpath.dirname(splits.train.name),
        task=task or splits.train.task,
        splits={split: _summarise(present[split], facts[split]) for split in present},
        bad=[*splits.bad, *_list_bad_files(present, facts)],
        leakage=[_name_leak(leak, present) for leak in leaks],
        notes=[*splits.notes, *_note_mismatches(present, facts)],
        warnings=[*splits.warnings, *filter(None, described)],
        annotations=annotations,
    )
    result.warnings += _collect_warnings(result)
    return result


def _read_annotated(
    spec: str, task: DenseTask, settings: AnnotationConfig, config: DataConfig
) -> tuple[Splits, dict[str, AnnotationSummary]]:
    """Read the images of annotated data, and summarise its annotations."""
    found = open_annotated(spec, task, settings, config, needs_train=False)
    present = {name: split for name, split in found.items() if split is not None}
    datasets = {name: split.dataset for name, split in present.items()}
    first = next(iter(datasets.values()))
    train = datasets.get("train") or first.take([], first.name.rpartition("/")[0] + "/train")
    notes = list(dict.fromkeys(note for split in present.values() for note in split.notes))
    splits = Splits(train, datasets.get("val"), notes=notes, hidden_test=datasets.get("test"))
    return splits, {name: summarise_annotations(split) for name, split in present.items()}


def describe_leakage(facts: dict[str, ImageFacts], train_name: str = "train") -> str | None:
    """Describe val and test images that are also in train (`facts["train"]`, shown as `train_name`), if any."""
    return _describe_leaks(find_leaks(facts), train_name)


def _describe_leaks(leaks: list[Leak], train_name: str = "train") -> str | None:
    counts = Counter((leak.split, leak.kind) for leak in leaks if leak.split in ("val", "test"))
    if not counts:
        return None
    kinds = {"exact": ("an exact copy", "exact copies"), "near": ("a near duplicate", "near duplicates")}
    found = [
        f"{n:,} {split} {'image is' if n == 1 else 'images are'} {kinds[kind][n > 1]} of {train_name} images"
        for (split, kind), n in sorted(counts.items())
    ]
    return f"{'; '.join(found)}. Expect lower scores on new images."


def _scan_all(
    datasets: dict[str, Dataset], config: DataConfig, on_progress: Callable[[int, int], None] | None
) -> dict[str, ImageFacts]:
    before, total = 0, sum(map(len, datasets.values()))
    facts = {}
    for split, dataset in datasets.items():

        def report(done: int, before: int = before) -> None:
            if on_progress:
                on_progress(before + done, total)

        facts[split] = scan(dataset, config=config, on_progress=report)
        before += len(dataset)
    return facts


def _summarise(dataset: Dataset, facts: ImageFacts) -> SplitSummary:
    ok = facts.ok
    classes = _count_classes(dataset)
    filled = [n for n in classes.values() if n]
    duplicates = find_duplicates(facts)
    return SplitSummary(
        content_hash=hash_records(make_records(dataset, facts.digests)),
        images=len(dataset),
        usable=int(ok.sum()),
        classes=classes,
        imbalance=max(filled) / min(filled) if filled else None,
        groups=None if dataset.groups is None else len(np.unique(dataset.groups)),
        width=find_range(facts.width[ok]),
        height=find_range(facts.height[ok]),
        aspect=find_range(facts.width[ok] / facts.height[ok]),
        modes=_count_words(facts.modes),
        formats=_count_words(facts.formats),
        exact_duplicates=[[dataset.keys[i] for i in cluster] for cluster in duplicates.exact],
        near_duplicates=[[dataset.keys[i] for i in cluster] for cluster in duplicates.near],
    )


def _count_classes(dataset: Dataset) -> dict[str, int]:
    return {} if dataset.labels is None else dict(zip(dataset.class_names, dataset.count_classes().tolist()))


def _count_words(words: list[str]) -> dict[str, int]:
    return dict(Counter(word for word in words if word).most_common())


def _list_bad_files(datasets: dict[str, Dataset], facts: dict[str, ImageFacts]) -> list[BadFile]:
    return [
        BadFile(dataset.keys[i], reason, split)
        for split, dataset in datasets.items()
        for i, reason in facts[split].reasons.items()
    ]


def _name_leak(leak: Leak, datasets: dict[str, Dataset]) -> dict[str, str]:
    return {
        "split": leak.split,
        "key": datasets[leak.split].keys[leak.id],
        "train_key": datasets["train"].keys[leak.train_id],
        "kind": leak.kind,
    }


def _note_mismatches(datasets: dict[str, Dataset], facts: dict[str, ImageFacts]) -> list[str]:
    wrong = [
        f"{key} is {format}"
        for split, dataset in datasets.items()
        for key, format in zip(dataset.keys, facts[split].formats)
        if (suffix := posixpath.splitext(key)[1].lower()) in _KNOWN_SUFFIXES
        and format in SUFFIXES
        and suffix not in SUFFIXES[format]
    ]
    return [f"Files with the wrong suffix, read by their content: {shorten_list(wrong)}."] if wrong else []


_KNOWN_SUFFIXES = frozenset(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)


def describe_two_labels(dataset: Dataset, facts: ImageFacts) -> str | None:
    """Describe images with the same bytes but different labels, if any."""
    labels = dataset.labels
    if labels is None:
        return None
    clusters = [c for c in find_exact_duplicates(facts) if len(np.unique(labels[c], axis=0)) > 1]
    if not clusters:
        return None
    listed = shorten_list([" = ".join(dataset.keys[i] for i in cluster[:2]) for cluster in clusters], 3)
    return f"The same image has different labels: {listed}. Keep one of each."


def _collect_warnings(found: Inspection) -> list[str]:
    warnings: list[str] = []
    if found.bad:
        warnings.append(f"Files that cannot be used: {len(found.bad):,}.")
    train = found.splits["train"]
    if problems := sum(sum(split.problem_counts.values()) for split in found.annotations.values()):
        warnings.append(f"Annotations or images that are left out: {problems:,}.")
    copies = sum(len(cluster) - 1 for cluster in train.exact_duplicates)
    if copies:
        warnings.append(f"Train images that are exact copies of others: {copies:,}.")
    if sum(n > 0 for n in train.classes.values()) == 1:
        warnings.append("There is only one class. A classifier needs two; `vitling pretrain` needs none.")
    if train.imbalance is not None and train.imbalance >= MAX_IMBALANCE:
        warnings.append(f"The largest class has {train.imbalance:.0f} times as many images as the smallest.")
    return warnings
