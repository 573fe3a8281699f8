"""Thumbnails of decoded images, for the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from PIL import Image
from torch import Tensor

from vitling.data.host import count_cores
from vitling.data.store import Store
from vitling.report.sprites import SIDE
from vitling.views.sheet import to_image

BATCH_BYTES = 2**27  # of pixels that are copied from the device at once
REDUCING_GAP = 3.0  # PIL shrinks to this multiple of a thumbnail with a fast filter first


def draw_thumbnails(images: Sequence[tuple[Store, int]]) -> Iterator[Image.Image]:
    """Draw the centres of images, each a row of a store, as squares."""
    stores = {id(store): store for store, _ in images}
    largest = max((store.channels * store.size**2 for store in stores.values()), default=1)
    batch = max(1, BATCH_BYTES // largest)
    with ThreadPoolExecutor(count_cores()) as pool:
        for start in range(0, len(images), batch):
            group = images[start : start + batch]
            drawn: dict[int, Image.Image] = {}
            for key in {id(store): None for store, _ in group}:
                store, places = stores[key], [place for place, (own, _) in enumerate(group) if id(own) == key]
                pixels, aspects = store.fetch(np.array([group[place][1] for place in places], dtype=np.int64))
                draw = partial(_draw_centre, size=store.size)
                drawn |= zip(places, pool.map(draw, pixels.cpu(), aspects.tolist()))
            yield from (drawn[place] for place in range(len(group)))


def _draw_centre(pixels: Tensor, aspect: float, size: int) -> Image.Image:
    """Draw the centre of an image that was squashed to a square. Tiny images keep their pixels visible."""
    width, height = size * min(1.0, 1 / aspect), size * min(1.0, aspect)
    left, top = (size - width) / 2, (size - height) / 2
    box = (left, top, left + width, top + height)
    if size <= SIDE // 2:
        return to_image(pixels).resize((SIDE, SIDE), Image.Resampling.NEAREST, box)
    return to_image(pixels).resize((SIDE, SIDE), Image.Resampling.LANCZOS, box, REDUCING_GAP)
