"""Out-of-fold probabilities: each image is classified by a model that was not trained on its label."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.errors import UserError
from vitling.evaluation.knn import knn_votes
from vitling.evaluation.logistic import fit_logistic, search_strength

FOLDS = 10  # of the light classifier
K = 10  # neighbours that vote
_TOLERANCE = 1e-4  # of the gradient; smaller values no longer change the ranking of suspects


def predict_out_of_fold(
    features: Tensor,
    labels: Tensor,
    classes: int,
    folds: np.ndarray,
    on_progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Compute probabilities [N, C] from frozen features, fold by fold: the mean of logistic regression and k-NN.

    The two err on different images. C is chosen once, by the log loss on the first fold. Rows of images in no fold (-1)
    are NaN.
    """
    present = np.unique(folds[folds >= 0])
    if len(present) < 2:
        raise UserError("Too few images per class to check labels: each class needs at least two images.")
    given, features = features, standardise(features)
    everything = torch.from_numpy(folds).to(features.device)

    def fit(fold: int, strengths: Sequence[float]) -> list[Tensor]:
        others = everything != fold
        fits = fit_logistic(features[others], labels[others], classes, strengths, tolerance=_TOLERANCE)
        return [one.logits(features[~others]) for one in fits]

    def score(strengths: Sequence[float]) -> list[float]:
        held = labels[everything == int(present[0])]
        return [-float(F.cross_entropy(logits, held)) for logits in fit(int(present[0]), strengths)]

    strength, _ = search_strength(score)
    found = np.full((len(features), classes), np.nan)
    for done, fold in enumerate(present, start=1):
        (logits,) = fit(int(fold), [strength])
        held, k = everything == int(fold), min(K, int((folds != fold).sum()))
        votes = knn_votes(given[~held], labels[~held], given[held], [k], classes)[k]
        found[folds == fold] = ((logits.softmax(dim=1) + votes) / 2).cpu().numpy()
        on_progress(done)
    return found


def standardise(features: Tensor) -> Tensor:
    """Scale every feature to mean 0 and standard deviation 1, which L-BFGS needs to converge fast."""
    centred = features.double() - features.double().mean(dim=0)
    return centred / centred.std(dim=0).clamp_min(1e-6 * float(centred.std()) + 1e-12)
