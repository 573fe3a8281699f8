"""L-BFGS for many problems at once, each with its own step, memory and convergence.

Every problem takes the same steps as in SciPy's L-BFGS-B without bounds, which scikit-learn uses: ten correction pairs,
the line search of Moré and Thuente (1994) with the same constants, the same convergence tests. So even a fit that stops
at the iteration limit is the same.

Parameters and pairs stay on the device. A round evaluates all problems together, each at its own trial point; a few
numbers per problem go to the host, which decides. The direction is a linear combination of the pairs (Byrd, Nocedal and
Schnabel 1994, Eq. 3.1), so a round takes a handful of kernels whatever the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitling.evaluation.line_search import LineSearch

PAIRS = 10  # of steps and gradient changes; SciPy's default
EPSILON = float(np.finfo(np.float64).eps)
MAX_TRIALS = 50  # per line search, as in scikit-learn

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # points [P, F] of problems [P] -> values, gradients


@dataclass
class Minima:
    """Results of all problems; `converged`: the gradient is within the tolerance, or the value no longer decreases."""

    points: Tensor  # [P, F] float64
    iterations: np.ndarray
    converged: np.ndarray


@torch.no_grad()
def minimise(
    objective: Objective, start: Tensor, tolerance: float = 1e-4, max_iterations: int = 1000, noise: float = 0.0
) -> Minima:
    """Minimise from `start` [P, F] float64. `noise`: relative error of values not computed in float64."""
    found = Minima(start.clone(), np.zeros(len(start), int), np.zeros(len(start), bool))
    work = _Problems(objective, start, tolerance, max_iterations, noise)
    work.retire(found, work.begin())
    while len(work.rows):
        work.retire(found, work.step_all())
    return found


class _Problems:
    """The problems that are still active: row i of everything belongs to problem `rows[i]`."""

    def __init__(self, objective: Objective, start: Tensor, tolerance: float, max_iterations: int, noise: float):
        self.objective, self.tolerance, self.max_iterations, self.noise = objective, tolerance, max_iterations, noise
        count, size = start.shape
        self.rows = np.arange(count)
        self.problems = torch.arange(count, device=start.device)  # `rows` on the device
        self.iterations, self.converged = np.zeros(count, int), np.zeros(count, bool)
        self.point, self.gradient, self.direction = start.clone(), start, start
        self.pairs = start.new_zeros(count, 2 * PAIRS, size)  # steps, then gradient changes; ring buffers
        self.gram = np.zeros((count, 2 * PAIRS, 2 * PAIRS))  # dot products of the pairs
        self.pair_count = np.zeros(count, int)  # pairs stored since the last reset
        self.value, self.slope = np.zeros(count), np.zeros(count)

    def begin(self) -> np.ndarray:
        """Compute the first gradients; return which problems start at a minimum."""
        value, self.gradient = self.objective(self.point, self.problems)
        self.direction = -self.gradient
        self.value, largest = torch.stack([value.double(), self.gradient.abs().amax(dim=1)]).cpu().numpy()
        self.slope = -self.gradient.square().sum(dim=1).cpu().numpy()
        self.converged = largest <= self.tolerance
        length = np.sqrt(-self.slope)
        first = np.divide(1.0, length, out=np.ones_like(length), where=length > 0)
        self.search = LineSearch(self.value, self.slope, first, self.noise)
        return self.converged

    def step_all(self) -> np.ndarray:
        """Evaluate one trial of every problem; return which have ended."""
        step = self._on_device(self.search.step)
        trial = torch.addcmul(self.point, self.direction, step[:, None])
        value, gradient = self.objective(trial, self.problems)
        slope = (gradient * self.direction).sum(dim=1)
        values, slopes, largest = torch.stack([value.double(), slope, gradient.abs().amax(dim=1)]).cpu().numpy()
        arrived = self.search.advance(values, slopes)
        failed = ~arrived & (self.search.trials >= MAX_TRIALS)
        ended = np.zeros(len(self.rows), bool)
        if arrived.any():
            ended |= self._accept(np.flatnonzero(arrived), step, trial, gradient, values, slopes, largest)
        if failed.any():
            ended |= self._restart(np.flatnonzero(failed))
        return ended

    def retire(self, found: Minima, ended: np.ndarray) -> None:
        """Record the problems that have ended and drop them."""
        if not ended.any():
            return
        done, rows = np.flatnonzero(ended), self.rows[ended]
        found.points[self._on_device(rows)] = self.point[self._on_device(done)]
        found.iterations[rows], found.converged[rows] = self.iterations[done], self.converged[done]
        stay = np.flatnonzero(~ended)
        on_device = self._on_device(stay)
        for name in ("problems", "point", "gradient", "direction", "pairs"):
            setattr(self, name, getattr(self, name)[on_device])
        for name in ("rows", "iterations", "converged", "gram", "pair_count", "value", "slope"):
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
        """Move to the trial points and set new directions; return which problems have ended."""
        before, old_slope = self.value[at], self.slope[at]
        self.iterations[at] += 1
        scale = np.maximum(np.maximum(np.abs(before), np.abs(values[at])), 1.0)
        self.converged[at] = (largest[at] <= self.tolerance) | (before - values[at] <= 64 * EPSILON * scale)
        ended = np.zeros(len(self.rows), bool)
        ended[at] = self.converged[at] | (self.iterations[at] >= self.max_iterations)

        bent = slopes[at] - old_slope > EPSILON * -old_slope  # else the curvature is not positive
        self._store_pairs(at[bent], step, gradient)
        rows = self._rows(at)
        self.point[rows], self.value[at] = trial[rows], values[at]
        self.gradient[rows] = gradient[rows]
        active = at[~ended[at]]
        if len(active):
            self._update_directions(active)
        return ended

    def _store_pairs(self, at: np.ndarray, step: Tensor, gradient: Tensor) -> None:
        """Store the newest step and gradient change."""
        if not len(at):
            return
        rows, row, place = self._rows(at), self._on_device(at), self._on_device(self.pair_count[at] % PAIRS)
        self.pairs[row, place] = self.direction[rows] * step[rows][:, None]
        self.pairs[row, place + PAIRS] = gradient[rows] - self.gradient[rows]
        self.pair_count[at] += 1

    def _update_directions(self, at: np.ndarray) -> None:
        """Compute new directions and restart the line searches."""
        rows = self._rows(at)
        gradient, pairs = self.gradient[rows], self.pairs[rows]
        along, square = self._products(at, pairs, gradient)
        coefficients, scale = combine_pairs(self.gram[at], along, self.pair_count[at])
        weights = self._on_device(np.concatenate([coefficients, scale[:, None]], axis=1))
        by_pairs = torch.bmm(weights[:, None, :-1], pairs)[:, 0]
        self.direction[rows] = -torch.addcmul(by_pairs, gradient, weights[:, -1:])
        self.slope[at] = -(coefficients * along).sum(axis=1) - scale * square
        self.search.restart(at, self.value[at], self.slope[at], np.ones(len(at)))
        if (uphill := at[self.slope[at] >= 0]).size:  # rounding has made the pairs useless
            self._drop_pairs(uphill)

    def _products(self, at: np.ndarray, pairs: Tensor, gradient: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Compute products of the gradient with the pairs [A, 2 PAIRS] and itself [A]; update `gram`."""
        newest = (self.pair_count[at] - 1) % PAIRS
        each, place = torch.arange(len(at), device=pairs.device), self._on_device(newest)
        vectors = pairs[each, place], pairs[each, place + PAIRS], gradient
        products = [_dot_pairs(pairs, vector).flatten() for vector in vectors]
        on_host = torch.cat([*products, gradient.square().sum(dim=1)]).cpu().numpy()
        moved, changed, along = on_host[: -len(at)].reshape(3, len(at), 2 * PAIRS)
        for product, index in ((moved, newest), (changed, newest + PAIRS)):
            self.gram[at, index] = product
            self.gram[at, :, index] = product
        return along, on_host[-len(at) :]

    def _restart(self, at: np.ndarray) -> np.ndarray:
        """Retry failed line searches along the gradient; end those that already followed it."""
        ended = np.zeros(len(self.rows), bool)
        ended[at[self.pair_count[at] == 0]] = True
        if (again := at[self.pair_count[at] > 0]).size:
            self._drop_pairs(again)
        return ended

    def _drop_pairs(self, at: np.ndarray) -> None:
        rows = self._rows(at)
        self.pair_count[at], self.gram[at], self.pairs[rows] = 0, 0.0, 0.0
        self.direction[rows] = -self.gradient[rows]
        self.slope[at] = -self.gradient[rows].square().sum(dim=1).cpu().numpy()
        self.search.restart(at, self.value[at], self.slope[at], np.ones(len(at)))

    def _rows(self, at: np.ndarray) -> Any:
        """Return an index of the device tensors; for all problems a slice, which copies nothing."""
        return slice(None) if len(at) == len(self.rows) else self._on_device(at)

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.point.device)


