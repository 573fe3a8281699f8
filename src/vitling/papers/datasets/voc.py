"""PASCAL VOC 2007: several classes an image, from the objects in its XML."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from vitling.data.sources.source import Source
from vitling.errors import UserError
from vitling.papers.datasets.files import Copy, listed

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def voc2007(copy: Copy) -> Source:
    """ImageSets/Main/train.txt, val.txt, test.txt: numbers of images; Annotations/NUMBER.xml: their objects."""
    found = Source(copy.entry.name, class_order=CLASSES, multi=True)
    folder, annotations = copy.need("JPEGImages"), copy.need("Annotations")
    difficult = 0
    for part in ("train", "val", "test"):
        numbers = [line.split()[0] for line in copy.lines(f"ImageSets/Main/{part}.txt")]
        labels = []
        for number in numbers:
            plain, hard = _objects(annotations / f"{number}.xml")
            labels.append(tuple(name for name in CLASSES if name in plain))
            difficult += bool(hard - plain)
        found.splits[part] = listed(folder, [f"{number}.jpg" for number in numbers], labels)
    if difficult:
        found.notes.append(
            f"{difficult:,} images have a class of which every object is difficult; it counts as not there, where the "
            "challenge leaves the image out of that class's precision."
        )
    return found


def _objects(path: Path) -> tuple[set[str], set[str]]:
    """Classes of the objects that are not difficult, and of those that are."""
    try:
        objects = ElementTree.parse(path).getroot().findall("object")
    except (OSError, ElementTree.ParseError) as error:
        raise UserError(f"{path} cannot be read: {error}. The test images have an archive of their own.") from None
    named = [(found.findtext("name", ""), found.findtext("difficult", "0") == "1") for found in objects]
    return {name for name, hard in named if not hard}, {name for name, hard in named if hard}
