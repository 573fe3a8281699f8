from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageChops

from tests.conftest import make_folder
from vitling.data.config import DataConfig
from vitling.data.splits import read_splits
from vitling.data.store import Placement, Store, build_store
from vitling.report.sprites import SIDE
from vitling.runs import thumbnails
from vitling.runs.thumbnails import draw_thumbnails
from vitling.views.sheet import to_image


def make_store(root, size: int, width: int, height: int, placement: Placement = "auto") -> Store:
    folder = make_folder(root, classes=2, each=5, width=width, height=height)
    return build_store(read_splits(str(folder), DataConfig()).train, size, use_cache=False, placement=placement)


def draw_literally(store: Store, row: int) -> Image.Image:
    """Stretch the squashed image to its own shape, and scale the largest square in its middle."""
    pixels, aspects = store.fetch(np.array([row]))
    side, aspect = 6 * store.size, float(aspects[0])
    width, height = (side, round(side / aspect)) if aspect > 1 else (round(side * aspect), side)
    image = to_image(pixels[0]).resize((width, height), Image.Resampling.BICUBIC)
    square = min(width, height)
    left, top = (width - square) // 2, (height - square) // 2
    return image.crop((left, top, left + square, top + square)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def measure_difference(one: Image.Image, other: Image.Image) -> float:
    return float(np.asarray(ImageChops.difference(one, other)).mean())


@pytest.mark.parametrize("placement", ["host", "stream"])
def test_thumbnails_of_several_stores_come_in_order(tmp_path, monkeypatch, placement):
    monkeypatch.setattr(thumbnails, "BATCH_BYTES", 3 * 3 * 160**2)  # three images
    wide = make_store(tmp_path / "wide", 160, 200, 120, placement)
    tall = make_store(tmp_path / "tall", 140, 90, 180, placement)
    images = [(wide, 3), (tall, 9), (wide, 0), (tall, 2), (tall, 2), (tall, 7), (wide, 8), (wide, 3)]
    drawn = list(draw_thumbnails(images))
    expected = [draw_literally(store, row) for store, row in images]
    assert len(drawn) == len(images)
    for i, one in enumerate(drawn):
        differences = [measure_difference(one, other) for other in expected]
        assert differences[i] < 3
        assert differences[i] == min(differences)


@pytest.mark.parametrize("size", [8, SIDE // 2])
def test_tiny_images_keep_their_pixels(tmp_path, size):
    store = make_store(tmp_path, size, size, size)
    (drawn,) = draw_thumbnails([(store, 4)])
    pixels = to_image(store.fetch(np.array([4]))[0][0])
    assert measure_difference(drawn, pixels.resize((SIDE, SIDE), Image.Resampling.NEAREST)) == 0


def test_no_images_have_no_thumbnails():
    assert list(draw_thumbnails([])) == []
