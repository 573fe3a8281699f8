"""Reader for Label Studio's JSON export: rectangles, polygons and brush strokes, in percent of the image."""

from __future__ import annotations

import math
import posixpath
import re
from typing import Any, NotRequired, TypedDict
from urllib.parse import unquote

from vitling.data.annotations.files import Files, get_suffix
from vitling.data.annotations.parsed import Parsed, ParsedImage, Shape
from vitling.data.sources.layout import make_printable
from vitling.data.sources.source import IMAGE_SUFFIXES
from vitling.errors import InvalidFile
from vitling.loading import convert

UPLOAD_PREFIX = re.compile(r"^[0-9a-f]{8}-")  # that Label Studio puts before the name of an uploaded file


class Region(TypedDict):
    type: str
    value: dict[str, Any]
    id: NotRequired[str]
    original_width: NotRequired[int]
    original_height: NotRequired[int]


class Annotation(TypedDict):
    result: list[Any]
    was_cancelled: NotRequired[bool]


class Task(TypedDict):
    data: dict[str, Any]
    annotations: list[Annotation]


class Rectangle(TypedDict):
    x: float
    y: float
    width: float
    height: float
    rotation: NotRequired[float]


class Polygon(TypedDict):
    points: list[tuple[float, float]]


class Brush(TypedDict):
    rle: list[int]


def is_export(content: Any) -> bool:
    """Return whether the content of a JSON file is a list of Label Studio's tasks."""
    return isinstance(content, list) and any(
        isinstance(task, dict) and isinstance(task.get("data"), dict) and "annotations" in task for task in content[:1]
    )


def read(files: Files, contents: dict[str, Any]) -> Parsed:
    """Read exports. Of several annotations of an image, the first that was not cancelled is used."""
    parsed = Parsed()
    several = 0
    for name, tasks in contents.items():
        for row, item in enumerate(tasks):
            try:
                task = convert(item, Task, name)
            except InvalidFile as error:
                parsed.add_problem("train", name, f"unreadable annotation: task {row}, {error.field} {error.problem}")
                continue
            done = [annotation for annotation in task["annotations"] if not annotation.get("was_cancelled")]
            several += len(done) > 1
            if done:
                _read_task(parsed, files, name, task["data"], done[0]["result"])
    if several:
        parsed.notes.append(f"{several:,} images have several annotations; the first of each is used.")
    labels = {shape.label for image in parsed.splits["train"] for shape in image.shapes}
    parsed.class_names = tuple(sorted(labels))
    return parsed


def _read_task(parsed: Parsed, files: Files, name: str, data: dict[str, Any], regions: list[Any]) -> None:
    url = next((text for text in data.values() if isinstance(text, str) and _is_image(text)), "")
    file = _find_image(files, url, name)
    if file is None:
        parsed.add_problem("train", make_printable(url) or name, "missing image")
        return
    image = ParsedImage(file, relative=True)
    parsed.splits["train"].append(image)
    labels = _collect_labels(regions)
    for row, item in enumerate(regions):
        try:
            region = convert(item, Region, name)
            if region["type"] in ("labels", "choices", "textarea", "relation"):
                continue
            image.size = _read_size(region) or image.size
            image.shapes += _make_shapes(region, labels, f"region {region.get('id', row)}")
        except (InvalidFile, ValueError) as error:
            what = f"{error.field} {error.problem}" if isinstance(error, InvalidFile) else str(error)
            parsed.add_problem("train", file, f"unreadable annotation: region {row}, {what.strip()}")


def _find_image(files: Files, url: str, name: str) -> str | None:
    path = _strip_url(url)
    base = posixpath.basename(path)
    original = UPLOAD_PREFIX.sub("", base)
    return files.find_image(path, near=name) or (files.find_image(original, near=name) if original != base else None)


def _strip_url(url: str) -> str:
    """Return the path in an address such as /data/local-files/?d=photos/a.jpg or s3://bucket/a%20b.jpg?x=1."""
    address, _, query = url.partition("?")
    local = next((part[2:] for part in query.split("&") if part.startswith("d=")), "")
    return unquote(local or address)


def _is_image(url: str) -> bool:
    return get_suffix(_strip_url(url)) in IMAGE_SUFFIXES


def _read_size(region: Any) -> tuple[int, int] | None:
    height, width = region.get("original_height"), region.get("original_width")
    return (height, width) if height and width else None


def _collect_labels(regions: list[Any]) -> dict[str, list[str]]:
    """Return the labels that stand apart from their regions, by the id that both share."""
    return {
        str(item.get("id")): _read_words(value["labels"])
        for item in regions
        if isinstance(item, dict) and isinstance(value := item.get("value"), dict)
        if isinstance(value.get("labels"), list)
    }


def _read_words(words: list[Any]) -> list[str]:
    """Return the labels that are text."""
    return [make_printable(word) for word in words if isinstance(word, str)]


def _make_shapes(region: Any, apart: dict[str, list[str]], where: str) -> list[Shape]:
    """Make a shape for each label of a region."""
    kind, value = region["type"], region["value"]
    own = value.get(kind)
    words = _read_words(own) if isinstance(own, list) else apart.get(region.get("id", ""), [])
    if not words:
        raise ValueError("no label")
    if kind.startswith("rectangle"):
        shape = _read_rectangle(convert(value, Rectangle, ""), region)
    elif kind.startswith("polygon"):
        points = convert(value, Polygon, "")["points"]
        shape = Shape("", segment=[[number / 100 for point in points for number in point]])
    elif kind.startswith("brush"):
        shape = Shape("", segment=_read_brush(convert(value, Brush, "")["rle"]))
    else:
        raise ValueError(f"{kind} is not supported; rectangles, polygons and brush strokes are")
    return [Shape(word, shape.box, shape.segment, where=where) for word in words]


def _read_rectangle(value: Any, region: Any) -> Shape:
    """Read a rectangle; one that is rotated around its left upper corner becomes the box around it."""
    x, y, width, height = (value[key] / 100 for key in ("x", "y", "width", "height"))
    angle = math.radians(value.get("rotation", 0))
    if not angle:
        return Shape("", (x, y, x + width, y + height))
    pixel_height, pixel_width = _read_size(region) or (1, 1)
    ratio = pixel_width / pixel_height
    along = (width * math.cos(angle), width * math.sin(angle) * ratio)
    across = (-height * math.sin(angle) / ratio, height * math.cos(angle))
    corners = [(x + a * along[0] + b * across[0], y + a * along[1] + b * across[1]) for a in (0, 1) for b in (0, 1)]
    xs, ys = zip(*corners)
    return Shape("", (min(xs), min(ys), max(xs), max(ys)))


def _read_brush(packed: list[int]) -> bytes:
    """Return the bytes of a brush stroke, which are unpacked when the size of the image is known."""
    if not all(0 <= byte < 256 for byte in packed):
        raise ValueError("a brush stroke that is not made of bytes")
    return bytes(packed)
