"""Decoding of image files and arrays to 8-bit pixels, with a short reason for what cannot be decoded."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import numpy as np
from PIL import (
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    ImageFile,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from vitling.data.config import MAX_PIXELS

# Damaged metadata does not matter here. catch_warnings is not thread-safe.
warnings.filterwarnings("ignore", module=r"PIL\.")

# Plugins are called directly because the decompression-bomb check of Image.open has one limit per process and comes
# before the size can be read.
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
MAX_SCANS = 500  # of a JPEG file; encoders write about ten, and each is a pass over all pixels
END_MARKERS = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "GIF": b"\x3b"}
PIL_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class BadImage(Exception):
    """An image that cannot be used; the message is a short phrase."""


@dataclass(frozen=True)
class Decoded:
    """Decoded image. `width` and `height` are those of the upright original; JPEG pixels may be a smaller draft."""

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
    draft_size: int | None = None,
) -> Decoded:
    """Decode to upright pixels with `channels` channels; `draft_size` allows drafts of at least twice that side."""
    if isinstance(raw, np.ndarray):
        return _decode_array(raw, channels, bits, max_pixels)
    if channels not in PIL_MODES:
        raise BadImage(f"image files have 1, 3 or 4 channels, not {channels}")
    image = _open(raw)
    _check_size(*image.size, max_pixels)
    kind, mode, full = image.format or "?", image.mode, image.size
    try:
        if draft_size is not None:
            image.draft(None, (2 * draft_size, 2 * draft_size))
        drafted = image.size != full
        image.load()
        swapped = _swaps_sides(image)
        _turn_upright(image)
        pixels = _convert_mode(image, channels, bits)
    except BadImage:
        raise
    except Exception as error:
        raise BadImage(_describe_failure(raw, kind, error)) from error
    if not drafted:
        full = image.size
    elif swapped:
        full = (full[1], full[0])
    return Decoded(pixels, *full, mode, kind)


def read_size(raw: bytes, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return height and width of the upright image from its header."""
    image = _open(raw)
    _check_size(*image.size, max_pixels)
    width, height = image.size
    swapped = image.format != "TIFF" and _swaps_sides(image)  # Pillow turns the size of a TIFF as it opens it
    return (width, height) if swapped else (height, width)


