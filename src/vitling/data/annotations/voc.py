"""Reader for Pascal VOC's XML: one file per image, in Annotations/ or beside the images."""

from __future__ import annotations

from xml.etree import ElementTree

from vitling.data.annotations.build import map_files
from vitling.data.annotations.files import Files, find_split, get_stem, get_suffix, read_lists
from vitling.data.annotations.parsed import Parsed, ParsedImage, Shape
from vitling.data.sources.layout import make_printable

NAN = float("nan")


def is_voc(files: Files) -> bool:
    first = next((name for name in files.names if get_suffix(name) == ".xml"), None)
    return first is not None and b"<annotation" in files.read(first)


def read(files: Files) -> Parsed:
    """Read the XML files; ImageSets/Main/train.txt and so on decide the splits, if they exist."""
    parsed = Parsed()
    listed = read_lists(files, "main")
    names = [name for name in files.names if get_suffix(name) == ".xml"]
    if listed:
        names = [name for name in names if get_stem(name) in listed]
    first = 1 if listed else 0  # the original counts pixels from 1; other tools that write the format do not
    for name, found in zip(names, map_files(lambda name: _parse(files.read(name), first), names)):
        split = listed[get_stem(name)] if listed else find_split(name.rpartition("/")[0])
        if isinstance(found, Exception):
            parsed.add_problem(split, name, f"unreadable annotation: {found}")
            continue
        file_name, size, shapes = found
        file = (file_name and files.find_image(file_name, near=name)) or files.find_partner(name)
        if file is None:
            parsed.add_problem(split, file_name or name, "missing image")
        else:
            parsed.splits[split].append(ParsedImage(file, shapes, size))
    labels = {shape.label for images in parsed.splits.values() for image in images for shape in image.shapes}
    parsed.class_names = tuple(sorted(labels))
    return parsed


def _parse(raw: bytes, first: int) -> tuple[str, tuple[int, int] | None, list[Shape]]:
    """Return the name and size of the image, and its objects."""
    if b"<!DOCTYPE" in raw or b"<!ENTITY" in raw or b"\0" in raw:  # entities can grow without limit
        raise ValueError("XML with a document type, or not in UTF-8")
    root = ElementTree.fromstring(raw)
    height, width = (_read_number(root, f"size/{side}") for side in ("height", "width"))
    size = (int(height), int(width)) if height > 0 and width > 0 and max(height, width) < 2**31 else None
    shapes = [_read_object(k, item, first) for k, item in enumerate(root.iter("object"), 1)]
    return make_printable((root.findtext("filename") or "").strip()), size, shapes


def _read_object(k: int, item: ElementTree.Element, first: int) -> Shape:
    """Read an object; difficult ones count as crowds, which neither help nor harm a detector."""
    left, top, right, bottom = (_read_number(item, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax"))
    return Shape(
        make_printable((item.findtext("name") or "").strip()),
        (left - first, top - first, right, bottom),
        crowd=(item.findtext("difficult") or "").strip() == "1",
        where=f"object {k}",
    )


def _read_number(element: ElementTree.Element, path: str) -> float:
    try:
        return float(element.findtext(path) or NAN)
    except ValueError:
        return NAN
