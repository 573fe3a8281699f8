"""Data sets that are tables: FER2013 with its pixels in a CSV, Hateful Memes with JSON lines."""

from __future__ import annotations

import csv
import json

import numpy as np

from vitling.data.sources.arrays import ArrayReader
from vitling.data.sources.source import Source, SourceSplit
from vitling.errors import UserError
from vitling.papers.datasets.files import Copy, listed, words

EMOTIONS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
USAGE = {"Training": "train", "PublicTest": "val", "PrivateTest": "test"}
MEMES = ("not hateful", "hateful")


def fer2013(copy: Copy) -> Source:
    """emotion, pixels (48 x 48 numbers), Usage; in icml_face_data.csv with spaces before the names."""
    path = copy.need("fer2013.csv", "icml_face_data.csv")
    pixels: dict[str, list[np.ndarray]] = {part: [] for part in USAGE.values()}
    names: dict[str, list[str]] = {part: [] for part in USAGE.values()}
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file, skipinitialspace=True), start=2):
            try:
                part, emotion = USAGE[row["Usage"]], EMOTIONS[int(row["emotion"])]
                pixels[part].append(np.array(row["pixels"].split(), np.uint8).reshape(48, 48))
            except (KeyError, IndexError, ValueError, TypeError):
                raise UserError(f"{path}, line {number}: emotion, pixels or Usage is not as distributed.") from None
            names[part].append(emotion)
    found = Source(copy.entry.name, class_order=EMOTIONS)
    for part, images in pixels.items():
        keys = [f"{part}[{i}]" for i in range(len(images))]
        if images:
            found.splits[part] = SourceSplit(
                keys, ArrayReader(np.stack(images)), np.arange(len(images)), words(names[part])
            )
    return found


def hateful_memes(copy: Copy) -> Source:
    """train.jsonl: {"id": 42953, "img": "img/42953.png", "label": 0, "text": "..."}; the text is not read."""
    found = Source(copy.entry.name, class_order=MEMES)
    for part, files in (("train", ("train.jsonl",)), ("test", ("dev.jsonl", "dev_seen.jsonl"))):
        rows = [json.loads(line) for line in copy.lines(*files)]
        found.splits[part] = listed(
            copy.root, [row["img"] for row in rows], words([MEMES[row["label"]] for row in rows])
        )
    return found
