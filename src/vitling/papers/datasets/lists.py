"""Data sets whose splits are text files with the paths of the images."""

from __future__ import annotations

from collections import defaultdict

from vitling.data.sources.source import Source
from vitling.errors import UserError
from vitling.papers.datasets.files import Copy, listed, words


def food101(copy: Copy) -> Source:
    """meta/train.txt: `apple_pie/1005649` for images/apple_pie/1005649.jpg."""
    return _by_class_folder(copy, {"train": "meta/train.txt", "test": "meta/test.txt"}, "images", suffix=".jpg")


def dtd(copy: Copy) -> Source:
    """labels/train1.txt: `banded/banded_0002.jpg`; ten splits, of which the first is the usual one."""
    split = copy.choice("split", 10)
    return _by_class_folder(copy, {part: f"labels/{part}{split}.txt" for part in ("train", "val", "test")}, "images")


def indoor67(copy: Copy) -> Source:
    """TrainImages.txt: `gameroom/bt_132294gameroom2.jpg`."""
    return _by_class_folder(copy, {"train": "TrainImages.txt", "test": "TestImages.txt"}, "Images")


def sun397(copy: Copy) -> Source:
    """Partitions/Training_01.txt: `/a/abbey/sun_aaalbzqrimafwbiv.jpg`; a class may be two folders deep."""
    split = copy.choice("split", 10)
    found = Source(copy.entry.name, class_order=tuple(_scene(line) for line in copy.lines("ClassName.txt")))
    for part, file in (("train", "Training"), ("test", "Testing")):
        name = f"{file}_{split:02d}.txt"
        paths = [line.lstrip("/") for line in copy.lines(name, f"Partitions/{name}")]
        found.splits[part] = listed(copy.root, paths, words([_scene(path.rpartition("/")[0]) for path in paths]))
    return found


def _scene(folder: str) -> str:
    """`/a/apartment_building/outdoor` is apartment_building/outdoor."""
    return folder.lstrip("/").partition("/")[2]


def aircraft(copy: Copy) -> Source:
    """images_variant_train.txt: `1025794 707-320`; variants.txt orders the classes."""
    found = Source(copy.entry.name, class_order=tuple(copy.lines("variants.txt")))
    for part in ("train", "val", "test"):
        rows = [line.split(" ", 1) for line in copy.lines(f"images_variant_{part}.txt")]
        paths = [f"{number}.jpg" for number, _ in rows]
        found.splits[part] = listed(copy.need("images"), paths, words([variant for _, variant in rows]))
    return found


def pets(copy: Copy) -> Source:
    """annotations/trainval.txt: `Abyssinian_100 1 1 1`, that is image, class from 1, species, breed."""
    found = Source(copy.entry.name)
    names: dict[int, str] = {}
    for part, file in (("train", "trainval"), ("test", "test")):
        rows = [line.split() for line in copy.lines(f"annotations/{file}.txt") if not line.startswith("#")]
        breeds = [_breed(row[0]) for row in rows]
        names |= {int(row[1]): breed for row, breed in zip(rows, breeds)}
        found.splits[part] = listed(copy.need("images"), [f"{row[0]}.jpg" for row in rows], words(breeds))
    found.class_order = tuple(names[number] for number in sorted(names))
    return found


def _breed(image: str) -> str:
    """`english_cocker_spaniel_12` is English Cocker Spaniel."""
    return " ".join(word.title() for word in image.rpartition("_")[0].split("_"))


def cub(copy: Copy) -> Source:
    """images.txt, image_class_labels.txt, train_test_split.txt: each `number value`; 1 is train."""
    tables = {
        name: dict(line.split(maxsplit=1) for line in copy.lines(f"{name}.txt"))
        for name in ("images", "image_class_labels", "train_test_split", "classes")
    }
    classes = tables["classes"]
    found = Source(copy.entry.name, class_order=tuple(classes[n] for n in sorted(classes, key=int)))
    for part, mark in (("train", "1"), ("test", "0")):
        numbers = [n for n in tables["images"] if tables["train_test_split"][n] == mark]
        labels = [classes[tables["image_class_labels"][n]] for n in numbers]
        found.splits[part] = listed(copy.need("images"), [tables["images"][n] for n in numbers], words(labels))
    return found


def domainnet(copy: Copy) -> Source:
    """clipart_train.txt: `clipart/aircraft_carrier/clipart_001_000001.jpg 0`. The lists may lie in a folder beside the
    images."""
    domain = copy.entry.name.partition("-")[2]
    folder = next((place for place in (copy.root, copy.root.parent) if (place / domain).is_dir()), None)
    if folder is None:
        raise UserError(f"{copy.root} has the lists of {copy.entry.title}, and no folder {domain}/ with the images.")
    found = Source(copy.entry.name)
    names: dict[int, str] = {}
    for part in ("train", "test"):
        rows = [line.rsplit(" ", 1) for line in copy.lines(f"{domain}_{part}.txt")]
        classes = [path.split("/")[-2] for path, _ in rows]
        names |= {int(number): name for (_, number), name in zip(rows, classes)}
        found.splits[part] = listed(folder, [path for path, _ in rows], words(classes))
    found.class_order = tuple(names[number] for number in sorted(names))
    return found


def webvision(copy: Copy) -> Source:
    """info/train_filelist_google.txt: `google/q0001/0ee0OAoP0dNPjM.jpg 0`; the number is a line of info/synsets.txt."""
    names = [line.partition(" ")[0] for line in copy.lines("info/synsets.txt")]
    lines: dict[str, list[str]] = defaultdict(list)
    lines["train"] = [line for web in ("google", "flickr") for line in _web_list(copy, web)]
    lines["test"] = copy.lines("info/val_filelist.txt")
    found = Source(copy.entry.name, class_order=tuple(names))
    for part, folder in (("train", copy.root), ("test", copy.need("val_images_256", "val_images_resized", "val"))):
        rows = [line.rsplit(" ", 1) for line in lines[part]]
        found.splits[part] = listed(
            folder, [path for path, _ in rows], words([names[int(number)] for _, number in rows])
        )
    return found


def _web_list(copy: Copy, web: str) -> list[str]:
    """Google's images serve alone too: of the other list nothing is read where its folder is not there."""
    return copy.lines(f"info/train_filelist_{web}.txt") if (copy.root / web).is_dir() else []


def _by_class_folder(copy: Copy, lists: dict[str, str], images: str, suffix: str = "") -> Source:
    """Lines `class/image`."""
    found = Source(copy.entry.name)
    for part, name in lists.items():
        paths = [line + suffix for line in copy.lines(name)]
        found.splits[part] = listed(copy.need(images), paths, words([path.split("/")[0] for path in paths]))
    return found
