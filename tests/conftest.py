"""Shared by all tests: a private cache, one thread (tests run in parallel), and small made images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitling.papers.datasets import register_readers

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; also for the commands that tests start
register_readers()  # tests open flowers102:DIR without the command line, which does this


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def make_image(kind: int, seed: int, width: int = 20, height: int = 16) -> Image.Image:
    """Stripes whose direction and colour tell the class; noise tells images of a class apart."""
    random = np.random.default_rng(1000 * kind + seed)
    y, x = np.mgrid[:height, :width]
    wave = np.sin((x if kind % 2 else y) * (0.6 + 0.3 * kind) + random.uniform(0, 6))
    pixels = 128 + 80 * wave[..., None] * np.roll([1.0, 0.3, -0.6], kind) + random.normal(0, 12, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def make_folder(root: Path, classes: int = 3, each: int = 10, split: str = "", first: int = 0, **size: int) -> Path:
    """root/[split/]class-0/image-00.png ..."""
    for c in range(classes):
        folder = root / split / f"class-{c}"
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(first, first + each):
            make_image(c, i, **size).save(folder / f"image-{i:02d}.png")
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """30 images, three classes."""
    return make_folder(tmp_path / "images")
