"""The logistic probe of CLIP (Radford et al. 2021, App. A.3) and EsViT (App. C.5): L-BFGS on frozen features.

C is one of 97 values from 1e-6 to 1e6, eight per decade, found by bisection: first 1e-6, 1e-4, ..., 1e6; then, four
times, the two points half as far from the best so far as in the last round. On equal scores the stronger penalty wins.
This tries at most 15 of the 97, each scored on validation; the best is fitted again on train and validation. The papers
call the strength lambda; here it is scikit-learn's C = 1 / lambda, over the same range.

Fits stop at a gradient of 1e-6. The papers used scikit-learn's 1e-4, which applied to the sum over images; since
scikit-learn 1.4 (pull request 26721) it applies to the mean, N times as loose. On features of unequal scale such fits
stop far from the minimum, at a point that depends on rounding. A weak penalty makes this worse, so the search chooses
too strong a penalty.

Two backends solve the same problem, with X the features and N images,

    mean over images of cross entropy(X w + b) + |w|^2 / (2 C N)

`lbfgs.minimise`, all C of a round at once, on the device of the features; and, as a reference, scikit-learn's
LogisticRegression, one C after the other. Two classes have one column and the binary cross entropy; several labels
per image are one such problem per label.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.errors import UserError
from vitling.evaluation.knn import check_features, exact_matmul
from vitling.evaluation.lbfgs import minimise

ITERATIONS, TOLERANCE = 1000, 1e-6
PER_DECADE, DECADES, FIRST = 8, 12, -6.0
COARSE = 2 * PER_DECADE  # steps between the first seven values
NEVER = -30.0  # logit of a label that no training image has; the negative of it for a label that all have
BLOCK = 1 << 25  # logits in memory at once
FAST_FLOAT64 = ((8, 0), (9, 0), (10, 0))  # compute capability of GPUs with fast float64 (A100, H100, B200)

Backend = Literal["torch", "sklearn"]
Scorer = Callable[[Tensor, Tensor], float]  # logits and labels -> higher is better


class LogisticFit(NamedTuple):
    """A fitted classifier: logits [N, classes] are features @ weight + bias."""

    weight: Tensor  # [D, classes] float64
    bias: Tensor  # [classes]
    iterations: int
    converged: bool

    def logits(self, features: Tensor) -> Tensor:
        return features.to(self.weight) @ self.weight + self.bias


@dataclass
class LogisticProbe:
    fit: LogisticFit
    C: float
    score: float  # on validation
    scores: dict[float, float]  # of every C tried
    iterations: dict[float, int]
    not_converged: list[float]


def fit_probe(
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    classes: int,
    score: Scorer,
    backend: Backend = "torch",
    on_progress: Callable[[int], None] = lambda done: None,
) -> LogisticProbe:
    """Choose C on `validation` and fit on both parts: features with labels, int [N] or bool [N, C] for several."""
    _check(*train)
    fits: dict[float, LogisticFit] = {}

    def evaluate(strengths: Sequence[float]) -> list[float]:
        new = fit_logistic(*train, classes, strengths, backend)
        fits.update(zip(strengths, new))
        on_progress(len(fits))
        return [score(one.logits(validation[0]), validation[1]) for one in new]

    best, scores = search_strength(evaluate)
    both = [torch.cat(parts) for parts in zip(train, validation)]
    (final,) = fit_logistic(both[0], both[1], classes, [best], backend)
    on_progress(len(fits) + 1)
    return LogisticProbe(
        final,
        best,
        scores[best],
        dict(sorted(scores.items())),
        {C: fits[C].iterations for C in sorted(fits)},
        [C for C in sorted(fits) if not (fits[C].converged and (final.converged or best != C))],
    )


def search_strength(evaluate: Callable[[Sequence[float]], Sequence[float]]) -> tuple[float, dict[float, float]]:
    """Find the best C; return it with the scores of all C tried. `evaluate` scores several C at once."""
    last = PER_DECADE * DECADES
    scores: dict[int, float] = {}

    def try_out(steps: Sequence[int]) -> int:
        new = [step for step in steps if 0 <= step <= last and step not in scores]
        if new:
            scores.update(zip(new, evaluate([grid_strength(step) for step in new])))
        return max(scores, key=lambda step: (scores[step], -step))

    best, width = try_out(range(0, last + 1, COARSE)), COARSE
    while width > 1:
        width //= 2
        best = try_out((best - width, best + width))
    return grid_strength(best), {grid_strength(step): value for step, value in scores.items()}


def grid_strength(step: int) -> float:
    """Return the C at a step of the grid."""
    return 10.0 ** (FIRST + step / PER_DECADE)


def fit_logistic(
    features: Tensor,
    labels: Tensor,
    classes: int,
    strengths: Sequence[float],
    backend: Backend = "torch",
    tolerance: float = TOLERANCE,
    dtype: torch.dtype | None = None,
) -> list[LogisticFit]:
    """Fit a classifier for each C. `dtype` of products with the features: by default float64 where it is fast."""
    _check(features, labels)
    solve = _solve_sklearn if backend == "sklearn" else _solve_torch
    if labels.ndim == 2:
        varied = (labels.any(dim=0) & ~labels.all(dim=0)).nonzero()[:, 0]
        solved = solve(features, labels[:, varied], strengths, tolerance, dtype)
        return [_expand_labels(one, labels, varied) for one in solved]
    there, numbers = labels.unique(return_inverse=True)
    if len(there) < 2:
        raise UserError("All training images are of one class; a classifier needs at least two.")
    targets = (numbers == 1)[:, None] if len(there) == 2 else numbers
    return [_expand_classes(one, there, classes) for one in solve(features, targets, strengths, tolerance, dtype)]


def _expand_classes(fit: LogisticFit, there: Tensor, classes: int) -> LogisticFit:
    """Add columns for classes without images, with a logit below all others; of two classes the first has logit 0."""
    weight = fit.weight.new_zeros(len(fit.weight), classes)
    bias = fit.bias.new_full((classes,), NEVER + float(fit.bias.min()))
    if len(there) == 2:
        weight[:, there[1:]], bias[there[0]], bias[there[1:]] = fit.weight, 0.0, fit.bias
    else:
        weight[:, there], bias[there] = fit.weight, fit.bias
    return fit._replace(weight=weight, bias=bias)


def _expand_labels(fit: LogisticFit, labels: Tensor, varied: Tensor) -> LogisticFit:
    """Add columns for labels that all training images have, or none."""
    weight = fit.weight.new_zeros(len(fit.weight), labels.shape[1])
    bias = torch.where(labels.all(dim=0), -NEVER, NEVER).to(fit.bias)
    weight[:, varied], bias[varied] = fit.weight, fit.bias
    return fit._replace(weight=weight, bias=bias)


def _solve_sklearn(
    features: Tensor, targets: Tensor, strengths: Sequence[float], tolerance: float, dtype: torch.dtype | None
) -> list[LogisticFit]:
    x = features.to("cpu", dtype or torch.float64).numpy()
    columns = [targets.cpu().numpy()] if targets.ndim == 1 else list(targets.cpu().numpy().T)
    return [_join_columns([_fit_sklearn(x, y, C, tolerance) for y in columns], features) for C in strengths]


def _fit_sklearn(x: np.ndarray, y: np.ndarray, C: float, tolerance: float) -> LogisticFit:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solver = LogisticRegression(C=C, max_iter=ITERATIONS, tol=tolerance).fit(x, y)
    iterations = int(solver.n_iter_.max())
    weight, bias = (torch.from_numpy(np.asarray(part, np.float64)) for part in (solver.coef_.T, solver.intercept_))
    return LogisticFit(weight, bias, iterations, iterations < ITERATIONS)


def _join_columns(fits: list[LogisticFit], features: Tensor) -> LogisticFit:
    """Join the columns of several problems, on the device of the features."""
    weight, bias = torch.cat([fit.weight for fit in fits], dim=1), torch.cat([fit.bias for fit in fits])
    on_device = weight.to(features.device), bias.to(features.device)
    return LogisticFit(*on_device, max(fit.iterations for fit in fits), all(fit.converged for fit in fits))


def _solve_torch(
    features: Tensor, targets: Tensor, strengths: Sequence[float], tolerance: float, dtype: torch.dtype | None
) -> list[LogisticFit]:
    dtype = dtype or choose_dtype(features.device)
    problems = Problems(features.to(dtype), targets, strengths)
    noise = 0.0 if dtype == torch.float64 else 4 * torch.finfo(dtype).eps
    with exact_matmul():
        found = minimise(problems, problems.start(), tolerance, ITERATIONS, noise)
    count = len(strengths)
    points = found.points.view(count, problems.each, len(features[0]) + 1, problems.columns)
    points = points.transpose(1, 2).flatten(2)  # [C, D + 1, columns of all its problems]
    iterations, converged = (part.reshape(count, -1) for part in (found.iterations, found.converged))
    return [
        LogisticFit(points[i, :-1], points[i, -1], int(iterations[i].max()), bool(converged[i].all()))
        for i in range(count)
    ]


def choose_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices with slow float64."""
    slow = device.type != "cpu" and (
        device.type != "cuda" or torch.cuda.get_device_capability(device) not in FAST_FLOAT64
    )
    return torch.float32 if slow else torch.float64


