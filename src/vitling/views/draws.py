"""Randomness without state: every draw is an integer hash of (seed, epoch, instance, view, operation).

So the order of a batch, the number of processes, accumulation and a resume cannot change what an image looks like.
The hash is integer arithmetic in int64, which wraps alike on CPUs and GPUs: both draw the same numbers.
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

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # the finaliser of SplitMix64
_QUANTILES = 4096
MOST = 24  # numbers that an operation draws for an image, unless more are asked for


def seeds_of(keys: Sequence[int], ids: np.ndarray) -> np.ndarray:
    """int64 [len(keys) * len(ids)]: where the hash starts, for each key all ids."""
    return (np.array(keys, dtype=np.int64)[:, None] + ids.astype(np.int64) * _signed(_GOLDEN)).ravel()


@dataclass(frozen=True)
class Draws:
    """The random numbers of B images: `uniform("crop", 4)` is [B, 4], a function of key, ids and the name alone."""

    state: Tensor  # [B, most] int64: a column for each number that an operation may draw

    @classmethod
    def from_ids(cls, keys: Sequence[int], ids: Tensor) -> Draws:
        """For each key the draws of all ids, one key after the other."""
        return cls.from_seeds(torch.from_numpy(seeds_of(keys, ids.cpu().numpy())).to(ids.device), columns(ids.device))

    @classmethod
    def from_integers(cls, names: Tensor, most: int) -> Draws:
        """For whole numbers that are on the device already."""
        return cls.from_seeds(names * _signed(_GOLDEN), columns(names.device, most))

    @classmethod
    def from_seeds(cls, seeds: Tensor, columns: Tensor) -> Self:
        return cls(_scramble(_scramble(seeds)[:, None] ^ columns))

    @property
    def images(self) -> int:
        return len(self.state)

    def uniform(self, operation: str, n: int = 1) -> Tensor:
        """[B, n] float32 in [0, 1)."""
        if n > self.state.shape[1]:
            raise ValueError(f"{operation}: at most {self.state.shape[1]} numbers a draw, not {n}")
        return _uniform(self.state[:, :n] + _key_of(operation))

    def chance(self, operation: str, probability: float) -> Tensor:
        """[B] bool, True with the given probability."""
        return self.uniform(operation)[:, 0] < probability

    def beta(self, operation: str, quantiles: Tensor) -> Tensor:
        """[B] from the Beta distribution of these quantiles."""
        return _interpolate(quantiles, self.uniform(operation)[:, 0])


@dataclass(frozen=True)
class Tabled(Draws):
    """The same numbers, worked out before: `state` is [operations, B, most], float32 in [0, 1)."""

    operations: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        return self.state.shape[1]

    def uniform(self, operation: str, n: int = 1) -> Tensor:
        if operation not in self.operations:
            raise ValueError(f"{operation} is not among {', '.join(self.operations)}")
        if n > self.state.shape[2]:
            raise ValueError(f"{operation}: at most {self.state.shape[2]} numbers a draw, not {n}")
        return self.state[self.operations.index(operation), :, :n]


@dataclass(frozen=True)
class Noting(Draws):
    """Remembers for which operations numbers were drawn."""

    operations: list[str] = field(default_factory=list)

    def uniform(self, operation: str, n: int = 1) -> Tensor:
        self.operations.append(operation)
        return super().uniform(operation, n)


def tabulate(seeds: Tensor, columns: Tensor, keys: Tensor) -> Tensor:
    """[keys, B, most]: all that operations with these keys can draw."""
    return _uniform(Draws.from_seeds(seeds, columns).state + keys[:, None, None])


@lru_cache
def keys_of(operations: tuple[str, ...], device: torch.device) -> Tensor:
    return torch.tensor([make_key(name) for name in operations], dtype=torch.int64, device=device)


@lru_cache
def columns(device: torch.device, most: int = MOST) -> Tensor:
    """[most] constants; an argument of what is compiled, whose own arithmetic on such numbers overflows."""
    return torch.arange(1, most + 1, device=device) * _signed(_GOLDEN)


@lru_cache
def beta_quantiles(alpha: float, device: torch.device) -> Tensor:
    """Of Beta(alpha, alpha)."""
    from scipy.stats import beta

    points = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return torch.tensor(beta.ppf(points, alpha, alpha), dtype=torch.float32, device=device)


@torch.compiler.assume_constant_result
def _key_of(operation: str) -> int:
    return make_key(operation)


def _interpolate(table: Tensor, u: Tensor) -> Tensor:
    place = (u * len(table) - 0.5).clamp(0, len(table) - 1)
    low = place.floor().long()
    high = (low + 1).clamp(max=len(table) - 1)
    return torch.lerp(table[low], table[high], place - low)


def _uniform(x: Tensor) -> Tensor:
    return _shift_right(_scramble(x), 40).to(torch.float32) * 2.0**-24


def _scramble(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift_right(x, 27)) * _signed(_SECOND)
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x
