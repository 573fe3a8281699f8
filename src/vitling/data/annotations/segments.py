"""Segments of annotation files as checked RLE at the size of the image."""

from __future__ import annotations

import numpy as np

from vitling.data.annotations.brush import read_brush
from vitling.data.annotations.parsed import Box, Brush, Polygons, Runs
from vitling.data.annotations.rle import RLE, check_runs, find_box, measure_area, read_runs, write_runs
from vitling.errors import UserError

MAX_REACH = 2  # image sizes; polygons that reach further out are broken, and would take much memory to fill
MAX_OUTLINE = 4_000_000  # px of all edges: pycocotools stores 25 points per pixel and crashes if there is no memory


def import_pycocotools(name: str):
    """Import a module of pycocotools; raise UserError if it is not installed."""
    from importlib import import_module

    try:
        return import_module(f"pycocotools.{name}")
    except ImportError:
        raise UserError('This needs pycocotools: pip install "vitling[dense]".') from None


def read_segment(
    segment: Runs | Polygons | Brush, height: int, width: int, scale: np.ndarray
) -> tuple[RLE, float, Box]:
    """Return the mask, its area and its box in pixels; raise ValueError if it is broken or empty.

    `scale` (x, y) turns polygons into pixels.
    """
    if isinstance(segment, list):
        return _fill_polygons([np.asarray(points, np.float64) for points in segment], height, width, scale)
    if isinstance(segment, bytes):
        segment = read_brush(segment, height, width)
    rle, runs = _check_rle(segment, height, width)
    if not (area := measure_area(runs)):
        raise ValueError("empty mask")
    return rle, float(area), find_box(runs, height)


def _check_rle(segment: Runs, height: int, width: int) -> tuple[RLE, np.ndarray]:
    if list(segment["size"]) != [height, width]:
        raise ValueError(f"mask of another size: {segment['size']} instead of [{height}, {width}]")
    counts = segment["counts"]
    if isinstance(counts, str):
        rle: RLE = {"size": [height, width], "counts": counts}
        return rle, read_runs(rle)
    try:
        runs = np.asarray(counts, np.int64).reshape(-1)
    except OverflowError:
        raise ValueError("broken RLE") from None
    check_runs(runs, height, width)
    return write_runs(runs, height, width), runs


def _fill_polygons(polygons: list[np.ndarray], height: int, width: int, scale: np.ndarray) -> tuple[RLE, float, Box]:
    """Fill polygons with pycocotools, so that masks are the same, to the pixel, as everywhere else."""
    limit = np.array([width, height], np.float64)
    for points in polygons:
        if len(points) < 6 or len(points) % 2:
            raise ValueError(f"broken polygon: {len(points)} numbers")
        pairs = points.reshape(-1, 2)
        with np.errstate(over="ignore"):  # becomes inf, which is refused
            pairs *= scale
        if not np.isfinite(pairs).all() or ((pairs < -MAX_REACH * limit) | (pairs > (1 + MAX_REACH) * limit)).any():
            raise ValueError("polygon outside of the image")
    edges = (np.abs(np.diff(points.reshape(-1, 2), axis=0, append=points[None, :2])).max(axis=1) for points in polygons)
    if sum(float(lengths.sum()) for lengths in edges) > MAX_OUTLINE:
        raise ValueError(f"polygon with an outline of more than {MAX_OUTLINE:,} pixels")
    coco = import_pycocotools("mask")
    merged = coco.merge(coco.frPyObjects([points.tolist() for points in polygons], height, width))
    if not (area := float(coco.area(merged))):
        raise ValueError("empty mask")
    left, top, box_width, box_height = coco.toBbox(merged).tolist()
    rle: RLE = {"size": [height, width], "counts": merged["counts"].decode()}
    return rle, area, (left, top, left + box_width, top + box_height)
