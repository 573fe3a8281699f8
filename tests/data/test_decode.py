from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from contextlib import suppress

import numpy as np
import pytest
from pictures import encoded, picture
from PIL import Image, ImageFile

from vitling.data.decode import BadImage, decode, make_thumbnail, read_size, squash


def pixels(raw, **options) -> np.ndarray:
    return np.asarray(decode(raw, **options).pixels)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_every_format_gives_rgb_of_the_right_size(format):
    found = decode(encoded(picture(1), format))
    assert (found.width, found.height, found.format) == (48, 32, format)
    assert found.pixels.mode == "RGB"
    assert found.pixels.size == (48, 32)
    assert np.abs(np.asarray(found.pixels).astype(int) - np.asarray(picture(1))).mean() < 12


@pytest.mark.parametrize(
    ("mode", "format"),
    [
        ("1", "PNG"),
        ("L", "PNG"),
        ("L", "JPEG"),
        ("CMYK", "JPEG"),
        ("CMYK", "TIFF"),
        ("P", "PNG"),
        ("P", "GIF"),
    ],
)
def test_opaque_modes_match_pil_conversion(mode, format):
    image = picture(2).convert(mode)
    reference = Image.open(io.BytesIO(encoded(image, format))).convert("RGB")
    assert np.array_equal(pixels(encoded(image, format)), np.asarray(reference))


def test_transparent_images_are_pasted_on_white():
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[0, 0] = (255, 0, 0, 255)
    rgba[0, 1] = (0, 0, 0, 0)
    rgba[1, 0] = (0, 0, 0, 127)
    seen = pixels(encoded(Image.fromarray(rgba)))
    assert seen[0, 0].tolist() == [255, 0, 0]
    assert seen[0, 1].tolist() == [255, 255, 255]
    assert abs(int(seen[1, 0, 0]) - 128) <= 1
    assert np.array_equal(pixels(encoded(Image.fromarray(rgba)), channels=4), rgba)


def test_grey_with_alpha_and_a_transparent_palette_colour():
    grey = np.array([[[10, 255], [10, 0]]], np.uint8)
    assert pixels(encoded(Image.fromarray(grey, "LA")), channels=1).tolist() == [[10, 255]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 200, 0, 0])
    palette.putpixel((1, 0), 1)
    assert pixels(encoded(palette, transparency=0)).tolist() == [[[255, 255, 255], [200, 0, 0]]]


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_by_the_white_point_and_clipped(format):
    deep = np.array([[0, 4095, 2048, 65535]], np.uint16)
    raw = encoded(Image.fromarray(deep), format)
    assert pixels(raw, channels=1, bits=12).tolist() == [[0, 255, 128, 255]]
    assert pixels(raw, channels=1).tolist() == [[0, 16, 8, 255]]
    assert pixels(raw, bits=12).shape == (1, 4, 3)


def test_thirty_two_bit_integers_are_scaled_too():
    raw = encoded(Image.fromarray(np.array([[-5, 4095]], np.int32)), "TIFF")
    assert pixels(raw, channels=1, bits=12).tolist() == [[0, 255]]


def test_float_pixels_are_rejected_with_advice():
    with pytest.raises(BadImage, match="floating-point pixels: convert"):
        decode(encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(format, orientation):
    image = picture(3, 64, 40)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if format == "WEBP" else {"quality": 95} if format == "JPEG" else {}
    raw = encoded(image, format, exif=exif, **options)
    found = decode(raw)
    upright = np.asarray(image.transpose(_TURN[orientation]) if orientation > 1 else image).astype(int)
    assert (found.height, found.width) == read_size(raw) == upright.shape[:2]
    assert np.abs(np.asarray(found.pixels) - upright).mean() < 6


_TURN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def test_draft_reports_the_original_size_and_has_twice_the_requested():
    exif = Image.Exif()
    exif[0x0112] = 6
    found = decode(encoded(picture(4, 1600, 1000), "JPEG", exif=exif), draft_size=100)
    assert (found.width, found.height) == (1000, 1600)
    assert found.pixels.size == (250, 400)
    assert decode(encoded(picture(4, 1600, 1000), "JPEG")).pixels.size == (1600, 1000)


def test_draft_squashes_to_nearly_the_same_pixels():
    raw = encoded(picture(5, 900, 700), "JPEG")
    whole, draft = squash(decode(raw), 64, 3), squash(decode(raw, draft_size=64), 64, 3)
    assert np.abs(whole.astype(int) - draft).mean() < 1.5


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_cut_file_is_reported_as_truncated(format, share):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8))
    raw = encoded(noise, format)
    with pytest.raises(BadImage, match="truncated" if format != "TIFF" else "truncated|unreadable"):
        decode(raw[: int(len(raw) * share)], draft_size=16)


