"""Confident learning: find wrong labels from out-of-fold probabilities (Northcutt, Jiang and Chuang, 2021). No torch.

An image counts for a class if its probability reaches the class's threshold t_j, the mean probability of the images
with that label. The confident joint counts images by given label and by the class they confidently belong to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Number = TypeVar("Number", float, np.ndarray)

LOW_AGREEMENT = 0.8  # digits with 5 % flips: at 0.75, 30 % of the suspects were wrong labels; at 0.93, 90 %
GIVEN_WEIGHT = 4.0  # in `score_labels`; chosen on digits by benchmarks/suspect_scores.py


@dataclass(frozen=True)
class LabelCheck:
    """Findings of confident learning in N images with C classes."""

    confident: np.ndarray  # int [N]: the class that an image confidently belongs to; -1 for none
    joint: np.ndarray  # float [K, K], of the K classes with images: images by given label and estimated true label
    suggested: np.ndarray  # int [N]: the most probable class other than the given one
    score: np.ndarray  # float [N]: lower is more suspicious
    is_suspect: np.ndarray  # bool [N]

    @property
    def expected_wrong(self) -> float:
        """Estimated number of images with a wrong label."""
        return float(self.joint.sum() - np.trace(self.joint))

    def rank(self) -> np.ndarray:
        """Return the suspects' ids, the most suspicious first."""
        ids = np.flatnonzero(self.is_suspect)
        return ids[np.argsort(self.score[ids], kind="stable")]


def check_labels(probabilities: np.ndarray, labels: np.ndarray) -> LabelCheck:
    """Find suspects among images with out-of-fold probabilities [N, C] and given labels [N].

    The joint estimates how many labels are wrong, and the score which ones: suspects are that many images, by score,
    if another class is more probable than the given one. The images off the diagonal of the confident joint are fewer:
    on digits with 5 % of the labels flipped, they miss a quarter of the flips instead of a tenth.
    """
    n, classes = probabilities.shape
    counts = np.bincount(labels, minlength=classes)
    own = probabilities[np.arange(n), labels]
    thresholds = compute_thresholds(own, labels, classes)
    above = probabilities >= thresholds
    best = np.where(above, probabilities, -1.0).argmax(axis=1)
    confident = np.where(above.any(axis=1), best, -1)
    others = probabilities.copy()
    others[np.arange(n), labels] = -1.0
    suggested = others.argmax(axis=1)
    other = others.max(axis=1)
    score = score_labels(own, other)
    sure = confident >= 0
    used = np.flatnonzero(counts)  # an image is confidently of one of these
    joint = np.zeros((len(used), len(used)))
    np.add.at(joint, (np.searchsorted(used, labels[sure]), np.searchsorted(used, confident[sure])), 1.0)
    joint = calibrate_joint(joint, counts[used])
    expected = round(float(joint.sum() - np.trace(joint)))
    is_suspect = np.zeros(n, bool)
    order = np.argsort(np.where(own < other, score, np.inf), kind="stable")
    is_suspect[order[:expected]] = True
    return LabelCheck(confident, joint, suggested, score, is_suspect & (own < other))


def score_labels(given: Number, other: Number, weight: float = GIVEN_WEIGHT) -> Number:
    """Score labels by their probability and that of the most probable other class, from -1 (certainly wrong) up.

    With weight 1 this is the normalised margin, which has more difficult images with a right label among the first. Our
    explanation: a classifier that is confidently wrong still gives the right label some probability, and a wrong label
    hardly any.
    """
    return weight * given - other


def compute_thresholds(own: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Compute t_j, Eq. 2: the mean probability `own` of the given label over the images with label j.

    No image is confidently of a class without images: its threshold is infinite.
    """
    counts = np.bincount(labels, minlength=classes)
    sums = np.bincount(labels, weights=own, minlength=classes)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)


def calibrate_joint(confident: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Scale the rows of the confident joint to the numbers of given labels, Eq. 3 (times N).

    A class without any confident image keeps its labels.
    """
    confident = confident + np.diag(confident.sum(axis=1) == 0)
    return confident / confident.sum(axis=1, keepdims=True) * counts[:, None]
