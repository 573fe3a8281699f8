"""Stateless randomness: every draw is an integer hash of (seed, epoch, instance, view, operation).

The order of a batch, the number of processes, accumulation and a resume therefore cannot change what an image looks
like. The hash is int64 arithmetic, which wraps alike on CPUs and GPUs, so both draw the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor

from vitling.keys import make_key

_GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's increment, 2^64 / golden ratio
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # multipliers of SplitMix64's finaliser
_QUANTILES = 4096
MAX_NUMBERS = 24  # per operation and image by default; a random crop draws 22


def make_seeds(keys: Sequence[int], ids: np.ndarray) -> np.ndarray:
    """Make the initial hash states, int64 [len(keys) * len(ids)]: all ids for each key."""
    return (np.array(keys, dtype=np.int64)[:, None] + ids.astype(np.int64) * _signed(_GOLDEN)).ravel()


@dataclass(frozen=True)
class Draws:
    """The random numbers of B images: `uniform("crop", 4)` is [B, 4] and depends on key, ids and name alone."""

    state: Tensor  # [B, columns] int64, one column per number that an operation may draw

    @classmethod
    def from_ids(cls, keys: Sequence[int], ids: Tensor) -> Draws:
        """Make the draws of all ids for each key, one key after the other."""
        return cls.from_seeds(torch.from_numpy(make_seeds(keys, ids.cpu().numpy())).to(ids.device), columns(ids.device))

    @classmethod
    def from_integers(cls, integers: Tensor, count: int) -> Draws:
        """Make draws of up to `count` numbers per operation from integers that are already on the device."""
        return cls.from_seeds(integers * _signed(_GOLDEN), columns(integers.device, count))

    @classmethod
    def from_seeds(cls, seeds: Tensor, columns: Tensor) -> Self:
        return cls(_scramble(_scramble(seeds)[:, None] ^ columns))

    @property
    def images(self) -> int:
        return len(self.state)

    def uniform(self, operation: str, n: int = 1) -> Tensor:
        """Draw float32 [B, n] in [0, 1)."""
        _check_count(operation, n, self.state.shape[1])
        return _uniform(self.state[:, :n] + _make_constant_key(operation))

    def chance(self, operation: str, probability: float) -> Tensor:
        """Draw bool [B], True with the given probability."""
        return self.uniform(operation)[:, 0] < probability

    def beta(self, operation: str, quantiles: Tensor) -> Tensor:
        """Draw values [B] from the Beta distribution with these quantiles."""
        return _interpolate(quantiles, self.uniform(operation)[:, 0])


@dataclass(frozen=True)
class TabulatedDraws(Draws):
    """The same numbers, precomputed by `tabulate`: `state` is [operations, B, columns], float32 in [0, 1)."""

    operations: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        return self.state.shape[1]

    def uniform(self, operation: str, n: int = 1) -> Tensor:
        if operation not in self.operations:
            raise ValueError(f"{operation} is not among {', '.join(self.operations)}")
        _check_count(operation, n, self.state.shape[2])
        return self.state[self.operations.index(operation), :, :n]


@dataclass(frozen=True)
class RecordingDraws(Draws):
    """Draws that record the names of the operations they were drawn for."""

    operations: list[str] = field(default_factory=list)

    def uniform(self, operation: str, n: int = 1) -> Tensor:
        self.operations.append(operation)
        return super().uniform(operation, n)


def tabulate(seeds: Tensor, columns: Tensor, keys: Tensor) -> Tensor:
    """Compute all numbers that the operations with these keys can draw, [keys, B, columns]."""
    return _uniform(Draws.from_seeds(seeds, columns).state + keys[:, None, None])


@lru_cache
def operation_keys(operations: tuple[str, ...], device: torch.device) -> Tensor:
    return torch.tensor([make_key(name) for name in operations], dtype=torch.int64, device=device)


@lru_cache
def columns(device: torch.device, count: int = MAX_NUMBERS) -> Tensor:
    """Make one constant per column. Compiled code takes them as an argument: its own arithmetic on them overflows."""
    return torch.arange(1, count + 1, device=device) * _signed(_GOLDEN)


@lru_cache
def beta_quantiles(alpha: float, device: torch.device) -> Tensor:
    """Tabulate the quantiles of Beta(alpha, alpha)."""
    from scipy.special import betaincinv

    points = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return torch.tensor(betaincinv(alpha, alpha, points), dtype=torch.float32, device=device)


def _check_count(operation: str, n: int, limit: int) -> None:
    if n > limit:
        raise ValueError(f"{operation}: at most {limit} numbers per draw, not {n}")


@torch.compiler.assume_constant_result
def _make_constant_key(operation: str) -> int:
    return make_key(operation)


def _interpolate(table: Tensor, u: Tensor) -> Tensor:
    position = (u * len(table) - 0.5).clamp(0, len(table) - 1)
    low = position.floor().long()
    high = (low + 1).clamp(max=len(table) - 1)
    return torch.lerp(table[low], table[high], position - low)


def _uniform(x: Tensor) -> Tensor:
    return _shift_right(_scramble(x), 40).to(torch.float32) * 2.0**-24


def _scramble(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift_right(x, 27)) * _signed(_SECOND)
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift logically; torch's own shift keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x
