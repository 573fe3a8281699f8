"""Encoded bytes or an array to 8-bit pixels; what cannot be decoded says why in a few words."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from vitling.data.config import MAX_PIXELS

# Damaged metadata is no concern here. catch_warnings would do it too, but it is not safe among threads.
warnings.filterwarnings("ignore", module=r"PIL\.")

# Plugins are called by name, not through Image.open: its decompression-bomb check has one limit for the whole
# process, and comes before the size can be read.
SIGNATURES: tuple[tuple[bytes, type[ImageFile.ImageFile]], ...] = (
    (b"\xff\xd8\xff", JpegImagePlugin.JpegImageFile),
    (b"\x89PNG\r\n\x1a\n", PngImagePlugin.PngImageFile),
    (b"RIFF", WebPImagePlugin.WebPImageFile),
    (b"GIF8", GifImagePlugin.GifImageFile),
    (b"BM", BmpImagePlugin.BmpImageFile),
    (b"II*\0", TiffImagePlugin.TiffImageFile),
    (b"MM\0*", TiffImagePlugin.TiffImageFile),
    (b"II+\0", TiffImagePlugin.TiffImageFile),
    (b"MM\0+", TiffImagePlugin.TiffImageFile),
    *((b"P%d" % kind, PpmImagePlugin.PpmImageFile) for kind in range(1, 7)),
)
END_MARKS = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "GIF": b"\x3b"}
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ORIENTATION = 0x0112
PIL_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class BadImage(Exception):
    """The image cannot be used; the message is a short phrase."""


@dataclass(frozen=True)
class Decoded:
    """`width` and `height` are the original's, upright; a JPEG's pixels may be a smaller draft of it."""

    pixels: Image.Image | np.ndarray
    width: int
    height: int
    mode: str
    format: str


def decode(
    raw: bytes | np.ndarray,
    channels: int = 3,
    bits: int = 16,
    max_pixels: int = MAX_PIXELS,
    at_least: int | None = None,
) -> Decoded:
    """Pixels with `channels` channels, upright. `at_least` allows a draft no smaller than twice that many pixels."""
    if isinstance(raw, np.ndarray):
        return _decode_array(raw, channels, bits, max_pixels)
    if channels not in PIL_MODES:
        raise BadImage(f"an image file gives 1, 3 or 4 channels, not {channels}")
    image = _open(raw)
    _check_size(*image.size, max_pixels)
    kind, mode, full = image.format or "?", image.mode, image.size
    try:
        if at_least is not None:
            image.draft(None, (2 * at_least, 2 * at_least))
        drafted = image.size != full
        image.load()
        upright, turned = _upright(image)
        pixels = _to_mode(upright, channels, bits)
    except BadImage:
        raise
    except Exception as error:
        raise BadImage(_complaint(raw, kind, error)) from error
    if not drafted:
        full = upright.size
    elif turned:
        full = (full[1], full[0])
    return Decoded(pixels, *full, mode, kind)


def squash(decoded: Decoded, size: int, channels: int) -> np.ndarray:
    """uint8 [channels, size, size]: the whole image, its aspect ratio given up."""
    pixels = decoded.pixels
    if isinstance(pixels, np.ndarray):
        planes = [_resize(Image.fromarray(pixels[:, :, c]), size) for c in range(channels)]
        return np.stack(planes)
    resized = _resize(pixels, size)
    return resized[None] if resized.ndim == 2 else np.ascontiguousarray(resized.transpose(2, 0, 1))


def thumbnail(decoded: Decoded, size: int = 16) -> np.ndarray:
    """uint8 [size, size], grey, every pixel an area mean."""
    pixels = decoded.pixels
    if isinstance(pixels, np.ndarray):
        pixels = Image.fromarray(pixels.mean(axis=2).round().astype(np.uint8))
    if pixels.mode == "RGBA":
        pixels = _over_white(pixels)
    return np.asarray(pixels.resize((size, size), Image.Resampling.BOX).convert("L"))


def _resize(image: Image.Image, size: int) -> np.ndarray:
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC))


def _open(raw: bytes) -> ImageFile.ImageFile:
    if not raw:
        raise BadImage("empty file")
    if raw[4:8] == b"ftyp":
        raise BadImage("HEIF, AVIF or video: convert it to JPEG or PNG")
    plugin = next((plugin for mark, plugin in SIGNATURES if raw.startswith(mark)), None)
    if plugin is None or (plugin is WebPImagePlugin.WebPImageFile and raw[8:12] not in b"WEBP"):
        start = ascii(raw[:12].decode("latin-1"))
        raise BadImage(f"not an image (starts with {start})")
    try:
        return plugin(io.BytesIO(raw))
    except Exception as error:
        raise BadImage(_complaint(raw, plugin.format or "?", error)) from error


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise BadImage(f"too large: {width} x {height} pixels (limit {max_pixels:,})")
    if width * height == 0:
        raise BadImage("no pixels")


def _complaint(raw: bytes, kind: str, error: Exception) -> str:
    if "truncated" in str(error).lower() or isinstance(error, EOFError) or _cut_short(raw, kind):
        return "truncated"
    return f"unreadable: {str(error).strip() or type(error).__name__}"


def _cut_short(raw: bytes, kind: str) -> bool:
    if kind in END_MARKS:
        return END_MARKS[kind] not in raw[-32:]
    if kind == "WEBP":
        return len(raw) < 8 + int.from_bytes(raw[4:8], "little")
    if kind == "BMP":
        return len(raw) < int.from_bytes(raw[2:6], "little")
    return len(raw) < 16


def _upright(image: Image.Image) -> tuple[Image.Image, bool]:
    """Turned as its EXIF says, and whether width and height changed places."""
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged EXIF says nothing about the pixels
        orientation = 1
    if orientation not in UPRIGHT:
        return image, False
    return image.transpose(UPRIGHT[orientation]), orientation >= 5


def _to_mode(image: Image.Image, channels: int, bits: int) -> Image.Image:
    if image.mode == "F":
        raise BadImage("floating-point pixels: convert it to 8 or 16 bits")
    if image.mode.startswith("I"):
        image = Image.fromarray(_to_8_bits(np.asarray(image), bits))
    elif image.has_transparency_data and channels != 4:
        image = _over_white(image)
    return image if image.mode == PIL_MODES[channels] else image.convert(PIL_MODES[channels])


def _over_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _to_8_bits(pixels: np.ndarray, bits: int) -> np.ndarray:
    white = 2**bits - 1
    return np.rint(np.clip(pixels, 0, white).astype(np.float32) * (255 / white)).astype(np.uint8)


def _decode_array(array: np.ndarray, channels: int, bits: int, max_pixels: int) -> Decoded:
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3:
        raise BadImage(f"an array of shape {array.shape} where [H, W] or [H, W, C] is wanted")
    if array.dtype not in (np.uint8, np.uint16):
        raise BadImage(f"{array.dtype} pixels: convert them to uint8 or uint16")
    height, width, has = array.shape
    _check_size(width, height, max_pixels)
    mode = f"{array.dtype} x {has}"
    if array.dtype == np.uint16:
        array = _to_8_bits(array, bits)
    if has in PIL_MODES and channels in PIL_MODES:
        image = Image.fromarray(array[:, :, 0] if has == 1 else np.ascontiguousarray(array))
        return Decoded(_to_mode(image, channels, bits), width, height, mode, "array")
    if has != channels:
        raise BadImage(f"{has} channels where {channels} are wanted")
    return Decoded(array, width, height, mode, "array")
