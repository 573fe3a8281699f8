"""L-BFGS for many problems at once, each with its own step, memory and end.

Every problem takes the steps that SciPy's L-BFGS-B takes without bounds, which is what scikit-learn calls: ten pairs of
corrections, the line search of Moré and Thuente (1994) with its constants, the same tests for the end. So not only the
minimum is the same, but also where a search that is cut off stands.

Parameters and pairs stay on the device. A round evaluates all problems together, each at its own trial point; a few
numbers a problem then go to the host, which decides. Products of vectors are taken with all pairs at once, and the
direction is a combination of them (Byrd, Nocedal and Schnabel 1994, Eq. 3.1), so a round is a handful of kernels
whatever the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitling.evaluation.line_search import LineSearch

PAIRS = 10
EPSILON = float(np.finfo(np.float64).eps)
MOST_TRIALS = 50  # of a line search, as scikit-learn has it

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # points [P, F] of problems [P] -> values, gradients


@dataclass
class Minima:
    """`converged`: the largest entry of the gradient is at most the tolerance, or the value falls no more."""

    points: Tensor  # [P, F] float64
    iterations: np.ndarray
    converged: np.ndarray


@torch.no_grad()
def minimise(
    objective: Objective, start: Tensor, tolerance: float = 1e-4, most: int = 1000, noise: float = 0.0
) -> Minima:
    """From `start` [P, F] float64. `noise`: the relative error of values where they are not computed in float64."""
    found = Minima(start.clone(), np.zeros(len(start), int), np.zeros(len(start), bool))
    work = _Work(objective, start, tolerance, most, noise)
    work.leave(found, work.begin())
    while len(work.rows):
        work.leave(found, work.round())
    return found


class _Work:
    """The problems that have not ended: row i of everything belongs to problem `rows[i]`."""

    def __init__(self, objective: Objective, start: Tensor, tolerance: float, most: int, noise: float):
        self.objective, self.tolerance, self.most, self.noise = objective, tolerance, most, noise
        count, size = start.shape
        self.rows = np.arange(count)
        self.problems = torch.arange(count, device=start.device)  # the same, on the device
        self.iterations, self.converged = np.zeros(count, int), np.zeros(count, bool)
        self.point, self.gradient, self.direction = start.clone(), start, start
        self.pairs = start.new_zeros(count, 2 * PAIRS, size)  # steps, then changes of the gradient; rings
        self.gram = np.zeros((count, 2 * PAIRS, 2 * PAIRS))  # their products with each other
        self.taken = np.zeros(count, int)  # pairs so far, without those that were forgotten
        self.value, self.slope = np.zeros(count), np.zeros(count)

    def begin(self) -> np.ndarray:
        """The first gradient. Gives who is at a minimum already."""
        value, self.gradient = self.objective(self.point, self.problems)
        self.direction = -self.gradient
        self.value, largest = torch.stack([value.double(), self.gradient.abs().amax(dim=1)]).cpu().numpy()
        self.slope = -self.gradient.square().sum(dim=1).cpu().numpy()
        self.converged = largest <= self.tolerance
        length = np.sqrt(-self.slope)
        first = np.divide(1.0, length, out=np.ones_like(length), where=length > 0)
        self.search = LineSearch(self.value, self.slope, first, self.noise)
        return self.converged

    def round(self) -> np.ndarray:
        """One trial of every problem. Gives who has ended."""
        step = self._on_device(self.search.step)
        trial = torch.addcmul(self.point, self.direction, step[:, None])
        value, gradient = self.objective(trial, self.problems)
        slope = (gradient * self.direction).sum(dim=1)
        values, slopes, largest = torch.stack([value.double(), slope, gradient.abs().amax(dim=1)]).cpu().numpy()
        arrived = self.search.advance(values, slopes)
        lost = ~arrived & (self.search.trials >= MOST_TRIALS)
        ended = np.zeros(len(self.rows), bool)
        if arrived.any():
            ended |= self._accept(np.flatnonzero(arrived), step, trial, gradient, values, slopes, largest)
        if lost.any():
            ended |= self._start_again(np.flatnonzero(lost))
        return ended

    def leave(self, found: Minima, ended: np.ndarray) -> None:
        """Those that have ended take no more work."""
        if not ended.any():
            return
        gone, rows = np.flatnonzero(ended), self.rows[ended]
        found.points[self._on_device(rows)] = self.point[self._on_device(gone)]
        found.iterations[rows], found.converged[rows] = self.iterations[gone], self.converged[gone]
        stay = np.flatnonzero(~ended)
        on_device = self._on_device(stay)
        for name in ("problems", "point", "gradient", "direction", "pairs"):
            setattr(self, name, getattr(self, name)[on_device])
        for name in ("rows", "iterations", "converged", "gram", "taken", "value", "slope"):
            setattr(self, name, getattr(self, name)[stay])
        self.search.keep(stay)

    def _accept(
        self,
        at: np.ndarray,
        step: Tensor,
        trial: Tensor,
        gradient: Tensor,
        values: np.ndarray,
        slopes: np.ndarray,
        largest: np.ndarray,
    ) -> np.ndarray:
        """Steps there, and new directions from there."""
        before, old_slope = self.value[at], self.slope[at]
        self.iterations[at] += 1
        scale = np.maximum(np.maximum(np.abs(before), np.abs(values[at])), 1.0)
        self.converged[at] = (largest[at] <= self.tolerance) | (before - values[at] <= 64 * EPSILON * scale)
        ended = np.zeros(len(self.rows), bool)
        ended[at] = self.converged[at] | (self.iterations[at] >= self.most)

        bent = slopes[at] - old_slope > EPSILON * -old_slope  # else the curvature is not positive
        self._remember(at[bent], step, gradient)
        rows = self._rows(at)
        self.point[rows], self.value[at] = trial[rows], values[at]
        self.gradient[rows] = gradient[rows]
        going_on = at[~ended[at]]
        if len(going_on):
            self._turn(going_on)
        return ended

    def _remember(self, at: np.ndarray, step: Tensor, gradient: Tensor) -> None:
        """The pairs of those that have one to give."""
        if not len(at):
            return
        rows, row, place = self._rows(at), self._on_device(at), self._on_device(self.taken[at] % PAIRS)
        self.pairs[row, place] = self.direction[rows] * step[rows][:, None]
        self.pairs[row, place + PAIRS] = gradient[rows] - self.gradient[rows]
        self.taken[at] += 1

    def _turn(self, at: np.ndarray) -> None:
        """New directions and the line searches along them."""
        rows = self._rows(at)
        gradient, pairs = self.gradient[rows], self.pairs[rows]
        along, square = self._products(at, pairs, gradient)
        share, scale = combination(self.gram[at], along, self.taken[at])
        weights = self._on_device(np.concatenate([share, scale[:, None]], axis=1))
        by_pairs = torch.bmm(weights[:, None, :-1], pairs)[:, 0]
        self.direction[rows] = -torch.addcmul(by_pairs, gradient, weights[:, -1:])
        self.slope[at] = -(share * along).sum(axis=1) - scale * square
        self.search.restart(at, self.value[at], self.slope[at], np.ones(len(at)))
        if (uphill := at[self.slope[at] >= 0]).size:  # rounding has spoilt the pairs
            self._forget(uphill)

    def _products(self, at: np.ndarray, pairs: Tensor, gradient: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Of the gradient with the pairs [A, 2 PAIRS] and with itself [A]; those of the newest pair go into `gram`."""
        newest = (self.taken[at] - 1) % PAIRS
        each, place = torch.arange(len(at), device=pairs.device), self._on_device(newest)
        vectors = pairs[each, place], pairs[each, place + PAIRS], gradient
        products = [_with_each(pairs, vector).flatten() for vector in vectors]
        on_host = torch.cat([*products, gradient.square().sum(dim=1)]).cpu().numpy()
        moved, changed, along = on_host[: -len(at)].reshape(3, len(at), 2 * PAIRS)
        for product, index in ((moved, newest), (changed, newest + PAIRS)):
            self.gram[at, index] = product
            self.gram[at, :, index] = product
        return along, on_host[-len(at) :]

    def _start_again(self, at: np.ndarray) -> np.ndarray:
        """A line search that found nothing: once more down the gradient, or where that was it, the end."""
        ended = np.zeros(len(self.rows), bool)
        ended[at[self.taken[at] == 0]] = True
        if (again := at[self.taken[at] > 0]).size:
            self._forget(again)
        return ended

    def _forget(self, at: np.ndarray) -> None:
        rows = self._rows(at)
        self.taken[at], self.gram[at], self.pairs[rows] = 0, 0.0, 0.0
        self.direction[rows] = -self.gradient[rows]
        self.slope[at] = -self.gradient[rows].square().sum(dim=1).cpu().numpy()
        self.search.restart(at, self.value[at], self.slope[at], np.ones(len(at)))

    def _rows(self, at: np.ndarray) -> Any:
        """An index of the device's tensors; for everyone one that copies nothing."""
        return slice(None) if len(at) == len(self.rows) else self._on_device(at)

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.point.device)


