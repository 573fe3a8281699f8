"""Decoded pixels on disk, keyed by the images' content and the size, so that a second start is immediate.

An entry is a folder: pixels.bin (uint8 [N, C, S, S]), facts.npz and done.json. It is written beside and renamed when
whole. Whatever is wrong with the cache (corrupt, no space, no rights) costs the cache and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.dataset import Dataset
from vitling.data.host import count_cores
from vitling.data.scan import ImageFacts, content_digest, describe_error, scan
from vitling.files import read_json, write_json

_FORMAT = 1  # raise when decoding or the layout changes
_MARGIN = 1 << 30  # bytes of disk that stay free
_PART = ".part-"  # what an entry is called until it is whole
_ABANDONED = 24 * 3600  # seconds after which the process that was writing a part must have been killed

Progress = Callable[[int], None]


@dataclass
class Pixels:
    """uint8 [N, C, S, S]; rows of images that could not be decoded are zeros, `facts.ok` says which. No array where
    the pixels are neither cached nor wanted in memory: they are decoded again when they are needed."""

    array: np.ndarray | None
    facts: ImageFacts
    from_cache: bool


def cache_root() -> Path:
    """VITLING_CACHE, else the user's cache folder."""
    named = os.environ.get("VITLING_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitling"


def decode_all(
    dataset: Dataset,
    size: int,
    config: DataConfig,
    on_progress: Progress | None = None,
    warn: Callable[[str], None] = lambda line: None,
    use_cache: bool = True,
    in_memory: bool = True,
) -> Pixels:
    """The decoded images, out of the cache or decoded now and put there."""
    shape = (len(dataset), config.channels, size, size)

    def without_cache() -> Pixels:
        array = np.zeros(shape, np.uint8) if in_memory else None
        return Pixels(array, scan(dataset, size, array, config, on_progress=on_progress), from_cache=False)

    if not use_cache:
        return without_cache()
    entry = cache_root() / "pixels" / content_key(dataset, size, config)
    try:
        found = _open(entry, shape)
        if found is not None:
            return found
        return _build(entry, shape, dataset, size, config, on_progress)
    except _Corrupt as problem:
        warn(f"The cache of decoded images is damaged ({problem}); building it anew.")
        shutil.rmtree(entry, ignore_errors=True)
        if entry.exists():  # somebody else's, and not ours to mend
            return without_cache()
        return decode_all(dataset, size, config, on_progress, warn, use_cache, in_memory)
    except OSError as problem:
        warn(f"Decoded images are not cached: {problem.strerror or problem}. Training is not affected.")
        return without_cache()


def content_key(dataset: Dataset, size: int, config: DataConfig) -> str:
    with ThreadPoolExecutor(count_cores()) as pool:
        digests = pool.map(lambda i: _digest(dataset, i), range(len(dataset)), chunksize=16)
        whole = hashlib.blake2b(digest_size=16)
        for digest in digests:
            whole.update(digest)
    how = (_FORMAT, len(dataset), size, config.channels, config.bits, config.max_pixels)
    whole.update(repr(how).encode())
    return whole.hexdigest()


def _digest(dataset: Dataset, i: int) -> bytes:
    try:
        raw = dataset.read(i)
    except Exception as problem:  # a row without an image; the scan says what is wrong with it
        return describe_error(problem).encode()
    return content_digest(raw).tobytes()


class _Corrupt(Exception):
    pass


def _open(entry: Path, shape: tuple[int, ...]) -> Pixels | None:
    if not entry.exists():
        return None
    try:
        done = read_json(entry / "done.json")
        with np.load(entry / "facts.npz", allow_pickle=False) as file:
            arrays = dict(file)
        checks = arrays.pop("crc")
        # "c": writable in name only, since torch warns of arrays that are not; the pages stay shared and unchanged
        array = np.memmap(entry / "pixels.bin", np.uint8, "c", shape=shape)
        facts = ImageFacts.from_arrays(arrays)
        fits = tuple(done["shape"]) == shape and len(facts.ok) == shape[0]
    except Exception as problem:
        raise _Corrupt(f"{type(problem).__name__}: {problem}") from problem
    if not fits:
        raise _Corrupt("wrong shape")
    if not np.array_equal(_checks(array), checks):
        raise _Corrupt("checksum")
    with suppress(OSError):  # somebody else's entry can be used all the same
        (entry / "done.json").touch()  # last use, for `_make_room`
    return Pixels(array, facts, from_cache=True)


def _build(
    entry: Path,
    shape: tuple[int, ...],
    dataset: Dataset,
    size: int,
    config: DataConfig,
    on_progress: Progress | None,
) -> Pixels:
    entry.parent.mkdir(parents=True, exist_ok=True)
    _make_room(entry.parent, int(np.prod(shape)))
    part = Path(tempfile.mkdtemp(dir=entry.parent, prefix=_PART))
    try:
        with open(part / "pixels.bin", "wb") as file:  # reserve the space now: a memmap on a full disk is a SIGBUS
            os.posix_fallocate(file.fileno(), 0, int(np.prod(shape)))
        array = np.memmap(part / "pixels.bin", np.uint8, "r+", shape=shape)
        facts = scan(dataset, size, array, config, on_progress=on_progress)
        array.flush()
        columns: dict[str, Any] = {"crc": _checks(array), **facts.to_arrays()}
        np.savez(part / "facts.npz", **columns)
        write_json(part / "done.json", {"shape": list(shape), "name": dataset.name})
        if not entry.exists():  # another process may have been quicker
            part.rename(entry)
        return Pixels(array, facts, from_cache=False)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _checks(array: np.ndarray) -> np.ndarray:
    with ThreadPoolExecutor(count_cores()) as pool:
        values = pool.map(lambda i: zlib.crc32(array[i].data), range(len(array)), chunksize=64)
        return np.fromiter(values, np.uint32, len(array))


def _make_room(folder: Path, wanted: int) -> None:
    """Drop the entries that were used longest ago until VITLING_CACHE_GB (20) holds the new one too."""
    limit = float(os.environ.get("VITLING_CACHE_GB", "20")) * 1e9
    if wanted > limit:
        raise OSError(f"{wanted / 1e9:.1f} GB is over the cache's limit of {limit / 1e9:.0f} GB (VITLING_CACHE_GB)")
    for part in folder.glob(f"{_PART}*"):
        if time.time() - _last_change(part) > _ABANDONED:
            shutil.rmtree(part, ignore_errors=True)
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    kept = wanted
    for entry in sorted(entries, key=_last_use, reverse=True):
        size = _bytes(entry)
        if kept + size > limit:
            shutil.rmtree(entry, ignore_errors=True)
        else:
            kept += size
    if shutil.disk_usage(folder).free < wanted + _MARGIN:
        raise OSError(f"{folder} has too little space for {wanted / 1e9:.1f} GB")


# Another process may delete an entry at any moment, so whatever is gone counts as old and empty.


def _last_use(entry: Path) -> float:
    return _time(entry / "done.json")


def _last_change(part: Path) -> float:
    return max(map(_time, (part, *part.glob("*"))))


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _bytes(entry: Path) -> int:
    try:
        return (entry / "pixels.bin").stat().st_size
    except OSError:
        return 0
