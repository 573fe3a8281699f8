"""Reader for COCO's JSON: polygons, RLE, crowds; one file per split."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from vitling.data.annotations.files import Files, find_split
from vitling.data.annotations.parsed import Box, Parsed, ParsedImage, Polygons, Runs, Shape
from vitling.data.sources.layout import make_printable
from vitling.errors import InvalidFile
from vitling.loading import convert

Id = int | str


class CocoFile(TypedDict):
    images: list[Any]
    annotations: list[Any]
    categories: list[Any]


class CocoImage(TypedDict):
    id: Id
    file_name: str
    width: NotRequired[int | None]
    height: NotRequired[int | None]


class CocoCategory(TypedDict):
    id: Id
    name: str


class CocoAnnotation(TypedDict):
    image_id: Id
    category_id: Id
    id: NotRequired[Id]
    bbox: NotRequired[list[float] | None]
    segmentation: NotRequired[Polygons | Runs | None]
    iscrowd: NotRequired[int | bool | None]
    area: NotRequired[float | None]


def is_coco(content: Any) -> bool:
    """Return whether the content of a JSON file has the keys of COCO's format."""
    return isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys()


def read(files: Files, contents: dict[str, Any], split: str | None = None) -> Parsed:
    """Read annotation files: their names and contents. Without `split`, the names give the splits."""
    parsed = Parsed()
    order: dict[str, Id] = {}
    for name, content in contents.items():
        own_split = split or find_split(name)
        convert(content, CocoFile, name)
        categories = _read_categories(parsed, own_split, name, content["categories"])
        for id, label in categories.items():
            order.setdefault(label, id)
        images = _read_images(parsed, files, own_split, name, content["images"])
        _read_annotations(parsed, own_split, name, content["annotations"], images, categories)
    parsed.class_names = tuple(sorted(order, key=lambda label: (isinstance(order[label], str), order[label], label)))
    return parsed


def _read_categories(parsed: Parsed, split: str, file: str, items: list[Any]) -> dict[Id, str]:
    categories: dict[Id, str] = {}
    for item in items:
        if not (found := _convert(parsed, split, file, item, CocoCategory, "category")):
            continue
        if found["id"] in categories:
            parsed.add_problem(split, file, f"duplicate id: category {found['id']}")
            continue
        categories[found["id"]] = make_printable(found["name"])
    return categories


def _read_images(parsed: Parsed, files: Files, split: str, file: str, items: list[Any]) -> dict[Id, ParsedImage | None]:
    """Read the images by id; None marks those that are left out."""
    images: dict[Id, ParsedImage | None] = {}
    for item in items:
        if not (found := _convert(parsed, split, file, item, CocoImage, "image")):
            continue
        if found["id"] in images:
            parsed.add_problem(split, file, f"duplicate id: image {found['id']}")
            continue
        images[found["id"]] = None
        path = files.find_image(found["file_name"], near=file)
        if path is None:
            parsed.add_problem(split, make_printable(found["file_name"]), "missing image")
            continue
        height, width = found.get("height"), found.get("width")
        image = ParsedImage(path, size=(height, width) if height and width else None)
        images[found["id"]] = image
        parsed.splits[split].append(image)
    return images


def _read_annotations(
    parsed: Parsed,
    split: str,
    file: str,
    items: list[Any],
    images: dict[Id, ParsedImage | None],
    categories: dict[Id, str],
) -> None:
    seen: set[Id] = set()
    for row, item in enumerate(items):
        if not (found := _convert(parsed, split, file, item, CocoAnnotation, "annotation")):
            continue
        id = found.get("id", f"at {row}")
        where = f"annotation {id}"
        if id in seen:
            parsed.add_problem(split, file, f"duplicate id: {where}")
        elif found["image_id"] not in images:
            parsed.add_problem(split, file, f"unknown image: {found['image_id']} of {where}")
        elif found["category_id"] not in categories:
            parsed.add_problem(split, file, f"unknown category: {found['category_id']} of {where}")
        elif image := images[found["image_id"]]:
            image.shapes.append(_make_shape(found, categories[found["category_id"]], where))
        seen.add(id)


def _make_shape(found: Any, label: str, where: str) -> Shape:
    box: Box | None = None
    if found.get("bbox"):
        left, top, width, height = (*found["bbox"], *[float("nan")] * 4)[:4]
        box = (left, top, left + width, top + height)
    return Shape(label, box, found.get("segmentation") or None, bool(found.get("iscrowd")), found.get("area"), where)


def _convert(parsed: Parsed, split: str, file: str, item: Any, kind: Any, noun: str) -> Any:
    try:
        return convert(item, kind, file)
    except InvalidFile as error:
        id = make_printable(str(item.get("id", "?")))[:40] if isinstance(item, dict) else "?"
        parsed.add_problem(split, file, f"unreadable {noun}: {noun} {id}, {error.field or 'entry'} {error.problem}")
        return None
