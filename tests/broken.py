"""Ten files that cannot be read as images, each for another reason."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from tests.conftest import make_image


def write_ten(folder: Path) -> list[str]:
    """Write the files and return their names, sorted."""
    files = {
        "empty.jpg": b"",
        "cut.jpg": _encode("JPEG")[:700],
        "cut.png": _encode("PNG")[:900],
        "cut.gif": _encode("GIF")[:300],
        "text.jpg": b"A text file with the wrong suffix.\n",
        "page.png": b"<!DOCTYPE html><html><body>404 not found</body></html>",
        "bomb.png": _make_bomb(),
        "noise.webp": np.random.default_rng(0).bytes(2000),
        "float.tiff": _make_float_tiff(),
        "archive.bmp": _make_zip(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return sorted(files)


def _encode(format: str) -> bytes:
    buffer = io.BytesIO()
    make_image(0, 77, width=60, height=60).save(buffer, format)
    return buffer.getvalue()


def _make_bomb() -> bytes:
    """Return a PNG whose header claims 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _make_float_tiff() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.linspace(-1, 1, 400, dtype=np.float32).reshape(20, 20)).save(buffer, "TIFF")
    return buffer.getvalue()


def _make_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", "hello")
    return buffer.getvalue()
