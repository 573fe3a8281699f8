"""The probes of the suite: what a frozen network's features of a data set are worth, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitling.evaluation.knn import TEMPERATURE, knn_votes
from vitling.evaluation.logistic import probe as fit_logistic_probe
from vitling.evaluation.paper_metrics import Scorer

K = 20


class Features(NamedTuple):
    """Of a split: features [N, D], and labels int [N] or bool [N, C]."""

    x: Tensor
    labels: Tensor


@dataclass
class Bench:
    """A data set as a frozen network sees it. Choices are made on val; the classifier is then fitted on both."""

    train: Features
    val: Features
    test: Features
    classes: int
    score: Scorer  # of the data set

    @property
    def both(self) -> Features:
        return Features(*(torch.cat(parts) for parts in zip(self.train, self.val)))


@dataclass
class Answers:
    """Scores [N, C] of the test images, and what was set or chosen on the way, as JSON can hold it."""

    scores: Tensor
    settings: dict[str, Any] = field(default_factory=dict)


Probe = Callable[[Bench], Answers]


def knn(bench: Bench) -> Answers:
    """The 20 nearest images vote, as in DINO's and EsViT's evaluation; nothing is chosen."""
    bank = bench.both
    k = min(K, len(bank.x))
    votes = knn_votes(bank.x, bank.labels, bench.test.x, (k,), bench.classes)[k]
    return Answers(votes, {"k": k, "temperature": TEMPERATURE})


def logistic(bench: Bench) -> Answers:
    """CLIP's and EsViT's: L-BFGS, the strength of its penalty chosen on val by the data set's metric."""
    found = fit_logistic_probe(bench.train, bench.val, bench.classes, bench.score)
    settings = {"C": found.C, "validation": found.score, "backend": found.backend, "not_converged": found.not_converged}
    return Answers(found.fit.logits(bench.test.x), settings)


PROBES: dict[str, Probe] = {"knn": knn, "logistic": logistic}