class Problems:
    """The objective of `minimise`: values and gradients of some of the problems at the given points.

    There is one problem for each C and, if the targets are bool [N, K], for each of their K columns. The parameters of
    a problem are [D + 1, columns], the bias last.
    """

    def __init__(self, features: Tensor, targets: Tensor, strengths: Sequence[float]):
        self.features, self.targets = features, targets
        self.softmax = targets.ndim == 1
        self.each = 1 if self.softmax else targets.shape[1]  # problems per C
        self.columns = int(targets.max()) + 1 if self.softmax else 1
        penalty = 1 / (torch.tensor(strengths, dtype=torch.float64, device=features.device) * len(features))
        self.penalty = penalty.repeat_interleave(self.each)

    def start(self) -> Tensor:
        return self.penalty.new_zeros(len(self.penalty), (self.features.shape[1] + 1) * self.columns)

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        points = points.view(len(points), -1, self.columns)
        weight, bias = points[:, :-1], points[:, -1]
        side_by_side = weight.transpose(0, 1).flatten(1).to(self.features)  # [D, problems * columns]
        shift = bias.flatten().to(self.features)
        value, gradient = torch.zeros_like(self.penalty[rows]), torch.zeros_like(points)
        step = max(1, BLOCK // max(1, side_by_side.shape[1]))
        for start in range(0, len(self.features), step):
            part = slice(start, start + step)
            logits = torch.addmm(shift, self.features[part], side_by_side)
            losses, errors = self._errors(logits.view(len(logits), len(points), -1), part, rows)
            value += losses
            errors = errors.flatten(1)
            product = self.features[part].T @ errors
            gradient[:, :-1] += product.unflatten(1, (len(points), -1)).transpose(0, 1)
            gradient[:, -1] += errors.sum(dim=0, dtype=torch.float64).view(len(points), -1)
        penalty = self.penalty[rows]
        value = value / len(self.features) + penalty / 2 * weight.square().sum(dim=(1, 2))
        gradient /= len(self.features)
        gradient[:, :-1] += penalty[:, None, None] * weight
        return value, gradient.flatten(1)

    def _errors(self, logits: Tensor, part: slice, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Compute losses [problems], summed over the images, and their gradients with respect to the logits."""
        if self.softmax:
            target = self.targets[part][:, None, None].expand(-1, logits.shape[1], 1)
            logs = logits.log_softmax(dim=2)
            losses = -logs.gather(2, target).sum(dim=(0, 2), dtype=torch.float64)
            errors = logs.exp_()
            return losses, errors.scatter_add_(2, target, errors.new_full((), -1.0).expand(target.shape))
        target = self.targets[part][:, rows % self.each].to(logits)[:, :, None]
        losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(
            dim=(0, 2), dtype=torch.float64
        )
        return losses, logits.sigmoid() - target


def _check(features: Tensor, labels: Tensor) -> None:
    check_features(features, labels)
    if labels.ndim == 2 and not (labels.any(dim=0) & ~labels.all(dim=0)).any():
        raise UserError("Every label is on all training images or on none; there is nothing to learn.")
