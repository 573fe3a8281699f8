"""Readers of datasets whose splits and labels are lists: text, MATLAB, XML or JSON files next to the images."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from vitling.errors import InvalidFile, UserError
from vitling.loading import find_limit, open_regular, read_bytes
from vitling.papers.datasets.files import Copy, pick


def read_food101(copy: Copy) -> None:
    """Read meta/train.txt: `apple_pie/1005649` for images/apple_pie/1005649.jpg."""
    _read_lists(copy, {"train": "meta/train.txt", "test": "meta/test.txt"}, "images", suffix=".jpg")


def read_dtd(copy: Copy) -> None:
    """Read labels/train1.txt: `banded/banded_0002.jpg`; there are ten splits, the first is the usual one."""
    number = copy.pop_number("split", 10)
    _read_lists(copy, {split: f"labels/{split}{number}.txt" for split in ("train", "val", "test")}, "images")


def read_indoor67(copy: Copy) -> None:
    """Read TrainImages.txt: `gameroom/bt_132294gameroom2.jpg`."""
    _read_lists(copy, {"train": "TrainImages.txt", "test": "TestImages.txt"}, "Images")


def _read_lists(copy: Copy, lists: dict[str, str], images: str, suffix: str = "") -> None:
    """Read lines `class/image`."""
    for split, name in lists.items():
        paths = [line + suffix for line in copy.read_lines(name)]
        copy.add_files(split, copy.require(images), paths, [path.split("/")[0] for path in paths])


def read_sun397(copy: Copy) -> None:
    """Read Partitions/Training_01.txt: `/a/abbey/sun_aaalbzqrimafwbiv.jpg`; a class may be two folders deep."""
    number = copy.pop_number("split", 10)
    copy.order_classes(_name_scene(line) for line in copy.read_lines("ClassName.txt"))
    for split, kind in (("train", "Training"), ("test", "Testing")):
        file = f"{kind}_{number:02d}.txt"
        paths = [line.lstrip("/") for line in copy.read_lines(file, f"Partitions/{file}")]
        names = [_name_scene(path.rpartition("/")[0]) for path in paths]
        copy.add_files(split, copy.root, paths, names)


def _name_scene(folder: str) -> str:
    """Turn `/a/apartment_building/outdoor` into apartment_building/outdoor."""
    return folder.lstrip("/").partition("/")[2]


def read_aircraft(copy: Copy) -> None:
    """Read images_variant_train.txt: `1025794 707-320`; variants.txt orders the classes."""
    copy.order_classes(copy.read_lines("variants.txt"))
    for split in ("train", "val", "test"):
        rows = [line.split(" ", 1) for line in copy.read_lines(f"images_variant_{split}.txt")]
        paths = [f"{number}.jpg" for number, _ in rows]
        copy.add_files(split, copy.require("images"), paths, [variant for _, variant in rows])


def read_pets(copy: Copy) -> None:
    """Read annotations/trainval.txt: `Abyssinian_100 1 1 1`: image, class from 1, species, breed."""
    order: dict[int, str] = {}
    for split, file in (("train", "trainval"), ("test", "test")):
        rows = [line.split() for line in copy.read_lines(f"annotations/{file}.txt") if not line.startswith("#")]
        breeds = [_name_breed(row[0]) for row in rows]
        order |= {int(row[1]): breed for row, breed in zip(rows, breeds)}
        copy.add_files(split, copy.require("images"), [f"{row[0]}.jpg" for row in rows], breeds)
    copy.order_classes(order[number] for number in sorted(order))


def _name_breed(image: str) -> str:
    """Turn `english_cocker_spaniel_12` into English Cocker Spaniel."""
    return " ".join(word.title() for word in image.rpartition("_")[0].split("_"))


def read_cub(copy: Copy) -> None:
    """Read images.txt, image_class_labels.txt and train_test_split.txt: lines `number value`; 1 is train."""
    tables = {
        name: dict(line.split(maxsplit=1) for line in copy.read_lines(f"{name}.txt"))
        for name in ("images", "image_class_labels", "train_test_split", "classes")
    }
    classes = tables["classes"]
    copy.order_classes(classes[n] for n in sorted(classes, key=int))
    for split, mark in (("train", "1"), ("test", "0")):
        numbers = [n for n in tables["images"] if tables["train_test_split"][n] == mark]
        names = [classes[tables["image_class_labels"][n]] for n in numbers]
        copy.add_files(split, copy.require("images"), [tables["images"][n] for n in numbers], names)


def read_domainnet(copy: Copy) -> None:
    """Read clipart_train.txt: `clipart/aircraft_carrier/clipart_001_000001.jpg 0`; lists may be in a sibling folder."""
    domain = copy.entry.name.partition("-")[2]
    folder = next((place for place in (copy.root, copy.root.parent) if (place / domain).is_dir()), None)
    if folder is None:
        raise UserError(f"{copy.root} has the lists of {copy.entry.title}, but no folder {domain}/ with the images.")
    order: dict[int, str] = {}
    for split in ("train", "test"):
        rows = [line.rsplit(" ", 1) for line in copy.read_lines(f"{domain}_{split}.txt")]
        names = [path.split("/")[-2] for path, _ in rows]
        order |= {int(number): name for (_, number), name in zip(rows, names)}
        copy.add_files(split, folder, [path for path, _ in rows], names)
    copy.order_classes(order[number] for number in sorted(order))


def read_webvision(copy: Copy) -> None:
    """Read info/train_filelist_google.txt: `google/q0001/0ee0OAoP0dNPjM.jpg 0`, a line number of info/synsets.txt.

    The list of Flickr or Google is skipped if its folder is missing.
    """
    names = copy.order_classes(line.partition(" ")[0] for line in copy.read_lines("info/synsets.txt"))
    webs = [web for web in ("google", "flickr") if (copy.root / web).is_dir()]
    lines = {
        "train": [line for web in webs for line in copy.read_lines(f"info/train_filelist_{web}.txt")],
        "test": copy.read_lines("info/val_filelist.txt"),
    }
    for split, folder in (("train", copy.root), ("test", copy.require("val_images_256", "val_images_resized", "val"))):
        rows = [line.rsplit(" ", 1) for line in lines[split]]
        labels = [pick(names, int(number)) for _, number in rows]
        copy.add_files(split, folder, [path for path, _ in rows], labels)


def read_hateful_memes(copy: Copy) -> None:
    """Read train.jsonl: {"id": 42953, "img": "img/42953.png", "label": 0, "text": "..."}; the text is not used."""
    for split, files in (("train", ("train.jsonl",)), ("test", ("dev.jsonl", "dev_seen.jsonl"))):
        rows = [json.loads(line) for line in copy.read_lines(*files)]
        names = [pick(copy.entry.class_names, row["label"]) for row in rows]
        copy.add_files(split, copy.root, [row["img"] for row in rows], names)


def read_voc2007(copy: Copy) -> None:
    """Read image numbers from ImageSets/Main/train.txt and others, and their objects from Annotations/NUMBER.xml."""
    difficult, folder, annotations = 0, copy.require("JPEGImages"), copy.require("Annotations")
    for split in ("train", "val", "test"):
        numbers = [line.split()[0] for line in copy.read_lines(f"ImageSets/Main/{split}.txt")]
        objects = [_read_objects(annotations / f"{number}.xml") for number in numbers]
        difficult += sum(bool(hard - plain) for plain, hard in objects)
        labels = [tuple(name for name in copy.entry.class_names if name in plain) for plain, _ in objects]
        copy.add_files(split, folder, [f"{number}.jpg" for number in numbers], labels)
    if difficult:
        copy.source.notes.append(
            f"{difficult:,} images have a class of which every object is difficult. Here that class counts as absent; "
            "the challenge leaves the image out of that class's precision."
        )


def _read_objects(path: Path) -> tuple[set[str], set[str]]:
    """Return the classes of the objects that are not difficult, and of those that are."""
    try:
        objects = ElementTree.fromstring(read_bytes(path)).findall("object")
    except (OSError, ElementTree.ParseError) as error:
        raise UserError(f"{path} cannot be read: {error}. The test images are in a separate archive.") from None
    named = [(found.findtext("name", ""), found.findtext("difficult", "0") == "1") for found in objects]
    return {name for name, hard in named if not hard}, {name for name, hard in named if hard}


def read_flowers102(copy: Copy) -> None:
    """Read jpg/image_00001.jpg, its class (from 1) in imagelabels.mat and the splits in setid.mat.

    Split names are as distributed: trnid and valid are the small ones, with 10 images per class.
    """
    labels = load_mat(copy.require("imagelabels.mat"))["labels"].ravel().tolist()
    ids = load_mat(copy.require("setid.mat"))
    for split, key in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        numbers = ids[key].ravel().tolist()
        names = [pick(copy.entry.class_names, pick(labels, n, first=1), first=1) for n in numbers]
        copy.add_files(split, copy.require("jpg"), [f"image_{n:05d}.jpg" for n in numbers], names)


def read_cars(copy: Copy) -> None:
    """Read devkit/: cars_meta.mat names the classes, cars_train_annos.mat has a row per image.

    The labels of the test images were published later: cars_test_annos_withlabels.mat.
    """
    names = copy.order_classes(map(str, load_mat(copy.require("devkit/cars_meta.mat"))["class_names"].ravel()))
    test = ("cars_test_annos_withlabels.mat", "cars_test_annoswithlabels.mat")
    lists = {
        "train": ("devkit/cars_train_annos.mat",),
        "test": tuple(place for name in test for place in (name, f"devkit/{name}")),
    }
    for split, places in lists.items():
        rows = np.atleast_1d(load_mat(copy.require(*places))["annotations"])
        labels = [pick(names, int(row["class"]), first=1) for row in rows]
        paths = [str(row["fname"]) for row in rows]
        copy.add_files(split, copy.require(f"cars_{split}"), paths, labels)


def load_mat(path: Path) -> dict[str, Any]:
    """Load a MATLAB file in a process of its own: scipy's reader can crash on a damaged file."""
    with open_regular(path) as file:
        command = [sys.executable, "-P", "-m", "vitling.papers.datasets.mat", str(find_limit(path))]
        done = subprocess.run(command, stdin=file, capture_output=True)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").splitlines()[-1:] or ["its reader crashed"]
        raise InvalidFile(path, f"cannot be read as a MATLAB file ({reason[0][:200]})")
    return pickle.loads(done.stdout)
