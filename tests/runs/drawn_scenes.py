"""Drawn images with masks and boxes, for tests of detection and segmentation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

COLOURS = ((40, 90, 160), (220, 60, 50), (60, 200, 80))  # background, square, disc
NAMES = ("square", "disc")


def draw_scene(rng: np.random.Generator, size: int = 48) -> tuple[Image.Image, np.ndarray, list[dict]]:
    """Draw one square and one disc that do not touch; return the image, its class map and its instances."""
    width = size + 16
    image, mask = Image.new("RGB", (width, size), COLOURS[0]), Image.new("L", (width, size), 0)
    instances = []
    for c, left in ((1, 2), (2, width // 2 + 2)):
        side = int(rng.integers(size // 4, size // 2 - 6))
        x, y = left + int(rng.integers(0, width // 2 - side - 4)), int(rng.integers(2, size - side - 2))
        for picture, fill in ((image, COLOURS[c]), (mask, c)):
            draw = ImageDraw.Draw(picture)
            (draw.rectangle if c == 1 else draw.ellipse)((x, y, x + side - 1, y + side - 1), fill=fill)
        instances.append({"category_id": c, "bbox": [x, y, side, side]})
    return image, np.asarray(mask), instances


def make_mask_folder(root: Path, counts: dict[str, int], seed: int = 0) -> Path:
    """Write SPLIT/images and SPLIT/masks; the lowest row of every mask is to be ignored (255)."""
    rng = np.random.default_rng(seed)
    for split, count in counts.items():
        for kind in ("images", "masks"):
            (root / split / kind).mkdir(parents=True)
        for i in range(count):
            image, mask, _ = draw_scene(rng)
            image.save(root / split / "images" / f"{i}.png")
            mask = mask.copy()
            mask[-1] = 255
            Image.fromarray(mask).save(root / split / "masks" / f"{i}.png")
    return root


def make_coco_folder(root: Path, counts: dict[str, int], seed: int = 0, masks: bool = True) -> Path:
    """Write SPLIT2017/ and annotations/instances_SPLIT2017.json."""
    rng = np.random.default_rng(seed)
    (root / "annotations").mkdir(parents=True)
    for split, count in counts.items():
        folder = root / f"{split}2017"
        folder.mkdir()
        images, annotations = [], []
        for i in range(count):
            image, mask, instances = draw_scene(rng)
            image.save(folder / f"{i}.png")
            images.append({"id": i, "file_name": f"{i}.png", "width": image.width, "height": image.height})
            for one in instances:
                _x, _y, w, h = one["bbox"]
                more = {"segmentation": _encode(mask == one["category_id"])} if masks else {}
                about = {"id": len(annotations) + 1, "image_id": i, "area": w * h, "iscrowd": 0}
                annotations.append({**one, **about, **more})
        categories = [{"id": c + 1, "name": name} for c, name in enumerate(NAMES)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
    return root


def _encode(mask: np.ndarray) -> dict:
    flat = mask.ravel(order="F").astype(np.int8)
    edges = np.concatenate([[0], np.flatnonzero(np.diff(flat)) + 1, [flat.size]])
    runs = np.diff(edges).tolist()
    return {"size": list(mask.shape), "counts": [0, *runs] if flat[0] else runs}
