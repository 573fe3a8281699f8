"""Readers of datasets with a folder per class, or without classes: Caltech-101, GTSRB, ImageNet, Open Images."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from vitling.data.dataset import interleave_classes
from vitling.data.sources.source import IMAGE_SUFFIXES
from vitling.errors import UserError
from vitling.loading import expand_home, open_text
from vitling.papers.datasets.files import Copy
from vitling.papers.datasets.lists import load_mat

CALTECH_TRAIN = 30  # images per class
GTSRB_TABLES = [f"{top}GT-final_test.csv" for top in ("", "GTSRB/", "GTSRB/Final_Test/Images/", "Final_Test/Images/")]
DEVKIT = "ILSVRC2012_devkit_t12/data"
KAGGLE = "ILSVRC/Data/CLS-LOC"
LISTS = ("imagenet-100.lst", "imagenet100.txt", "imagenet-100.txt")


def list_class_folders(folder: Path) -> tuple[list[str], list[str]]:
    """List the images in the subfolders of a folder, sorted, and the name of each one's subfolder."""
    found = [
        (f"{inner.name}/{file.name}", inner.name)
        for inner in sorted(folder.iterdir())
        if inner.is_dir()
        for file in sorted(inner.iterdir())
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]
    return [path for path, _ in found], [name for _, name in found]


def read_caltech101(copy: Copy) -> None:
    """Read 101_ObjectCategories/accordion/image_0001.jpg; a fixed draw of 30 images per class is train."""
    folder = copy.require("101_ObjectCategories")
    paths, names = list_class_folders(folder)
    numbers = np.unique(names, return_inverse=True)[1] if names else np.zeros(0, np.int64)
    order = interleave_classes(numbers, seed=0)
    drawn = np.zeros(len(paths), bool)
    for c in np.unique(numbers):
        drawn[order[numbers[order] == c][:CALTECH_TRAIN]] = True
    copy.order_classes(sorted(set(names)))
    for split, chosen in (("train", drawn), ("test", ~drawn)):
        ids = np.flatnonzero(chosen).tolist()
        copy.add_files(split, folder, [paths[i] for i in ids], [names[i] for i in ids])


def read_gtsrb(copy: Copy) -> None:
    """Read GTSRB/Training/00000/00000_00000.ppm (or Final_Training/Images/): class, track and picture.

    The classes of the test images are in GT-final_test.csv.
    """
    places = [f"{top}{name}" for top in ("GTSRB/", "") for name in ("Training", "Final_Training/Images")]
    folder = copy.require(*places)
    paths, names = list_class_folders(folder)
    tracks = [path.rpartition("_")[0] for path in paths]
    copy.order_classes(str(c) for c in sorted({int(name) for name in names}))
    copy.add_files("train", folder, paths, [str(int(name)) for name in names], tracks)
    with open_text(copy.require(*GTSRB_TABLES), newline="") as file:
        rows = list(csv.DictReader(file, delimiter=";", skipinitialspace=True))
    if rows and "ClassId" not in rows[0]:
        raise UserError(f"{copy.root}: GT-final_test.csv has no ClassId; it seems to be GT-final_test.test.csv.")
    images = copy.require("GTSRB/Final_Test/Images", "Final_Test/Images")
    labels = [str(int(row["ClassId"])) for row in rows]
    copy.add_files("test", images, [row["Filename"] for row in rows], labels)


def read_imagenet1k(copy: Copy) -> None:
    """Read train/n01440764/*.JPEG; val/ is sorted likewise, or flat with the devkit's (or Kaggle's) labels."""
    folder, val = copy.require("train", f"{KAGGLE}/train"), copy.require("val", f"{KAGGLE}/val")
    copy.add_files("train", folder, *list_class_folders(folder))
    paths, names = list_class_folders(val)
    if not paths:
        paths, names = _list_flat_val(copy, val)
    copy.add_files("test", val, paths, names)


def read_imagenet100(copy: Copy) -> None:
    """Read the classes of a list, given by ?list=FILE or lying in the folder; or all, if there are 100."""
    option = copy.options.pop("list", None)
    inside = next((copy.root / name for name in LISTS if (copy.root / name).exists()), None)
    listed = expand_home(option) if option else inside
    read_imagenet1k(copy)
    splits = copy.source.splits
    classes = {names[0] for names in splits["train"].labels or ()}
    if listed:
        if not listed.is_file():
            raise UserError(f"The list of classes {listed} does not exist.")
        with open_text(listed) as file:
            chosen = {line.split()[0] for line in file if line.strip()}
        if missing := sorted(chosen - classes):
            raise UserError(f"{copy.root} has no class {missing[0]} of the list ({len(missing)} are missing).")
        for name, split in splits.items():
            splits[name] = split.take([i for i, names in enumerate(split.labels or ()) if names[0] in chosen])
    elif len(classes) > copy.entry.classes:
        raise UserError(
            f"{copy.root} has {len(classes):,} classes, not {copy.entry.classes}. Name those to read with "
            f"{copy.entry.name}:{copy.root}?list=FILE (DRLoc's list is scripts/imagenet-100.lst in VTs-Drloc)."
        )


def _list_flat_val(copy: Copy, val: Path) -> tuple[list[str], list[str]]:
    """Find the classes of ILSVRC2012_val_00000001.JPEG and so on."""
    if (table := copy.root / "LOC_val_solution.csv").exists():
        with open_text(table, newline="") as file:
            rows = [(f"{row['ImageId']}.JPEG", row["PredictionString"].split()[0]) for row in csv.DictReader(file)]
        return [path for path, _ in rows], [name for _, name in rows]
    truth = "ILSVRC2012_validation_ground_truth.txt"
    numbers = copy.read_lines(f"{DEVKIT}/{truth}", truth)
    synsets = np.atleast_1d(load_mat(copy.require(f"{DEVKIT}/meta.mat", "meta.mat"))["synsets"])
    names = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets if int(row["num_children"]) == 0}
    paths = sorted(file.name for file in val.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
    if len(paths) != len(numbers):
        raise UserError(f"{val} has {len(paths):,} images, but its list of labels {len(numbers):,}.")
    return paths, [names[int(number)] for number in numbers]


def read_imagenet22k(copy: Copy) -> None:
    """Read n01440764/*.JPEG, in the folder itself or in train/."""
    folder = copy.root / "train" if (copy.root / "train").is_dir() else copy.root
    copy.add_files("train", folder, *list_class_folders(folder))


def read_openimages(copy: Copy) -> None:
    """Read train/*.jpg without labels; folders in it (train_0, train_1, ...) are not classes."""
    folder = copy.require("train")
    paths = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES]
    copy.add_files("train", folder, sorted(paths), None)
