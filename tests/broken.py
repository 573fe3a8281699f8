"""Ten files that are no images, each for another reason."""

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
    """Their names, sorted."""
    files = {
        "empty.jpg": b"",
        "cut.jpg": _encoded("JPEG")[:700],
        "cut.png": _encoded("PNG")[:900],
        "cut.gif": _encoded("GIF")[:300],
        "text.jpg": b"I am a text, and somebody renamed me.\n",
        "page.png": b"<!DOCTYPE html><html><body>404 not found</body></html>",
        "bomb.png": _bomb(),
        "noise.webp": np.random.default_rng(0).bytes(2000),
        "float.tiff": _float_tiff(),
        "archive.bmp": _zip(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return sorted(files)


def _encoded(format: str) -> bytes:
    buffer = io.BytesIO()
    make_image(0, 77, width=60, height=60).save(buffer, format)
    return buffer.getvalue()


def _bomb() -> bytes:
    """A PNG that says it has 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _float_tiff() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.linspace(-1, 1, 400, dtype=np.float32).reshape(20, 20)).save(buffer, "TIFF")
    return buffer.getvalue()


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", "hello")
    return buffer.getvalue()
