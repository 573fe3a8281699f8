"""Fixtures of all tests: a private cache, one thread (tests run in parallel) and small synthetic images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitling.papers.datasets import register_readers

os.environ["OMP_NUM_THREADS"] = "1"  # set before torch is imported; commands started by tests inherit it
register_readers()  # as the command line does; tests open flowers102:DIR without it


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def make_image(kind: int, seed: int, width: int = 20, height: int = 16) -> Image.Image:
    """Draw stripes whose direction and colour depend on the class, with noise that depends on the seed."""
    random = np.random.default_rng(1000 * kind + seed)
    y, x = np.mgrid[:height, :width]
    wave = np.sin((x if kind % 2 else y) * (0.6 + 0.3 * kind) + random.uniform(0, 6))
    pixels = 128 + 80 * wave[..., None] * np.roll([1.0, 0.3, -0.6], kind) + random.normal(0, 12, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def make_folder(root: Path, classes: int = 3, each: int = 10, split: str = "", first: int = 0, **size: int) -> Path:
    """Write images to root/[split/]class-0/image-00.png, ..."""
    for c in range(classes):
        folder = root / split / f"class-{c}"
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(first, first + each):
            make_image(c, i, **size).save(folder / f"image-{i:02d}.png")
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder with 30 images of three classes."""
    return make_folder(tmp_path / "images")
