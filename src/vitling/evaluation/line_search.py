"""The line search of Moré and Thuente (ACM TOMS 20, 1994) for many problems at once, on the host.

For each problem it gets a value and a slope at every trial, and searches for a step with

    f(step) <= f(0) + DECREASE * step * f'(0)   and   |f'(step)| <= CURVATURE * |f'(0)|

within a shrinking interval. The constants and the order of the tests are those of L-BFGS-B.
"""

from __future__ import annotations

import numpy as np

DECREASE, CURVATURE, WIDTH = 1e-3, 0.9, 0.1
LONGEST = 1e10
SHRINK = 0.66
WIDEN_LEAST, WIDEN_MOST = 1.1, 4.0


class LineSearch:
    """Line searches; row i of every array belongs to problem i, and `step` is its next trial."""

    value: np.ndarray  # value and slope at the start
    slope: np.ndarray
    step: np.ndarray
    trials: np.ndarray
    bracketed: np.ndarray  # whether a minimum lies between best and other
    first_stage: np.ndarray
    width: np.ndarray  # of the interval, now and one step before
    width_before: np.ndarray
    best: np.ndarray  # the best step so far, and the other end of the interval
    best_value: np.ndarray
    best_slope: np.ndarray
    other: np.ndarray
    other_value: np.ndarray
    other_slope: np.ndarray
    low: np.ndarray  # bounds of the next step
    high: np.ndarray

    def __init__(self, value: np.ndarray, slope: np.ndarray, step: np.ndarray, noise: float = 0.0):
        self.noise = noise
        for name in LineSearch.__annotations__:
            kind = {"trials": int, "bracketed": bool, "first_stage": bool}.get(name, float)
            setattr(self, name, np.zeros(len(value), kind))
        self.restart(np.arange(len(value)), value, slope, step)

    def restart(self, at: np.ndarray, value: np.ndarray, slope: np.ndarray, step: np.ndarray) -> None:
        """Start new searches for the problems `at`."""
        self.value[at], self.slope[at], self.step[at] = value, slope, np.minimum(step, LONGEST)
        self.trials[at], self.bracketed[at], self.first_stage[at] = 0, False, True
        self.width[at], self.width_before[at] = LONGEST, 2 * LONGEST
        for end in ("best", "other"):
            for part, start in (("", 0.0), ("_value", value), ("_slope", slope)):
                getattr(self, end + part)[at] = start
        self.low[at], self.high[at] = 0.0, self.step[at] * (1 + WIDEN_MOST)

    def keep(self, rows: np.ndarray) -> None:
        for name in LineSearch.__annotations__:
            setattr(self, name, getattr(self, name)[rows])

    def advance(self, value: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Take value and slope at `step`; return which searches are done (bool). The others get a new step."""
        self.trials += 1
        target = self.value + self.step * DECREASE * self.slope
        low_enough = value <= target + self.noise * np.maximum(np.abs(self.value), 1.0)
        arrived = low_enough & (np.abs(slope) <= CURVATURE * np.abs(self.slope))
        arrived |= self.bracketed & ((self.step <= self.low) | (self.step >= self.high))  # no progress: rounding
        arrived |= self.bracketed & (self.high - self.low <= WIDTH * self.high)
        arrived |= (self.step == LONGEST) & low_enough & (slope <= DECREASE * self.slope)
        arrived |= (self.step == 0) & (~low_enough | (slope >= DECREASE * self.slope))
        if (at := np.flatnonzero(~arrived)).size:
            self._move(at, value[at], slope[at], target[at])
        return arrived

    def _move(self, at: np.ndarray, value: np.ndarray, slope: np.ndarray, target: np.ndarray) -> None:
        self.first_stage[at] &= (value > target) | (slope < 0)
        # first stage: use the auxiliary function, which subtracts the required decrease (Eq. 2.1)
        tilt = np.where(self.first_stage[at] & (value <= self.best_value[at]) & (value > target), DECREASE, 0.0)
        tilt = tilt * self.slope[at]
        self._interpolate(at, value, slope, tilt)
        halving = at[self.bracketed[at]]
        far = halving[np.abs(self.other - self.best)[halving] >= SHRINK * self.width_before[halving]]
        self.step[far] = self.best[far] + (self.other[far] - self.best[far]) / 2
        self.width_before[halving] = self.width[halving]
        self.width[halving] = np.abs(self.other - self.best)[halving]
        self._bounds(at)
        self.step[at] = np.clip(self.step[at], 0.0, LONGEST)
        stuck = (self.step <= self.low) | (self.step >= self.high) | (self.high - self.low <= WIDTH * self.high)
        back = at[(self.bracketed & stuck)[at]]
        self.step[back] = self.best[back]

    def _bounds(self, at: np.ndarray) -> None:
        step, best, other = self.step[at], self.best[at], self.other[at]
        inside = self.bracketed[at]
        self.low[at] = np.where(inside, np.minimum(best, other), step + WIDEN_LEAST * (step - best))
        self.high[at] = np.where(inside, np.maximum(best, other), step + WIDEN_MOST * (step - best))

    def _interpolate(self, at: np.ndarray, value: np.ndarray, slope: np.ndarray, tilt: np.ndarray) -> None:
        """Choose the next trial (Section 4) and update the interval."""
        t, x, y = self.step[at], self.best[at], self.other[at]
        f, g = value - t * tilt, slope - tilt
        fx, gx = self.best_value[at] - x * tilt, self.best_slope[at] - tilt
        fy, gy = self.other_value[at] - y * tilt, self.other_slope[at] - tilt
        opposite = g * np.sign(gx) < 0
        higher, flatter = f > fx, np.abs(g) < np.abs(gx)
        with np.errstate(all="ignore"):  # every case is computed for all rows, and used where it applies
            step = np.select(
                [higher, opposite, flatter],
                [_case1(t, f, g, x, fx, gx), _case2(t, f, g, x, fx, gx), self._case3(at, t, f, g, x, fx, gx, y)],
                self._case4(at, t, f, g, x, y, fy, gy),
            )
        self.bracketed[at] |= higher | opposite
        moved = ~higher  # the trial is the new best; if its slope changed sign, the last best is the other end
        turned = moved & opposite
        for part, trial in (("", t), ("_value", value), ("_slope", slope)):
            best, other = getattr(self, f"best{part}"), getattr(self, f"other{part}")
            other[at] = np.where(higher, trial, np.where(turned, best[at], other[at]))
            best[at] = np.where(moved, trial, best[at])
        self.step[at] = step

    def _case3(
        self,
        at: np.ndarray,
        t: np.ndarray,
        f: np.ndarray,
        g: np.ndarray,
        x: np.ndarray,
        fx: np.ndarray,
        gx: np.ndarray,
        y: np.ndarray,
    ) -> np.ndarray:
        """Handle a lower, flatter trial with the same sign of slope: the cubic may have its minimum beyond, or none."""
        theta, s = _cubic(t, f, g, x, fx, gx)
        gamma = s * np.sqrt(np.maximum(0.0, (theta / s) ** 2 - (gx / s) * (g / s)))
        gamma = np.where(t > x, -gamma, gamma)
        r = ((gamma - g) + theta) / ((gamma + (gx - g)) + gamma)
        beyond = np.where(t > x, self.high[at], self.low[at])
        cubic = np.where((r < 0) & (gamma != 0), t + r * (x - t), beyond)
        secant = t + g / (g - gx) * (x - t)
        inside = self.bracketed[at]
        nearer = np.abs(cubic - t) < np.abs(secant - t)
        step = np.where(nearer == inside, cubic, secant)  # in an interval the nearer, else the farther
        limit = t + SHRINK * (y - t)
        limited = np.where(t > x, np.minimum(limit, step), np.maximum(limit, step))
        return np.where(inside, limited, np.clip(step, self.low[at], self.high[at]))

    def _case4(
        self,
        at: np.ndarray,
        t: np.ndarray,
        f: np.ndarray,
        g: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        fy: np.ndarray,
        gy: np.ndarray,
    ) -> np.ndarray:
        """Handle a lower trial that is not flatter, with the same sign of slope."""
        theta, s = _cubic(t, f, g, y, fy, gy)
        gamma = s * np.sqrt((theta / s) ** 2 - (gy / s) * (g / s))
        gamma = np.where(t > y, -gamma, gamma)
        r = ((gamma - g) + theta) / (((gamma - g) + gamma) + gy)
        beyond = np.where(t > x, self.high[at], self.low[at])
        return np.where(self.bracketed[at], t + r * (y - t), beyond)


def _cubic(
    t: np.ndarray, f: np.ndarray, g: np.ndarray, x: np.ndarray, fx: np.ndarray, gx: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute theta of the cubic through two values and slopes, and a scale that prevents overflow."""
    theta = 3 * (fx - f) / (t - x) + gx + g
    return theta, np.maximum(np.maximum(np.abs(theta), np.abs(gx)), np.abs(g))


def _case1(t: np.ndarray, f: np.ndarray, g: np.ndarray, x: np.ndarray, fx: np.ndarray, gx: np.ndarray) -> np.ndarray:
    """Handle a higher trial: the cubic's minimum if nearer to the best than the parabola's, else their midpoint."""
    theta, s = _cubic(t, f, g, x, fx, gx)
    gamma = s * np.sqrt((theta / s) ** 2 - (gx / s) * (g / s))
    gamma = np.where(t < x, -gamma, gamma)
    r = ((gamma - gx) + theta) / (((gamma - gx) + gamma) + g)
    cubic = x + r * (t - x)
    parabola = x + gx / ((fx - f) / (t - x) + gx) / 2 * (t - x)
    return np.where(np.abs(cubic - x) < np.abs(parabola - x), cubic, cubic + (parabola - cubic) / 2)


def _case2(t: np.ndarray, f: np.ndarray, g: np.ndarray, x: np.ndarray, fx: np.ndarray, gx: np.ndarray) -> np.ndarray:
    """Handle a lower trial whose slope changed sign: the minimum of cubic or secant that is farther from it."""
    theta, s = _cubic(t, f, g, x, fx, gx)
    gamma = s * np.sqrt((theta / s) ** 2 - (gx / s) * (g / s))
    gamma = np.where(t > x, -gamma, gamma)
    r = ((gamma - g) + theta) / (((gamma - g) + gamma) + gx)
    cubic, secant = t + r * (x - t), t + g / (g - gx) * (x - t)
    return np.where(np.abs(cubic - t) > np.abs(secant - t), cubic, secant)
