"""One pass over all images that decodes them, records their properties and fills the pixel store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.dataset import Dataset, Raw
from vitling.data.decode import BadImage, decode, make_thumbnail, squash
from vitling.data.host import count_cores
from vitling.shortage import raise_if_short

DIGEST_BYTES = 16
THUMB = 16  # side of a thumbnail in pixels
MIN_DRAFT = 64  # pixels; a smaller JPEG draft shifts pixels enough to spoil the comparison of thumbnails
CHUNK = 16  # images per task of the thread pool


@dataclass
class ImageFacts:
    """Properties of images, one row each. Rows that are not ok have a reason and zero or empty columns."""

    ok: np.ndarray  # bool [N]
    width: np.ndarray  # int32 [N], of the original, upright
    height: np.ndarray
    modes: list[str]
    formats: list[str]
    digests: np.ndarray  # uint8 [N, 16]: blake2b of the encoded file
    thumbs: np.ndarray  # uint8 [N, 16, 16], grey
    reasons: dict[int, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, n: int) -> ImageFacts:
        return cls(
            ok=np.zeros(n, bool),
            width=np.zeros(n, np.int32),
            height=np.zeros(n, np.int32),
            modes=[""] * n,
            formats=[""] * n,
            digests=np.zeros((n, DIGEST_BYTES), np.uint8),
            thumbs=np.zeros((n, THUMB, THUMB), np.uint8),
        )

    def __len__(self) -> int:
        return len(self.ok)

    def has_rows(self, n: int) -> bool:
        """Return whether every column has n rows of its type; those of a damaged file may not."""
        expected = vars(ImageFacts.empty(n))
        arrays = {name: (one.dtype, one.shape) for name, one in expected.items() if isinstance(one, np.ndarray)}
        found = {name: (getattr(self, name).dtype, getattr(self, name).shape) for name in arrays}
        words = all(isinstance(word, str) for word in (*self.modes, *self.formats, *self.reasons.values()))
        return (
            found == arrays
            and len(self.modes) == len(self.formats) == n
            and words
            and set(self.reasons) <= set(range(n))
        )

    def take(self, ids: np.ndarray | Sequence[int]) -> ImageFacts:
        """Select rows by id; they get the new ids 0..len(ids)-1."""
        ids = np.asarray(ids, dtype=np.int64)
        return ImageFacts(
            ok=self.ok[ids],
            width=self.width[ids],
            height=self.height[ids],
            modes=[self.modes[i] for i in ids],
            formats=[self.formats[i] for i in ids],
            digests=self.digests[ids],
            thumbs=self.thumbs[ids],
            reasons={new: self.reasons[int(old)] for new, old in enumerate(ids) if int(old) in self.reasons},
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Convert to arrays for np.savez that need no pickle."""
        return {
            "ok": self.ok,
            "width": self.width,
            "height": self.height,
            "modes": np.array(self.modes, dtype=np.str_),
            "formats": np.array(self.formats, dtype=np.str_),
            "digests": self.digests,
            "thumbs": self.thumbs,
            "bad_ids": np.array(list(self.reasons), dtype=np.int64),
            "bad_reasons": np.array(list(self.reasons.values()), dtype=np.str_),
        }

    @classmethod
    def from_arrays(cls, arrays) -> ImageFacts:
        """Invert `to_arrays`, from a dict or an open npz file."""
        return cls(
            **{name: arrays[name] for name in ("ok", "width", "height", "digests", "thumbs")},
            modes=arrays["modes"].tolist(),
            formats=arrays["formats"].tolist(),
            reasons=dict(zip(arrays["bad_ids"].tolist(), arrays["bad_reasons"].tolist())),
        )


def scan(
    dataset: Dataset,
    size: int | None = None,
    out: np.ndarray | None = None,
    config: DataConfig | None = None,
    workers: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ImageFacts:
    """Read and decode every image once, and write its squashed pixels [C, size, size] to `out`.

    A bad image never raises. `on_progress` is called with the number done, in the caller's thread.
    """
    config = config or DataConfig()
    n = len(dataset)
    if out is not None and (size is None or out.shape != (n, config.channels, size, size)):
        raise ValueError(f"out has shape {out.shape}, expected {(n, config.channels, size, size)}")
    facts = ImageFacts.empty(n)

    def scan_chunk(start: int) -> int:
        stop = min(start + CHUNK, n)
        for i in range(start, stop):
            _scan_image(dataset, i, facts, size, out, config)
        return stop

    pool = ThreadPoolExecutor(workers or count_cores(), thread_name_prefix="scan")
    try:
        for done in pool.map(scan_chunk, range(0, n, CHUNK)):
            if on_progress:
                on_progress(done)
    finally:
        pool.shutdown(cancel_futures=True)
    facts.reasons = dict(sorted(facts.reasons.items()))
    return facts


def describe_error(error: Exception) -> str:
    """Describe in a few words why an image cannot be used."""
    if isinstance(error, BadImage):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    return f"cannot be read: {str(error) or type(error).__name__}"


def _scan_image(
    dataset: Dataset,
    i: int,
    facts: ImageFacts,
    size: int | None,
    out: np.ndarray | None,
    config: DataConfig,
) -> None:
    try:
        raw = dataset.read(i)
        facts.digests[i] = hash_image(raw)
        decoded = decode(raw, config.channels, config.bits, config.max_pixels, draft_size=size or MIN_DRAFT)
        if out is not None and size is not None:
            out[i] = squash(decoded, size, config.channels)
        facts.thumbs[i] = make_thumbnail(decoded, THUMB)
    except Exception as error:  # one bad image must not stop the scan
        raise_if_short(error)
        facts.reasons[i] = describe_error(error)
        return
    facts.width[i], facts.height[i] = decoded.width, decoded.height
    facts.modes[i], facts.formats[i] = decoded.mode, decoded.format
    facts.ok[i] = True


def hash_image(raw: Raw) -> np.ndarray:
    """Hash the encoded file, or the shape and pixels of an array, to 16 bytes of blake2b."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    if isinstance(raw, np.ndarray):
        digest.update(f"{raw.shape}{raw.dtype}".encode())
        raw = np.ascontiguousarray(raw).tobytes()
    digest.update(raw)
    return np.frombuffer(digest.digest(), np.uint8)
