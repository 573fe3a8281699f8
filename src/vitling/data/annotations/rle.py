"""Run-length encoded masks in COCO's compressed form, with a check for every string from a file.

A mask is read column by column. Its runs alternate between outside and inside, starting outside. Each run, from the
fourth on less the run two before it, is written in groups of 5 bits, lowest first, as the characters from "0" on: bit 5
says that more groups follow, and bit 4 of the last one is the sign.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

FIRST, BITS, MORE, SIGN = ord("0"), 5, 0x20, 0x10
MAX_GROUPS = 6  # of one run: 30 bits, more than --data.max-pixels needs


class RLE(TypedDict):
    """Compressed mask, as pycocotools and COCO's JSON have it."""

    size: list[int]  # height, width
    counts: str


def read_runs(rle: RLE) -> np.ndarray:
    """Return the lengths of the runs, int64; raise ValueError if they do not fill the mask exactly."""
    groups = np.frombuffer(rle["counts"].encode("latin-1", "replace"), np.uint8).astype(np.int64) - FIRST
    if not len(groups):
        raise ValueError("empty RLE")
    if ((groups < 0) | (groups >= 2 * MORE)).any() or groups[-1] & MORE:
        raise ValueError("RLE with invalid characters")
    last = np.flatnonzero((groups & MORE) == 0)
    first = np.concatenate([[0], last[:-1] + 1])
    place = np.arange(len(groups)) - np.repeat(first, last + 1 - first)
    if (place >= MAX_GROUPS).any():
        raise ValueError("RLE with a run that is too long")
    runs = np.add.reduceat((groups & (MORE - 1)) << (BITS * place), first)
    runs -= np.where(groups[last] & SIGN, np.int64(1) << (BITS * (place[last] + 1)), 0)
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    check_runs(runs, *rle["size"])
    return runs


def check_runs(runs: np.ndarray, height: int, width: int) -> None:
    """Raise ValueError unless the runs fill a mask of this size exactly."""
    pixels = height * width
    if (runs < 0).any() or (runs > pixels).any() or runs.sum() != pixels:  # a sum of larger runs may overflow
        raise ValueError(f"RLE that does not fill {width} x {height} pixels")


def write_runs(runs: np.ndarray, height: int, width: int) -> RLE:
    """Compress the lengths of runs."""
    delta = runs.astype(np.int64)
    delta[3:] -= runs[1:-2]
    shifted = delta[:, None] >> (BITS * np.arange(MAX_GROUPS))
    groups = shifted & (MORE - 1)
    rest = shifted >> BITS
    is_done = np.where(groups & SIGN, rest == -1, rest == 0)
    length = is_done.argmax(axis=1)
    place = np.arange(MAX_GROUPS)
    coded = groups + FIRST + np.where(place < length[:, None], MORE, 0)
    kept = coded[place <= length[:, None]]
    return {"size": [int(height), int(width)], "counts": kept.astype(np.uint8).tobytes().decode("latin-1")}


def encode_mask(mask: np.ndarray) -> RLE:
    """Compress a mask [H, W]; everything but 0 is inside."""
    flat = (mask != 0).ravel(order="F")
    changes = np.flatnonzero(np.diff(flat)) + 1
    edges = np.concatenate([[0], changes, [flat.size]])
    runs = np.diff(edges)
    if flat.size and flat[0]:
        runs = np.concatenate([[0], runs])
    return write_runs(runs, *mask.shape)


def decode_mask(rle: RLE) -> np.ndarray:
    """Return the mask, uint8 [H, W] of 0 and 1."""
    runs = read_runs(rle)
    inside = (np.arange(len(runs)) & 1).astype(np.uint8)
    height, width = rle["size"]
    return np.repeat(inside, runs).reshape(width, height).T


def measure_area(runs: np.ndarray) -> int:
    """Count the pixels inside."""
    return int(runs[1::2].sum())


def find_spans(runs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the runs inside start and stop, counted column by column."""
    stop = np.cumsum(runs)
    return (stop - runs)[1::2], stop[1::2]


def find_box(runs: np.ndarray, height: int) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom in pixels of a mask that is not empty."""
    start, stop = find_spans(runs)
    start, last = start[stop > start], stop[stop > start] - 1
    wraps = bool((start // height != last // height).any())  # a run over the end of a column fills the height
    top, bottom = (0, height) if wraps else (int((start % height).min()), int((last % height).max()) + 1)
    return float(start[0] // height), float(top), float(last[-1] // height + 1), float(bottom)


def sample_mask(runs: np.ndarray, height: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Look up the pixels of a grid, uint8 [len(y), len(x)], without decoding the mask."""
    place = x[None, :] * height + y[:, None]
    return (np.searchsorted(np.cumsum(runs), place, side="right") & 1).astype(np.uint8)
