"""Names for draws: one 64-bit number from whatever identifies a draw. The root of all randomness here."""

from __future__ import annotations

import hashlib

import numpy as np


def make_key(*parts: int | str) -> int:
    """One signed 64-bit number, the same on every machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def make_rng(*parts: int | str) -> np.random.Generator:
    """For draws that belong to a whole epoch or batch and are needed on the host, such as its order."""
    return np.random.default_rng(make_key(*parts) % 2**63)
