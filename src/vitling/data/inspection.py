"""`inspect(spec)`: what a data set holds, and what is wrong with it, before a run is spent on it."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.dataset import BadFile, Dataset
from vitling.data.duplicates import Leak, across, find
from vitling.data.scan import ImageFacts, scan
from vitling.data.splits import read_splits
from vitling.formatting import shorten_list

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 10
SUFFIX_OF = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
}


@dataclass
class SplitSummary:
    """One split in figures. A range is (smallest, median, largest), None where no image could be decoded."""

    images: int
    usable: int
    classes: dict[str, int]
    imbalance: float | None  # the largest class over the smallest
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
    spec: str
    name: str
    task: str
    splits: dict[str, SplitSummary]
    bad: list[BadFile] = field(default_factory=list)
    leakage: list[dict[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def render(self, console: Console) -> None:
        from vitling.data.inspection_tables import render

        render(self, console)


def inspect(
    spec: str | os.PathLike[str],
    config: DataConfig | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Decode every image of every split once, and say what was found. `on_progress` is told how many are done,
    and of how many."""
    config = config or DataConfig()
    splits = read_splits(spec, config, needs_train=False)
    datasets = {"train": splits.train, "val": splits.val, "pool": splits.pool}
    datasets["test"] = splits.open_test("inspect") if splits.has_test else None
    there = {split: dataset for split, dataset in datasets.items() if dataset is not None}
    facts = _scan_all(there, config, on_progress)
    leaks = across(facts)
    result = Inspection(
        spec=str(spec),
        name=posixpath.dirname(splits.train.name),
        task=splits.train.task,
        splits={split: _split_facts(there[split], facts[split]) for split in there},
        bad=[*splits.bad, *(file for split in there for file in _bad_files(there[split], facts[split], split))],
        leakage=[_named(leak, there) for leak in leaks],
        notes=[*splits.notes, *_mismatches(there, facts)],
    )
    result.warnings = _warnings(result, leaks)
    return result


def describe_leakage(facts: dict[str, ImageFacts], called: str = "train") -> str | None:
    """A sentence if val or test images are in train too. `facts` by split, train among them, whatever it is called."""
    return _leakage_sentence(across(facts), called)


def _leakage_sentence(leaks: list[Leak], called: str = "train") -> str | None:
    counts = Counter((leak.split, leak.kind) for leak in leaks if leak.split in ("val", "test"))
    if not counts:
        return None
    how = {"exact": "byte for byte", "near": "to the eye"}
    parts = [f"{n:,} of {split} {how[kind]}" for (split, kind), n in sorted(counts.items())]
    return f"Images are in {called} as well: {', '.join(parts)}. Figures on them are too good."


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


def _split_facts(dataset: Dataset, facts: ImageFacts) -> SplitSummary:
    ok = facts.ok
    classes = _class_counts(dataset)
    filled = [n for n in classes.values() if n]
    twins = find(facts)
    return SplitSummary(
        images=len(dataset),
        usable=int(ok.sum()),
        classes=classes,
        imbalance=max(filled) / min(filled) if filled else None,
        groups=None if dataset.groups is None else len(np.unique(dataset.groups)),
        width=_range(facts.width[ok]),
        height=_range(facts.height[ok]),
        aspect=_range(facts.width[ok] / facts.height[ok]),
        modes=_counts(facts.modes),
        formats=_counts(facts.formats),
        exact_duplicates=[[dataset.keys[i] for i in cluster] for cluster in twins.exact],
        near_duplicates=[[dataset.keys[i] for i in cluster] for cluster in twins.near],
    )


def _class_counts(dataset: Dataset) -> dict[str, int]:
    if dataset.labels is None:
        return {}
    if dataset.labels.ndim == 1:
        counts = np.bincount(dataset.labels, minlength=len(dataset.class_names))
    else:
        counts = dataset.labels.sum(axis=0)
    return dict(zip(dataset.class_names, counts.tolist()))


def _range(values: np.ndarray) -> tuple[float, float, float] | None:
    if not len(values):
        return None
    smallest, median, largest = (round(float(f(values)), 3) for f in (np.min, np.median, np.max))
    return smallest, median, largest


def _counts(words: list[str]) -> dict[str, int]:
    return dict(Counter(word for word in words if word).most_common())


def _bad_files(dataset: Dataset, facts: ImageFacts, split: str) -> list[BadFile]:
    return [BadFile(dataset.keys[i], reason, split) for i, reason in facts.reasons.items()]


def _named(leak: Leak, datasets: dict[str, Dataset]) -> dict[str, str]:
    return {
        "split": leak.split,
        "key": datasets[leak.split].keys[leak.id],
        "train_key": datasets["train"].keys[leak.train_id],
        "kind": leak.kind,
    }


def _mismatches(datasets: dict[str, Dataset], facts: dict[str, ImageFacts]) -> list[str]:
    wrong = [
        f"{key} is {format}"
        for split, dataset in datasets.items()
        for key, format in zip(dataset.keys, facts[split].formats)
        if (suffix := posixpath.splitext(key)[1].lower()) in _KNOWN_SUFFIXES
        and format in SUFFIX_OF
        and suffix not in SUFFIX_OF[format]
    ]
    return [f"Files whose name says another format: {shorten_list(wrong)}. They are read by content."] if wrong else []


_KNOWN_SUFFIXES = frozenset(suffix for suffixes in SUFFIX_OF.values() for suffix in suffixes)


def _warnings(found: Inspection, leaks: list[Leak]) -> list[str]:
    warnings = []
    if sentence := _leakage_sentence(leaks):
        warnings.append(sentence)
    if found.bad:
        warnings.append(f"Files that cannot be used: {len(found.bad):,}.")
    train = found.splits["train"]
    copies = sum(len(cluster) - 1 for cluster in train.exact_duplicates)
    if copies:
        warnings.append(f"Train images that are copies of others, byte for byte: {copies:,}.")
    if sum(n > 0 for n in train.classes.values()) == 1:
        warnings.append("There is one class only. A classifier needs two; `vitling pretrain` needs none.")
    if train.imbalance is not None and train.imbalance >= SHOWN:
        warnings.append(f"The largest class has {train.imbalance:.0f} times the images of the smallest.")
    return warnings
