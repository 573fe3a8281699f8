"""Temperature scaling: one temperature for all logits, so that probabilities match accuracy (Guo et al. 2017)."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from vitling.evaluation.metrics import check

LOWEST, HIGHEST = 0.05, 20.0
TOLERANCE = 1e-8  # of log T
PRIOR_STD = 0.25  # of log T; of 0.2 to 1 the best on 20 to 100 images in the simulation of test_calibration.py


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Find the T in [0.05, 20] with the lowest negative log likelihood of logits / T.

    A normal prior on log T shrinks T towards 1 if there are few images: fitted freely, T made the calibration error of
    runs with 36 held-out images worse. From 200 images on it has no visible effect. The likelihood is never lower than
    at T = 1.
    """
    from scipy.optimize import minimize_scalar

    check(logits, labels)
    logits = logits.double()

    def cost(log_t: float) -> float:
        return _negative_log_likelihood(logits / math.exp(log_t), labels) + (log_t / PRIOR_STD) ** 2 / 2

    bounds = (math.log(LOWEST), math.log(HIGHEST))
    best = float(minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": TOLERANCE}).x)
    return math.exp(best) if cost(best) < cost(0.0) else 1.0


def _negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    if labels.ndim == 2:
        return float(F.binary_cross_entropy_with_logits(logits, labels.double(), reduction="sum"))
    return float(F.cross_entropy(logits, labels, reduction="sum"))