def test_truncated_jpeg_is_detected_in_a_draft():
    raw = encoded(picture(6, 1200, 900), "JPEG", quality=95)
    with pytest.raises(BadImage, match=r"^truncated$"):
        decode(raw[: len(raw) * 9 // 10], draft_size=16)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "^empty file$"),
        (b"<!DOCTYPE html>", r"^not an image \(starts with '<!DOCTYPE ht'\)$"),
        (b"\x00\x01\x02\x03", r"^not an image \(starts with '\\x00"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "^not an image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "^HEIF"),
        (b"BM this is a text about something else entirely, long enough", "^(unreadable|truncated)"),
    ],
)
def test_non_images_are_rejected_with_a_reason(raw, reason):
    with pytest.raises(BadImage, match=reason):
        decode(raw)


def test_damaged_data_is_unreadable():
    raw = bytearray(encoded(picture(7)))
    raw[50:70] = b"\xff" * 20
    with pytest.raises(BadImage, match=r"^unreadable: "):
        decode(bytes(raw))


def bomb(width: int, height: int) -> bytes:
    """Create a PNG whose header claims more pixels than it has."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + chunks


def test_size_is_checked_before_decoding_instead_of_by_pil(recwarn):
    with pytest.raises(BadImage, match=r"^too large: 60000 x 50000 pixels \(limit 100,000,000\)$"):
        decode(bomb(60000, 50000))
    with pytest.raises(BadImage, match=r"^too large: 48 x 32"):
        decode(encoded(picture(1)), max_pixels=1000)
    assert not [w for w in recwarn if "bomb" in str(w.message)]
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_pil_does_not_warn():
    code = (
        "import io; from PIL import Image; from vitling.data.decode import decode; f = io.BytesIO();"
        "im = Image.new('P', (2, 2)); im.save(f, 'PNG', transparency=b'\\x00\\x80'); decode(f.getvalue());"
        "f = io.BytesIO(); Image.new('L', (9, 9)).save(f, 'JPEG',"
        "exif=b'Exif\\0\\0MM\\0*\\0\\0\\0\\x08\\0\\x05\\1\\x12');"
        "decode(f.getvalue())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_arrays_of_any_channel_count():
    rng = np.random.default_rng(0)
    seven = rng.integers(0, 256, (6, 8, 7), dtype=np.uint8)
    found = decode(seven, channels=7)
    assert (found.width, found.height, found.format) == (8, 6, "array")
    assert squash(found, 4, 7).shape == (7, 4, 4)
    assert make_thumbnail(found).shape == (16, 16)
    with pytest.raises(BadImage, match="7 channels, expected 3"):
        decode(seven)
    with pytest.raises(BadImage, match="1, 3 or 4 channels, not 7"):
        decode(encoded(picture(1)), channels=7)
    with pytest.raises(BadImage, match="float64 pixels"):
        decode(np.ones((4, 4, 3)))


def test_arrays_convert_between_grey_and_colour_like_files():
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert np.array_equal(pixels(grey)[:, :, 1], grey)
    assert np.array_equal(pixels(np.stack([grey] * 3, axis=2), channels=1), grey)
    assert pixels(np.full((2, 2, 1), 4095, np.uint16), channels=1, bits=12).tolist() == [[255, 255]] * 2


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_squash_returns_uint8_channels_first(channels):
    out = squash(decode(encoded(picture(8)), channels=channels), 24, channels)
    assert out.shape == (channels, 24, 24)
    assert out.dtype == np.uint8


def test_squash_is_antialiased():
    stripes = np.zeros((256, 256), np.uint8)
    stripes[:, ::2] = 255
    assert np.ptp(squash(decode(stripes, channels=1), 32, 1)[0, 4:-4, 4:-4]) < 20


@pytest.mark.filterwarnings("ignore::UserWarning")  # pytest undoes the filter that decode sets
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_damaged_bytes_raise_only_bad_image(format):
    raw = encoded(picture(9), format)
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = np.frombuffer(raw, np.uint8).copy()
        where = rng.integers(4, min(len(raw), 400), 6)
        damaged[where] = rng.integers(0, 256, 6)
        with suppress(BadImage):
            decode(damaged.tobytes(), max_pixels=10_000, draft_size=16)


def test_a_jpeg_of_thousands_of_scans_is_refused():
    out = io.BytesIO()
    Image.new("L", (80, 80), 100).save(out, "jpeg", progressive=True)
    raw = out.getvalue()
    last = raw[raw.rfind(b"\xff\xda") : -2]
    assert pixels(raw[:-2] + 5 * last + raw[-2:]).shape == (80, 80, 3)
    with pytest.raises(BadImage, match="too many scans"):
        decode(raw[:-2] + 2500 * last + raw[-2:])
