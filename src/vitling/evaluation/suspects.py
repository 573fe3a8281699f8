"""Suspects: images whose label is probably wrong, as rows, as a CSV to edit and as a sheet of pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from textwrap import shorten
from typing import Literal

import numpy as np

from vitling.data.sources.corrections import DROP
from vitling.data.store import Store
from vitling.evaluation.confident import LOW_AGREEMENT, LabelCheck, score_labels
from vitling.evaluation.pictures import save_picture
from vitling.files import atomic_write, make_csv, write_file
from vitling.records import Count, Finite
from vitling.views.sheet import draw_original

FOLDER, FILE, SHEET, SUMMARY = "doctor", "suspects.csv", "suspects.png", "labels.json"
PROBABILITIES = "probabilities.npz"
Fill = Literal["given", "suggested", "drop"]
_COLUMNS, _WORD = 6, 24  # pictures in a row of the sheet; letters of a class name above them


@dataclass(frozen=True)
class Suspect:
    """An image whose label is probably wrong."""

    path: str
    split: str  # train or val of the data
    image: int  # id in the checked images
    given: str
    suggested: str
    given_probability: Finite
    suggested_probability: Finite

    @property
    def score(self) -> float:
        """Lower is more suspicious; -1 means certainly wrong."""
        return score_labels(self.given_probability, self.suggested_probability)


@dataclass(frozen=True)
class Diagnosis:
    """Findings of a check of labels, as in labels.json."""

    source: str
    images: Count
    classes: Count
    unchecked: Count  # images that every classifier was trained on, because their class has no others
    method: str
    agreement: Finite  # fraction of the checked labels that are the most probable class
    expected_wrong: Finite  # by the confident joint
    suspects: list[Suspect]
    csv: str
    sheet: str

    @property
    def is_weak(self) -> bool:
        """Return whether the classifiers are too weak to tell wrong labels from difficult images."""
        return self.agreement < LOW_AGREEMENT


def list_suspects(
    check: LabelCheck,
    probabilities: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    keys: Sequence[str],
    splits: Sequence[str],
) -> list[Suspect]:
    """List the suspects, the most suspicious first."""
    return [
        Suspect(
            keys[i],
            splits[i],
            int(i),
            names[labels[i]],
            names[check.suggested[i]],
            float(probabilities[i, labels[i]]),
            float(probabilities[i, check.suggested[i]]),
        )
        for i in check.rank()
    ]


def write_suspects(path: str | PathLike[str], suspects: Sequence[Suspect], fill: Fill = "given") -> None:
    """Write the CSV. Its column `label` is for the user to edit; --labels reads it back."""
    heading = ("path", "split", "label", "given", "suggested", "given_probability", "suggested_probability", "score")
    rows: list[Sequence[str]] = [heading]
    for one in suspects:
        label = {"given": one.given, "suggested": one.suggested, "drop": DROP}[fill]
        numbers = (one.given_probability, one.suggested_probability, one.score)
        rows.append([one.path, one.split, label, one.given, one.suggested, *(f"{n:.4f}" for n in numbers)])
    write_file(path, make_csv(rows))


def write_probabilities(
    path: str | PathLike[str], keys: Sequence[str], names: Sequence[str], labels: np.ndarray, probabilities: np.ndarray
) -> None:
    """Write the out-of-fold probabilities of all checked images, for other tools."""
    paths, classes, rounded = np.array(keys), np.array(names), probabilities.astype(np.float32)
    with atomic_write(path) as file:
        np.savez_compressed(file, paths=paths, classes=classes, labels=labels, probabilities=rounded)


def draw_suspects(store: Store, suspects: Sequence[Suspect], out: Path) -> None:
    """Draw the pictures with the given label, and the suggested one with its probability, above each."""
    from matplotlib.figure import Figure

    rows = math.ceil(len(suspects) / _COLUMNS)
    figure = Figure(figsize=(1.75 * _COLUMNS, 2.2 * rows), dpi=100, layout="constrained")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for axis in axes:
        axis.axis("off")
    for axis, one in zip(axes, suspects):
        axis.imshow(draw_original(store, one.image))
        given, suggested = (shorten(name, _WORD, placeholder="...") for name in (one.given, one.suggested))
        title = f"labelled {given}\n{suggested}? {one.suggested_probability:.0%}"
        axis.set_title(title, fontsize=8, parse_math=False)
    save_picture(figure, out)
