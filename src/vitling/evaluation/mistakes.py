"""mistakes.csv: the images that a model gets wrong, by file name, the most confident mistakes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from os import PathLike

import torch
from torch import Tensor

from vitling.files import make_csv, write_file

FILE = "mistakes.csv"


@dataclass(frozen=True)
class Mistake:
    """One row; several labels of an image are joined by |."""

    file: str
    split: str
    label: str
    predicted: str
    probability: str  # of the prediction; for several labels, of the wrongest class
    label_probability: str


def find_mistakes(
    logits: Tensor, labels: Tensor, files: Sequence[str], class_names: Sequence[str], temperature: float, split: str
) -> list[Mistake]:
    """List the wrong predictions for images [N, C] in the order of their confidence."""
    scaled = logits.double() / temperature
    if labels.ndim == 2:
        return list(_find_multi_label(scaled.sigmoid(), labels, files, class_names, split))
    confidence, predicted = scaled.softmax(dim=1).max(dim=1)
    wrong = torch.nonzero(predicted != labels)[:, 0]
    order = wrong[confidence[wrong].argsort(descending=True)].tolist()
    own = scaled.softmax(dim=1).gather(1, labels[:, None])[:, 0]
    return [
        Mistake(
            files[i],
            split,
            class_names[int(labels[i])],
            class_names[int(predicted[i])],
            f"{confidence[i]:.4f}",
            f"{own[i]:.4f}",
        )
        for i in order
    ]


def _find_multi_label(
    probabilities: Tensor, labels: Tensor, files: Sequence[str], class_names: Sequence[str], split: str
) -> Iterator[Mistake]:
    """Yield the images with a label too many or too few; the error of a class is |probability - label|."""
    predicted = probabilities > 0.5
    worst = (probabilities - labels.double()).abs().max(dim=1)
    for i in worst.values.argsort(descending=True).tolist():
        if not torch.equal(predicted[i], labels[i]):
            label, given = ("|".join(class_names[c] for c in torch.nonzero(row)) for row in (labels[i], predicted[i]))
            yield Mistake(files[i], split, label, given, f"{probabilities[i, worst.indices[i]]:.4f}", "")


def write_mistakes(path: str | PathLike[str], found: Sequence[Mistake]) -> None:
    """Write the rows as CSV, with a heading even if there are none."""
    write_file(path, make_csv([[f.name for f in fields(Mistake)], *map(astuple, found)]))