def decode_indices(raw: bytes, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode a file whose pixels are numbers, such as a palette PNG, to [H, W]; colours raise BadImage."""
    image = _open(raw)
    _check_size(*image.size, max_pixels)
    try:
        values = np.asarray(image)
    except Exception as error:
        raise BadImage(_describe_failure(raw, image.format or "?", error)) from error
    if values.ndim == 3:
        colours = values[..., :3] if values.shape[2] > 2 else values[..., :1]
        if (colours != colours[..., :1]).any():
            raise BadImage("a mask in colours: save the number of the class of each pixel instead")
        values = values[..., 0]
    if values.dtype.kind == "f":
        raise BadImage("floating-point pixels: save the number of the class of each pixel instead")
    return values


def squash(decoded: Decoded, size: int, channels: int) -> np.ndarray:
    """Resize the whole image to uint8 [channels, size, size], ignoring its aspect ratio."""
    pixels = decoded.pixels
    if isinstance(pixels, np.ndarray):
        planes = [_resize(Image.fromarray(pixels[:, :, c]), size) for c in range(channels)]
        return np.stack(planes)
    resized = _resize(pixels, size)
    return resized[None] if resized.ndim == 2 else np.ascontiguousarray(resized.transpose(2, 0, 1))


def make_thumbnail(decoded: Decoded, size: int = 16) -> np.ndarray:
    """Resize to uint8 [size, size], grey, by area averages."""
    pixels = decoded.pixels
    if isinstance(pixels, np.ndarray):
        pixels = Image.fromarray(pixels.mean(axis=2).round().astype(np.uint8))
    if pixels.mode == "RGBA":
        pixels = _paste_on_white(pixels)
    return np.asarray(pixels.resize((size, size), Image.Resampling.BOX).convert("L"))


def _resize(image: Image.Image, size: int) -> np.ndarray:
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC))


def _open(raw: bytes) -> ImageFile.ImageFile:
    if not raw:
        raise BadImage("empty file")
    if raw[4:8] == b"ftyp":
        raise BadImage("HEIF, AVIF or video: convert it to JPEG or PNG")
    plugin = next((plugin for signature, plugin in SIGNATURES if raw.startswith(signature)), None)
    if plugin is JpegImagePlugin.JpegImageFile and raw.count(b"\xff\xda") > MAX_SCANS:
        raise BadImage("a JPEG file of too many scans")
    if plugin is None or (plugin is WebPImagePlugin.WebPImageFile and raw[8:12] not in b"WEBP"):
        start = ascii(raw[:12].decode("latin-1"))
        raise BadImage(f"not an image (starts with {start})")
    try:
        return plugin(io.BytesIO(raw))
    except Exception as error:
        raise BadImage(_describe_failure(raw, plugin.format or "?", error)) from error


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise BadImage(f"too large: {width} x {height} pixels (limit {max_pixels:,})")
    if width * height == 0:
        raise BadImage("no pixels")


def _describe_failure(raw: bytes, kind: str, error: Exception) -> str:
    if "truncated" in str(error).lower() or isinstance(error, EOFError) or _is_truncated(raw, kind):
        return "truncated"
    return f"unreadable: {str(error).strip() or type(error).__name__}"


def _is_truncated(raw: bytes, kind: str) -> bool:
    if kind in END_MARKERS:
        return END_MARKERS[kind] not in raw[-32:]
    if kind == "WEBP":
        return len(raw) < 8 + int.from_bytes(raw[4:8], "little")
    if kind == "BMP":
        return len(raw) < int.from_bytes(raw[2:6], "little")
    return len(raw) < 16


def _turn_upright(image: Image.Image) -> None:
    """Apply the EXIF orientation."""
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # damaged EXIF, while the pixels may be fine
        pass


def _swaps_sides(image: Image.Image) -> bool:
    """Return whether the EXIF orientation swaps width and height."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
    except Exception:  # damaged EXIF
        return False


def _convert_mode(image: Image.Image, channels: int, bits: int) -> Image.Image:
    if image.mode == "F":
        raise BadImage("floating-point pixels: convert it to 8 or 16 bits")
    if image.mode.startswith("I"):
        image = Image.fromarray(_convert_to_8_bits(np.asarray(image), bits))
    elif image.has_transparency_data and channels != 4:
        image = _paste_on_white(image)
    return image if image.mode == PIL_MODES[channels] else image.convert(PIL_MODES[channels])


def _paste_on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _convert_to_8_bits(pixels: np.ndarray, bits: int) -> np.ndarray:
    white = 2**bits - 1
    return np.rint(np.clip(pixels, 0, white).astype(np.float32) * (255 / white)).astype(np.uint8)


def _decode_array(array: np.ndarray, channels: int, bits: int, max_pixels: int) -> Decoded:
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3:
        raise BadImage(f"array of shape {array.shape}, expected [H, W] or [H, W, C]")
    if array.dtype not in (np.uint8, np.uint16):
        raise BadImage(f"{array.dtype} pixels: convert them to uint8 or uint16")
    height, width, found_channels = array.shape
    _check_size(width, height, max_pixels)
    mode = f"{array.dtype} x {found_channels}"
    if array.dtype == np.uint16:
        array = _convert_to_8_bits(array, bits)
    if found_channels in PIL_MODES and channels in PIL_MODES:
        image = Image.fromarray(array[:, :, 0] if found_channels == 1 else np.ascontiguousarray(array))
        return Decoded(_convert_mode(image, channels, bits), width, height, mode, "array")
    if found_channels != channels:
        raise BadImage(f"{found_channels} channels, expected {channels}")
    return Decoded(array, width, height, mode, "array")
