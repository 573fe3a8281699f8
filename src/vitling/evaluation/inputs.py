"""Images given by the user: paths, folders, globs, PIL images, arrays."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from vitling.data.dataset import Dataset, Raw
from vitling.data.sources.layout import make_printable
from vitling.data.sources.source import IMAGE_SUFFIXES
from vitling.errors import UserError
from vitling.loading import find_matches, read_bytes

Input = str | os.PathLike | Image.Image | np.ndarray
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


@dataclass(frozen=True)
class Source:
    """An image and its name in tables; `read` may raise OSError."""

    name: str
    read: Callable[[], Raw]


def find_images(
    patterns: str | os.PathLike | Iterable[str | os.PathLike], suffixes: Set[str] = IMAGE_SUFFIXES
) -> list[Path]:
    """List files, the images in folders and below, and matches of globs; each once, in the given order."""
    named = [patterns] if isinstance(patterns, str | os.PathLike) else list(patterns)
    found = [path for pattern in named for path in _find_files(os.fspath(pattern), suffixes)]
    return list(dict.fromkeys(found))


def list_sources(inputs: Input | Sequence[Input]) -> list[Source]:
    """List the images of any kind of input."""
    several = list(inputs) if isinstance(inputs, Iterable) and not isinstance(inputs, Input) else [inputs]
    sources: list[Source] = []
    for one in several:
        if isinstance(one, str | os.PathLike):
            sources += [Source(make_printable(str(path)), partial(read_bytes, path)) for path in find_images(one)]
        elif isinstance(one, Image.Image):
            sources.append(Source(f"image {len(sources)}", lambda image=one: _encode_png(image)))  # type: ignore[misc]
        elif isinstance(one, np.ndarray):
            sources.append(Source(f"array {len(sources)}", lambda array=one: array))  # type: ignore[misc]
        else:
            raise UserError(f"A {type(one).__name__} is not an image. Give a path, a PIL image or an array.")
    return sources


def list_dataset_sources(dataset: Dataset) -> list[Source]:
    """List the images of a dataset."""
    return [Source(key, partial(dataset.read, i)) for i, key in enumerate(dataset.keys)]


def _find_files(pattern: str, suffixes: Set[str]) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in suffixes and p.is_file())
    elif path.exists():
        return [path]
    else:
        found = [p for p in find_matches(pattern) if p.is_file()]
    if not found:
        raise UserError(f"There are no images at {pattern}.")
    return found


def _encode_png(image: Image.Image) -> bytes:
    """Encode a PIL image, so that modes, palettes and transparency are treated as in files."""
    image = ImageOps.exif_transpose(image)
    image = image if image.mode in _PNG_MODES else image.convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
