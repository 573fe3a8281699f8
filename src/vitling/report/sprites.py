"""Thumbnails in WebP sheets, and pictures as data URIs."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

from vitling.report.data import Sprites

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 56  # px of a tile
COLUMNS, PER_SHEET = 20, 400
AT_ONCE = 4  # sheets
QUALITY = 72  # of WebP: about 1.3 kB for a tile of a photo


def make_sprites(images: Iterable[Image], max_bytes: int) -> tuple[Sprites, int]:
    """Draw square images as tiles until the sheets take `max_bytes`; return the sheets and the number of tiles."""
    sheets: list[str] = []
    size, tiles, rest = 0, 0, iter(images)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while size < max_bytes and (groups := _take_groups(rest)):
            for group, sheet in zip(groups, pool.map(lambda group: _encode(_draw_sheet(group), QUALITY), groups)):
                if size >= max_bytes or (sheets and size + len(sheet) > max_bytes):
                    return Sprites(tuple(sheets), SIDE, COLUMNS, PER_SHEET), tiles
                sheets.append(_to_uri(sheet))
                size, tiles = size + len(sheet), tiles + len(group)
    return Sprites(tuple(sheets), SIDE, COLUMNS, PER_SHEET), tiles


def _take_groups(images: Iterator[Image]) -> list[list[Image]]:
    """Take the images of the next sheets, which are encoded side by side."""
    groups = (list(islice(images, PER_SHEET)) for _ in range(AT_ONCE))
    return [group for group in groups if group]


def encode_picture(image: Image, quality: int = 82) -> str:
    """Encode a picture as a WebP data URI."""
    return _to_uri(_encode(image, quality))


def _draw_sheet(group: list[Image]) -> Image:
    from PIL import Image

    rows = -(-len(group) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * SIDE, rows * SIDE))
    for i, image in enumerate(group):
        row, column = divmod(i, COLUMNS)
        tile = image.resize((SIDE, SIDE)) if image.size != (SIDE, SIDE) else image
        sheet.paste(tile, (column * SIDE, row * SIDE))
    return sheet


def _encode(image: Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=4)
    return buffer.getvalue()


def _to_uri(content: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(content).decode()}"
