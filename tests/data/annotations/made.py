"""Made annotations: images with rectangles in COCO's JSON and as masks, and a tar of them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.data.pictures import put

WIDTH, HEIGHT = 48, 32


def make_coco(images: int = 4, split: str = "train", first: int = 0) -> dict[str, Any]:
    """Two instances on each image: a polygon of `cat` (category 7), and RLE of `dog` (category 3)."""
    annotations = []
    for i in range(first, first + images):
        left = 2 + i % 5
        polygon = [left, 4, left + 20, 4, left + 20, 14, left, 14]
        runs = [30 * HEIGHT + 5, 10, HEIGHT - 10, 10]
        runs.append(WIDTH * HEIGHT - sum(runs))
        annotations += [
            {"id": 2 * i, "image_id": i, "category_id": 7, "bbox": [left, 4, 20, 10], "segmentation": [polygon]},
            {
                "id": 2 * i + 1,
                "image_id": i,
                "category_id": 3,
                "bbox": [30, 5, 2, 10],
                "segmentation": {"size": [HEIGHT, WIDTH], "counts": runs},
                "iscrowd": int(i == first),
                "area": 20,
            },
        ]
    return {
        "images": [
            {"id": i, "file_name": f"{split}{i:03}.png", "width": WIDTH, "height": HEIGHT}
            for i in range(first, first + images)
        ],
        "annotations": annotations,
        "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}],
    }


def put_coco(root: Path, content: dict[str, Any], split: str = "train", name: str | None = None) -> Path:
    """Write the images into SPLIT2017/ and the annotations next to them; images of unusual names are not written."""
    for seed, image in enumerate(content["images"]):
        if str(image["file_name"]).startswith(split):
            put(root / f"{split}2017" / image["file_name"], seed, WIDTH, HEIGHT)
    file = root / (name or f"annotations/instances_{split}2017.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return root


def draw_mask(seed: int, values: tuple[int, ...] = (0, 1, 2)) -> np.ndarray:
    coarse = np.random.default_rng(seed).choice(np.array(values, np.uint8), (4, 6))
    return np.kron(coarse, np.ones((HEIGHT // 4, WIDTH // 6), np.uint8))


def put_mask(path: Path, mask: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask).save(path)
    return path


def put_masks(
    root: Path, n: int = 6, values: tuple[int, ...] = (0, 1, 2), images: str = "images", masks: str = "masks"
):
    for i in range(n):
        put(root / images / f"{i:03}.png", i, WIDTH, HEIGHT)
        put_mask(root / masks / f"{i:03}.png", draw_mask(i, values))
    return root


def pack(root: Path) -> Path:
    """Pack a folder into a tar beside it."""
    with tarfile.open(path := root.with_suffix(".tar"), "w") as archive:
        archive.add(root, root.name)
    return path
