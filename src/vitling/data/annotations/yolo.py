"""Reader for YOLO's text files: a line per box or polygon, in fractions of the image, in labels/ or beside it."""

from __future__ import annotations

import re
from typing import Any

import yaml

from vitling.data.annotations.build import map_files
from vitling.data.annotations.files import (
    IMAGE_FOLDERS,
    Files,
    find_split,
    get_suffix,
    read_names,
    strip_folder,
)
from vitling.data.annotations.parsed import Parsed, ParsedImage, Shape
from vitling.data.sources.layout import make_printable
from vitling.errors import InvalidFile, summarise_error

LINE = re.compile(rb"^[ \t]*\d+([ \t]+[-+.\deE]+){4,}[ \t\r]*$", re.MULTILINE)
MAX_LOOKS = 1000  # files; the first may be empty, which is an image without objects
CLASS_FILES = ("classes.txt", "labels/classes.txt", "obj.names", "classes.names")
Lines = list[tuple[int, int, list[float]]]  # number of the line, class, coordinates


def is_yolo(files: Files) -> bool:
    """Return whether an image has a text file of numbers."""
    images, labels = _pair(files)
    return any(LINE.search(files.read(labels[key])) for key in sorted(images.keys() & labels.keys())[:MAX_LOOKS])


def read(files: Files) -> Parsed:
    """Read all images of the folders that have labels; an image without a text file shows no object."""
    parsed = Parsed()
    images, labels = _pair(files)
    found = dict(zip(labels, map_files(lambda name: _parse(files.read(name)), list(labels.values()))))
    known = _read_class_names(files)
    for key in sorted(images.keys() | labels.keys()):
        split = find_split(key.rpartition("/")[0])
        if key not in images:
            parsed.add_problem(split, labels[key], "missing image")
            continue
        image = ParsedImage(images[key], relative=True)
        parsed.splits[split].append(image)
        lines = found.get(key, ([], []))
        if isinstance(lines, Exception):
            parsed.add_problem(split, labels[key], f"unreadable annotation: {lines}")
            continue
        for number in lines[1]:
            parsed.add_problem(split, labels[key], f"unreadable annotation: line {number}")
        for number, c, values in lines[0]:
            label = known.get(c, f"{c}") if known else f"class {c}"
            image.shapes.append(_make_shape(label, values, f"line {number}"))
    if known:
        parsed.class_names = tuple(dict.fromkeys(known[c] for c in sorted(known)))
    else:
        used = {c for lines in found.values() if not isinstance(lines, Exception) for _, c, _ in lines[0]}
        parsed.class_names = tuple(f"class {c}" for c in sorted(used))
    return parsed


def _pair(files: Files) -> tuple[dict[str, str], dict[str, str]]:
    """Return images and text files by the path that both share."""
    texts = [name for name in files.names if get_suffix(name) == ".txt" and name not in CLASS_FILES]
    labels = {key: name for name in texts if (key := strip_folder(name, ("labels",)))}
    if labels:
        return {key: name for name in files.images if (key := strip_folder(name, IMAGE_FOLDERS))}, labels
    images = {name.rpartition(".")[0]: name for name in files.images}
    return images, {key: name for name in texts if (key := name.rpartition(".")[0]) in images}


def _parse(raw: bytes) -> tuple[Lines, list[int]]:
    """Return the lines that can be read, and the numbers of those that cannot."""
    lines: Lines = []
    bad: list[int] = []
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        if not (words := line.split()):
            continue
        try:
            values = [float(word) for word in words]
        except ValueError:
            values = []
        if len(values) % 2 == 0 or len(values) < 5 or not values[0].is_integer() or not 0 <= values[0] < 2**31:
            bad.append(number)
        else:
            lines.append((number, int(values[0]), values[1:]))
    return lines, bad


def _make_shape(label: str, values: list[float], where: str) -> Shape:
    if len(values) > 4:
        return Shape(label, segment=[values], where=where)
    x, y, width, height = values
    return Shape(label, (x - width / 2, y - height / 2, x + width / 2, y + height / 2), where=where)


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases, of which a few lines can stand for billions of values."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported")
        return super().compose_node(parent, index)


def _read_class_names(files: Files) -> dict[int, str]:
    """Read the names from data.yaml or a text file: number -> name; {} without one."""
    for name in files.names:
        if get_suffix(name) not in (".yaml", ".yml") or name.count("/") > 1:
            continue
        try:
            known = _list_names(yaml.load(files.read(name), _PlainLoader))
        except Exception as error:  # PyYAML fails on odd values in many ways, such as IndexError for !!float ""
            raise InvalidFile(name, f"not valid YAML ({summarise_error(error)})") from None
        if known:
            return known
    return dict(enumerate(read_names(files, CLASS_FILES)))


def _list_names(content: Any) -> dict[int, str]:
    names = content.get("names") if isinstance(content, dict) else None
    pairs = names.items() if isinstance(names, dict) else enumerate(names) if isinstance(names, list) else ()
    return {int(c): make_printable(str(word)) for c, word in pairs if str(c).isdecimal()}
