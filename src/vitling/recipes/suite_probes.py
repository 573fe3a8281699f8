"""The probes of the suite: what a frozen network's features of a data set are worth, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitling.evaluation import linear_probe
from vitling.evaluation.config import KS, LinearConfig
from vitling.evaluation.knn import TEMPERATURE, knn_votes
from vitling.evaluation.logistic import probe as fit_logistic
from vitling.evaluation.paper_metrics import Scorer

OF_BLOCKS = {"linear"}  # probes that see the last blocks


class Features(NamedTuple):
    """Of a split: pooled features [N, D], those of the last blocks side by side, and labels int [N] or bool [N, C]."""

    pooled: Tensor
    blocks: Tensor
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
    """The nearest images vote, as in DINO's and EsViT's evaluation; of their ks the best on val."""
    train, val, both = bench.train, bench.val, bench.both
    ks = [k for k in KS if k <= len(train.labels)] or [len(train.labels)]
    tried = knn_votes(train.pooled, train.labels, val.pooled, ks, bench.classes)
    scores = {k: bench.score(tried[k], val.labels) for k in ks}
    k = max(ks, key=lambda k: (scores[k], -k))
    votes = knn_votes(both.pooled, both.labels, bench.test.pooled, (k,), bench.classes)[k]
    return Answers(votes, {"k": k, "validation": scores[k], "temperature": TEMPERATURE})


def logistic(bench: Bench) -> Answers:
    """CLIP's and EsViT's: L-BFGS, the strength of its penalty chosen on val by the data set's metric."""
    train, val = ((part.pooled, part.labels) for part in (bench.train, bench.val))
    found = fit_logistic(train, val, bench.classes, bench.score)
    settings = {"C": found.C, "validation": found.score, "backend": found.backend, "not_converged": found.not_converged}
    return Answers(found.fit.logits(bench.test.pooled), settings)


def linear(bench: Bench) -> Answers:
    """DINO's and EsViT's: SGD on the features of the last blocks, the learning rate chosen on val."""
    told = LinearConfig()
    train, both = (linear_probe.Cached(part.blocks, part.labels) for part in (bench.train, bench.both))
    val = bench.val.blocks, bench.val.labels
    found = linear_probe.probe(train, val, both, bench.classes, bench.score, told.lr, told.epochs, told.batch)
    settings = {"lr": found.rate, "validation": found.score, "epochs": told.epochs, "batch": told.batch}
    return Answers(found.logits(bench.test.blocks), {**settings, "width": bench.test.blocks.shape[1]})


PROBES: dict[str, Probe] = {"knn": knn, "linear": linear, "logistic": logistic}
