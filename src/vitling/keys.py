"""Keys for random draws: every random number in vitling starts from a hash of what identifies the draw."""

from __future__ import annotations

import hashlib

import numpy as np


def make_key(*parts: int | str) -> int:
    """Hash the parts to a signed 64-bit integer that is the same on every machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def make_rng(*parts: int | str) -> np.random.Generator:
    """Create a NumPy generator for draws of a whole epoch or batch that are needed on the host, such as its order."""
    return np.random.default_rng(make_key(*parts) % 2**63)
