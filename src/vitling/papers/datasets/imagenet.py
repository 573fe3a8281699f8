"""ImageNet with 1,000, 100 or 21,841 classes, and Open Images: folders, a class each or without classes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from vitling.data.sources.source import IMAGE_SUFFIXES, Source, SourceSplit
from vitling.errors import UserError
from vitling.papers.datasets.files import Copy, listed, words
from vitling.papers.datasets.folders import class_folders

DEVKIT = "ILSVRC2012_devkit_t12/data"
KAGGLE = "ILSVRC/Data/CLS-LOC"
LISTS = ("imagenet-100.lst", "imagenet100.txt", "imagenet-100.txt")


def imagenet1k(copy: Copy) -> Source:
    """train/n01440764/*.JPEG; val/ sorted into such folders, or flat with the devkit's (or Kaggle's) labels beside."""
    found = Source(copy.entry.name)
    folder, val = copy.need("train", f"{KAGGLE}/train"), copy.need("val", f"{KAGGLE}/val")
    paths, names = class_folders(folder)
    found.splits["train"] = listed(folder, paths, words(names))
    paths, names = class_folders(val)
    if not paths:
        paths, names = _flat_val(copy, val)
    found.splits["test"] = listed(val, paths, words(names))
    return found


def imagenet100(copy: Copy) -> Source:
    """The classes that a list names: ?list=FILE, or a list in the folder; or all, if there are 100."""
    named = copy.options.pop("list", None)
    inside = next((copy.root / name for name in LISTS if (copy.root / name).exists()), None)
    found = imagenet1k(copy)
    classes = {names[0] for names in found.splits["train"].labels or ()}
    if named or inside:
        chosen = _listed_classes(Path(named).expanduser() if named else inside)
        if missing := sorted(chosen - classes):
            raise UserError(
                f"{copy.root} has no class {missing[0]}, which the list names ({len(missing)} are not there)."
            )
        found.splits = {split: _of_classes(part, chosen) for split, part in found.splits.items()}
    elif len(classes) > copy.entry.classes:
        raise UserError(
            f"{copy.root} has {len(classes):,} classes. Which {copy.entry.classes} of them are meant is in a list: "
            f"name it with {copy.entry.name}:{copy.root}?list=FILE (DRLoc's is scripts/imagenet-100.lst in VTs-Drloc)."
        )
    return found


def imagenet22k(copy: Copy) -> Source:
    """n01440764/*.JPEG, in the folder itself or in train/."""
    folder = copy.root / "train" if (copy.root / "train").is_dir() else copy.root
    paths, names = class_folders(folder)
    return Source(copy.entry.name, {"train": listed(folder, paths, words(names))})


def openimages(copy: Copy) -> Source:
    """train/*.jpg, without labels; folders in it (train_0, train_1, ...) are no classes."""
    folder = copy.need("train")
    paths = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES]
    return Source(copy.entry.name, {"train": listed(folder, sorted(paths), None)})


def _flat_val(copy: Copy, val: Path) -> tuple[list[str], list[str]]:
    """The classes of ILSVRC2012_val_00000001.JPEG and so on."""
    if (table := copy.root / "LOC_val_solution.csv").exists():
        with table.open(newline="") as file:
            rows = [(f"{row['ImageId']}.JPEG", row["PredictionString"].split()[0]) for row in csv.DictReader(file)]
        return [path for path, _ in rows], [name for _, name in rows]
    numbers = copy.lines(f"{DEVKIT}/ILSVRC2012_validation_ground_truth.txt", "ILSVRC2012_validation_ground_truth.txt")
    synset = _synsets(copy.need(f"{DEVKIT}/meta.mat", "meta.mat"))
    paths = sorted(file.name for file in val.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
    if len(paths) != len(numbers):
        raise UserError(f"{val} has {len(paths):,} images, and its list of labels {len(numbers):,}.")
    return paths, [synset[int(number)] for number in numbers]


def _synsets(path: Path) -> dict[int, str]:
    from scipy.io import loadmat

    rows = np.atleast_1d(loadmat(path, squeeze_me=True)["synsets"])
    return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows if int(row["num_children"]) == 0}


def _listed_classes(path: Path | None) -> set[str]:
    if path is None or not path.is_file():
        raise UserError(f"The list of classes {path} is not there.")
    return {line.split()[0] for line in path.read_text().splitlines() if line.strip()}


def _of_classes(part: SourceSplit, chosen: set[str]) -> SourceSplit:
    return part.take([i for i, names in enumerate(part.labels or ()) if names[0] in chosen])