def _dot_pairs(pairs: Tensor, vector: Tensor) -> Tensor:
    """Compute products [P, 2 PAIRS] as a sum: GPUs are slow at such thin matrix products."""
    return (pairs * vector[:, None]).sum(dim=2)


def combine_pairs(gram: np.ndarray, along: np.ndarray, pair_count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the weights of the pairs [P, 2 PAIRS] and of the gradient [P] in H g = scale * g + coefficients @ pairs.

    Eq. 3.1 of Byrd, Nocedal and Schnabel with steps S, changes Y, R the upper triangle of SᵀY (older pairs first), D
    its diagonal: H g = γ g + S R⁻ᵀ ((D + γ YᵀY) p − γ Yᵀg) − γ Y p, where p = R⁻¹ Sᵀg. Empty places are rows of the
    identity, which contribute nothing.
    """
    count = len(gram)
    used = np.minimum(pair_count, PAIRS)
    age = np.arange(PAIRS)[None]
    order = np.where(used[:, None] == PAIRS, (pair_count[:, None] + age) % PAIRS, age)  # oldest first
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
    coefficients = np.zeros((count, 2 * PAIRS))
    coefficients[row, order] = np.where(there, of_steps, 0.0)
    coefficients[row, order + PAIRS] = np.where(there, -scale[:, None] * p[:, :, 0], 0.0)
    return coefficients, scale
