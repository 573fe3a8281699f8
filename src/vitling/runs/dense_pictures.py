"""Pictures of the images that a detector or segmentation network predicts worst, beside their annotations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from vitling.data.annotations.split import AnnotatedSplit
from vitling.data.config import DataConfig
from vitling.data.decode import decode
from vitling.dense.detections import Detections
from vitling.files import atomic_write, write_json
from vitling.runs.dense_evaluation import MIN_SCORE, SplitScores, get_truth
from vitling.runs.dense_model import to_picture
from vitling.runs.drawing import draw_class_map, draw_detections, place_side_by_side, shrink

SIDE = 640  # px of a picture's longer side, at most
FOLDER, LIST = "pictures", "worst.json"  # in a run; the list of a split begins with its name


def draw_worst(folder: Path, scores: SplitScores, split: AnnotatedSplit, name: str, data: DataConfig) -> None:
    """Write pictures of the worst images of a split, and a list of them."""
    listed = []
    for rank, (score, i, found) in enumerate(scores.worst, 1):
        image = to_picture(decode(split.dataset.read(i), data.channels, data.bits, data.max_pixels).pixels)
        picture = draw_beside_truth(image, found, split, i)
        file = f"{name}-worst-{rank}.jpg"
        with atomic_write(folder / file) as out:
            picture.save(out, "JPEG", quality=85)
        listed.append({"file": file, "image": split.dataset.keys[i], "split": name, "score": round(score, 4)})
    write_json(folder / f"{name}-{LIST}", listed)


def draw_beside_truth(image: Image.Image, found: Detections | np.ndarray, split: AnnotatedSplit, i: int) -> Image.Image:
    """Draw the annotations of an image and a prediction side by side."""
    if isinstance(found, Detections):
        drawn = [
            draw_detections(image, get_truth(split, i), split.class_names, scores=False),
            draw_detections(image, found, split.class_names, MIN_SCORE),
        ]
    else:
        assert split.read_mask is not None
        drawn = [draw_class_map(image, some, split.class_names) for some in (split.read_mask(i), found)]
    return place_side_by_side([shrink(one, SIDE) for one in drawn], ["annotated", "predicted"])
