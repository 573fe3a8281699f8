"""Draw boxes, masks and class maps on pictures."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitling.data.annotations.rle import decode_mask
from vitling.data.annotations.split import IGNORE
from vitling.dense.detections import Detections

_GOLDEN = 0.61803  # turns of the hue between two classes: neighbours differ, and no two of many agree
_OPACITY = 0.5  # of masks
_LINE = 0.004  # width of a box's line, as a fraction of the picture's longer side
_MIN_TEXT = 11  # px
GAP = 8  # px between two pictures


def make_palette(classes: int) -> np.ndarray:
    """Return a colour for each class, uint8 [256, 3]; pixels to ignore are black."""
    colours = np.zeros((256, 3), np.uint8)
    for c in range(min(classes, IGNORE)):
        light, saturation = ((0.95, 0.75), (0.75, 0.9), (1.0, 0.5))[c % 3]
        colours[c] = [round(255 * v) for v in colorsys.hsv_to_rgb(c * _GOLDEN % 1, saturation, light)]
    return colours


def encode_class_map(classes: np.ndarray, count: int) -> Image.Image:
    """Make a palette image of a class map, uint8 [H, W]; its values are the classes."""
    height, width = classes.shape
    image = Image.frombytes("P", (width, height), classes.astype(np.uint8).tobytes())
    image.putpalette(make_palette(count).ravel().tolist())
    return image


def draw_class_map(image: Image.Image, classes: np.ndarray, names: Sequence[str]) -> Image.Image:
    """Blend a class map with the picture, with a legend of the classes in it below; ignored pixels stay as they are."""
    palette, picture = make_palette(len(names)), image.convert("RGB")
    mixed = Image.blend(picture, Image.fromarray(palette[classes]), _OPACITY)
    picture.paste(mixed, mask=Image.fromarray(np.where(classes == IGNORE, 0, 255).astype(np.uint8)))
    counts = np.bincount(classes[classes != IGNORE].ravel(), minlength=len(names))[: len(names)]
    present = [int(c) for c in np.argsort(-counts) if counts[c]]
    return _add_legend(picture, [(names[c], tuple(palette[c].tolist())) for c in present])


def draw_detections(
    image: Image.Image, found: Detections, names: Sequence[str], min_score: float = 0.5, scores: bool = True
) -> Image.Image:
    """Draw the masks and boxes with at least this score, the surest on top."""
    palette, pixels = make_palette(len(names)), np.asarray(image.convert("RGB"), np.float32).copy()
    shown = [int(i) for i in np.argsort(found.scores) if found.scores[i] >= min_score]
    for i in shown if found.masks is not None else ():
        inside = decode_mask(found.masks[i]).astype(bool)  # type: ignore[index]
        pixels[inside] = (1 - _OPACITY) * pixels[inside] + _OPACITY * palette[found.classes[i]]
    picture = Image.fromarray(pixels.round().astype(np.uint8))
    draw, width = ImageDraw.Draw(picture), max(1, round(_LINE * max(picture.size)))
    font = _load_font(picture)
    for i in shown:
        colour = tuple(palette[found.classes[i]].tolist())
        left, top, right, bottom = found.boxes[i].tolist()
        draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=width)
        text = names[found.classes[i]] + (f" {found.scores[i]:.0%}" if scores else "")
        _draw_label(draw, (left, top), text, colour, font)
    return picture


def place_side_by_side(pictures: Sequence[Image.Image], titles: Sequence[str]) -> Image.Image:
    """Place pictures beside each other on white, each below its title."""
    font = _load_font(pictures[0])
    line = round(1.6 * font.size)
    width = sum(picture.width for picture in pictures) + GAP * (len(pictures) - 1)
    sheet = Image.new("RGB", (width, line + max(picture.height for picture in pictures)), "white")
    draw, left = ImageDraw.Draw(sheet), 0
    for picture, title in zip(pictures, titles):
        draw.text((left, 2), title, fill="black", font=font)
        sheet.paste(picture, (left, line))
        left += picture.width + GAP
    return sheet


def shrink(image: Image.Image, side: int) -> Image.Image:
    """Resize an image whose longer side is above `side` to that."""
    factor = side / max(image.size)
    if factor >= 1:
        return image
    return image.resize((max(1, round(image.width * factor)), max(1, round(image.height * factor))))


def _load_font(picture: Image.Image) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(max(_MIN_TEXT, round(max(picture.size) / 45)))
    assert isinstance(font, ImageFont.FreeTypeFont)  # Pillow's own
    return font


def _draw_label(
    draw: ImageDraw.ImageDraw, corner: tuple[float, float], text: str, colour: tuple, font: ImageFont.FreeTypeFont
) -> None:
    """Write a label above a box, or inside if it begins at the upper edge."""
    x, y = corner
    height = font.size + 4
    y = y - height if y >= height else y
    draw.rectangle((x, y, x + draw.textlength(text, font) + 4, y + height), fill=colour)
    draw.text((x + 2, y + 1), text, fill="black" if sum(colour) > 380 else "white", font=font)


def _add_legend(picture: Image.Image, entries: Sequence[tuple[str, tuple]]) -> Image.Image:
    """Add a strip with coloured names below a picture."""
    font = _load_font(picture)
    draw, line = ImageDraw.Draw(picture), round(1.5 * font.size)
    places, x, y = [], 4, 0
    for text, colour in entries:
        width = line + round(draw.textlength(text, font)) + 8
        if x > 4 and x + width > picture.width:
            x, y = 4, y + line
        places.append((x, y, text, colour))
        x += width
    sheet = Image.new("RGB", (picture.width, picture.height + (y + line + 4 if entries else 0)), "white")
    sheet.paste(picture, (0, 0))
    draw = ImageDraw.Draw(sheet)
    for x, y, text, colour in places:
        top = picture.height + 2 + y
        draw.rectangle((x, top + 2, x + font.size, top + 2 + font.size), fill=colour, outline="black")
        draw.text((x + line, top), text, fill="black", font=font)
    return sheet
