"""Brush strokes of Label Studio: RGBA images whose alpha marks the inside."""

from __future__ import annotations

import numpy as np

from vitling.data.annotations.parsed import Runs
from vitling.data.annotations.rle import encode_mask

INSIDE = 128  # smallest alpha of a pixel that is inside
CHANNELS = 4


def read_brush(packed: bytes, height: int, width: int) -> Runs:
    """Unpack a brush stroke on an image of this size; raise ValueError if it is broken or of another size."""
    alpha = unpack_alpha(packed, height * width * CHANNELS).reshape(height, width)
    found = encode_mask(alpha >= INSIDE)
    return {"size": found["size"], "counts": found["counts"]}


def unpack_alpha(packed: bytes, expected: int) -> np.ndarray:
    """Unpack the alpha values, uint8 [expected / 4], from a bit stream: runs of one value, and stretches of values.

    It starts with the number of values (32 bits), the width of a value in bits less 1 (5 bits), and four widths of
    lengths less 1 (4 bits each). Every part then has a bit that is 1 for a run, the number of the width of its length
    (2 bits), its length less 1, and its value or values.
    """
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))
    place = 0

    def take(n: int, width: int) -> np.ndarray:
        """Read n numbers of `width` bits."""
        nonlocal place
        place += n * width
        if place > len(bits):
            raise ValueError("broken brush stroke: cut short")
        return bits[place - n * width : place].reshape(n, width).astype(np.int64) @ (1 << np.arange(width)[::-1])

    total, width = int(take(1, 32)[0]), int(take(1, 5)[0]) + 1
    lengths = (take(4, 4) + 1).tolist()
    if total != expected:
        raise ValueError(f"brush stroke of another size: {total:,} values instead of {expected:,}")
    alpha = np.zeros(total // CHANNELS, np.uint8)
    done = 0
    while done < total:
        is_run, kind = divmod(int(take(1, 3)[0]), 4)
        stop = min(done + int(take(1, lengths[kind])[0]) + 1, total)
        values = take(1 if is_run else stop - done, width) & 255
        own = values if is_run else values[(CHANNELS - 1 - done) % CHANNELS :: CHANNELS]
        alpha[done // CHANNELS : stop // CHANNELS] = own
        done = stop
    return alpha
