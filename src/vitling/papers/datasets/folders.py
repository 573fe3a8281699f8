"""Data sets of class folders with something of their own: Caltech-101 without a split, GTSRB with tracks."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from vitling.data.dataset import interleave_classes
from vitling.data.sources.source import IMAGE_SUFFIXES, Source
from vitling.errors import UserError
from vitling.papers.datasets.files import Copy, listed, words

TRAINED_ON = 30  # images of each class of Caltech-101


def caltech101(copy: Copy) -> Source:
    """101_ObjectCategories/accordion/image_0001.jpg; the same 30 images a class are train whoever draws them."""
    folder = copy.need("101_ObjectCategories")
    paths, names = class_folders(folder)
    numbers = np.unique(names, return_inverse=True)[1] if names else np.zeros(0, np.int64)
    order = interleave_classes(numbers, seed=0)
    found = Source(copy.entry.name, class_order=tuple(sorted(set(names))))
    drawn = np.zeros(len(paths), bool)
    for c in np.unique(numbers):
        drawn[order[numbers[order] == c][:TRAINED_ON]] = True
    for part, chosen in (("train", drawn), ("test", ~drawn)):
        ids = np.flatnonzero(chosen).tolist()
        found.splits[part] = listed(folder, [paths[i] for i in ids], words([names[i] for i in ids]))
    return found


def gtsrb(copy: Copy) -> Source:
    """GTSRB/Training/00000/00000_00000.ppm (or Final_Training/Images/): class, track and picture; the classes of the
    test images are in GT-final_test.csv."""
    places = [f"{top}{name}" for top in ("GTSRB/", "") for name in ("Training", "Final_Training/Images")]
    folder = copy.need(*places)
    paths, names = class_folders(folder)
    tracks = [path.rpartition("_")[0] for path in paths]
    found = Source(copy.entry.name, class_order=tuple(str(c) for c in sorted({int(name) for name in names})))
    found.splits["train"] = listed(folder, paths, words([str(int(name)) for name in names]), tracks)
    with copy.need(*_test_tables()).open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter=";", skipinitialspace=True))
    if rows and "ClassId" not in rows[0]:
        raise UserError(
            f"{copy.root}: GT-final_test.csv has no ClassId. GT-final_test.test.csv is the one without labels."
        )
    images = copy.need("GTSRB/Final_Test/Images", "Final_Test/Images")
    labels = [str(int(row["ClassId"])) for row in rows]
    found.splits["test"] = listed(images, [row["Filename"] for row in rows], words(labels))
    return found


def _test_tables() -> list[str]:
    return [f"{place}GT-final_test.csv" for place in ("", "GTSRB/", "GTSRB/Final_Test/Images/", "Final_Test/Images/")]


def class_folders(folder: Path) -> tuple[list[str], list[str]]:
    """Paths of the images in the folders of a folder, sorted, and the name of each one's folder."""
    found = [
        (f"{inner.name}/{file.name}", inner.name)
        for inner in sorted(folder.iterdir())
        if inner.is_dir()
        for file in sorted(inner.iterdir())
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]
    return [path for path, _ in found], [name for _, name in found]
