"""Run-length encoded masks, compared with pycocotools."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco

from tests.hostile import QUICK
from vitling.data.annotations.rle import decode_mask, encode_mask, find_box, measure_area, read_runs, sample_mask


def draw_mask(seed: int, fill: float = 0.5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    coarse = rng.random((rng.integers(1, 6), rng.integers(1, 6))) < fill
    return np.kron(coarse, np.ones(rng.integers(1, 40, 2))).astype(np.uint8)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("fill", [0, 0.3, 0.7, 1])
def test_masks_are_coded_as_by_pycocotools(seed, fill):
    mask = draw_mask(seed, fill)
    rle = encode_mask(mask)
    expected = coco.encode(np.asfortranarray(mask))
    assert rle["counts"].encode() == expected["counts"]
    assert rle["size"] == list(expected["size"])
    np.testing.assert_array_equal(decode_mask(rle), mask)
    runs = read_runs(rle)
    assert measure_area(runs) == coco.area(expected)
    if mask.any():
        left, top, width, height = coco.toBbox(expected)
        assert find_box(runs, mask.shape[0]) == (left, top, left + width, top + height)


def test_a_run_over_the_end_of_a_column_fills_the_height_of_the_box():
    mask = np.zeros((5, 4), np.uint8)
    mask[3:, 1] = mask[:2, 2] = 1
    assert find_box(read_runs(encode_mask(mask)), 5) == (1, 0, 3, 5)


@pytest.mark.parametrize("seed", range(5))
def test_samples_are_those_of_the_decoded_mask(seed):
    mask = draw_mask(seed)
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, mask.shape[1], 7), rng.integers(0, mask.shape[0], 9)
    np.testing.assert_array_equal(sample_mask(read_runs(encode_mask(mask)), mask.shape[0], x, y), mask[np.ix_(y, x)])


@QUICK
@given(counts=st.text(max_size=30) | st.text("0123456789`abcdefghijklmno", max_size=30))
def test_strings_that_do_not_fill_the_mask_are_refused(counts):
    try:
        mask = decode_mask({"size": [4, 6], "counts": counts})
    except ValueError:
        return
    assert mask.shape == (4, 6)
