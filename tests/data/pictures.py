"""Synthetic images: smooth random colours, which look different from one another and survive JPEG."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

FORMAT_OF = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".webp": "WEBP",
    ".bmp": "BMP",
    ".tif": "TIFF",
    ".gif": "GIF",
}


def picture(seed: int, width: int = 48, height: int = 32) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def put(path: Path, seed: int, width: int = 48, height: int = 32) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(picture(seed, width, height), FORMAT_OF[path.suffix]))
    return path


def put_classes(root: Path, per_class: dict[str, int], first_seed: int = 0) -> Path:
    seed = first_seed
    for name, n in per_class.items():
        for i in range(n):
            put(root / name / f"{i:03}.png", seed)
            seed += 1
    return root


def put_bursts(root: Path) -> Path:
    """Write 40 images of two classes, 20 of them with a larger copy of the same picture, NAME-again.png."""
    put_classes(root, {"cat": 20, "dog": 20})
    for i in range(0, 20, 2):
        put(root / "cat" / f"{i:03}-again.png", i, 96, 64)
        put(root / "dog" / f"{i:03}-again.png", 20 + i, 96, 64)
    return root