def _with_each(pairs: Tensor, vector: Tensor) -> Tensor:
    """[P, 2 PAIRS] products. As a sum, because a matrix product so thin and long keeps a GPU waiting."""
    return (pairs * vector[:, None]).sum(dim=2)


def combination(gram: np.ndarray, along: np.ndarray, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """H g = scale * g + share @ pairs: the weights of the pairs [P, 2 PAIRS] and of the gradient [P].

    Eq. 3.1 of Byrd, Nocedal and Schnabel with steps S, changes Y, R the upper triangle of SᵀY (older pairs first), D
    its diagonal: H g = γ g + S R⁻ᵀ ((D + γ YᵀY) p − γ Yᵀg) − γ Y p, where p = R⁻¹ Sᵀg. Places without a pair are rows
    of the identity, so that they give nothing.
    """
    count = len(gram)
    used = np.minimum(taken, PAIRS)
    age = np.arange(PAIRS)[None]
    order = np.where(used[:, None] == PAIRS, (taken[:, None] + age) % PAIRS, age)  # oldest first
    there = age < used[:, None]
    row = np.arange(count)[:, None]
    blocks = [
        gram[row[:, :, None], order[:, :, None] + a, order[:, None, :] + b] for a, b in ((0, PAIRS), (PAIRS, PAIRS))
    ]
    both = there[:, :, None] & there[:, None, :]
    s_y, y_y = (np.where(both, block, 0.0) for block in blocks)
    s_g, y_g = (np.where(there, along[row, order + a], 0.0) for a in (0, PAIRS))
    upper = np.triu(s_y) + np.eye(PAIRS) * ~there[:, :, None]
    newest = np.maximum(used - 1, 0)
    last = np.arange(count), newest, newest
    scale = np.divide(s_y[last], y_y[last], out=np.ones(count), where=used > 0)
    p = np.linalg.solve(upper, s_g[:, :, None])
    diagonal = np.diagonal(s_y, axis1=1, axis2=2)[:, :, None]
    inner = diagonal * p + scale[:, None, None] * (y_y @ p - y_g[:, :, None])
    of_steps = np.linalg.solve(upper.transpose(0, 2, 1), inner)[:, :, 0]
    share = np.zeros((count, 2 * PAIRS))
    share[row, order] = np.where(there, of_steps, 0.0)
    share[row, order + PAIRS] = np.where(there, -scale[:, None] * p[:, :, 0], 0.0)
    return share, scale
