"""Disk cache of decoded pixels, keyed by image content and size, so that a second start is immediate.

An entry is a folder with pixels.bin (uint8 [N, C, S, S]), facts.npz and done.json, written under a temporary name and
renamed when complete. A cache that cannot be used (corrupt, no space, no permission) never stops a run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.content import read_digests
from vitling.data.dataset import Dataset
from vitling.data.host import count_cores, read_number
from vitling.data.scan import ImageFacts, scan
from vitling.files import remove_leftovers, scratch_folder, write_json
from vitling.loading import check_regular, read_npz, read_record

_FORMAT = 1  # increase when decoding or the layout changes
_MIN_FREE_DISK = 1 << 30  # bytes left free for others


class CacheEntry(TypedDict):
    """done.json of a cache entry."""

    shape: list[int]


@dataclass
class Pixels:
    """Decoded images, uint8 [N, C, S, S]; rows that are not `facts.ok` are zero.

    `array` is None if the pixels are neither cached nor in memory; they are then decoded again when needed.
    """

    array: np.ndarray | None
    facts: ImageFacts


def cache_root() -> Path:
    """Return VITLING_CACHE, or else vitling's folder in the user's cache; raise OSError if there is none."""
    if explicit := os.environ.get("VITLING_CACHE"):
        return Path(explicit)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitling"
    except RuntimeError:  # as in a container that runs as a user without an entry in /etc/passwd
        raise OSError("this user has no home directory; set VITLING_CACHE") from None


def redirect_cache(variable: str, name: str) -> None:
    """Let a library keep its files in a folder of vitling's cache, unless the user has set its variable."""
    with suppress(OSError):
        os.environ.setdefault(variable, str(cache_root().absolute() / name))


def decode_all(
    dataset: Dataset,
    size: int,
    config: DataConfig,
    on_progress: Callable[[int], None] | None = None,
    warn: Callable[[str], None] = lambda line: None,
    use_cache: bool = True,
    in_memory: bool = True,
) -> Pixels:
    """Load the decoded images from the cache, or decode and cache them."""
    shape = (len(dataset), config.channels, size, size)

    def decode_uncached() -> Pixels:
        array = np.zeros(shape, np.uint8) if in_memory else None
        return Pixels(array, scan(dataset, size, array, config, on_progress=on_progress))

    if not use_cache:
        return decode_uncached()
    key = hash_dataset(dataset, size, config)
    try:
        entry = cache_root() / "pixels" / key
        found = _open(entry, shape)
        if found is not None:
            return found
        return _build(entry, shape, dataset, size, config, on_progress)
    except _Corrupt as problem:
        warn(f"The cache of decoded images is damaged ({problem}); rebuilding it.")
        shutil.rmtree(entry, ignore_errors=True)
        if entry.exists():  # owned by another user, so it cannot be replaced
            return decode_uncached()
        return decode_all(dataset, size, config, on_progress, warn, use_cache, in_memory)
    except OSError as problem:
        warn(f"Decoded images are not cached: {problem.strerror or problem}. This does not affect training.")
        return decode_uncached()


def hash_dataset(dataset: Dataset, size: int, config: DataConfig) -> str:
    """Hash all images and the settings that affect decoding."""
    key = hashlib.blake2b(read_digests(dataset).tobytes(), digest_size=16)
    settings = (_FORMAT, len(dataset), size, config.channels, config.bits, config.max_pixels)
    key.update(repr(settings).encode())
    return key.hexdigest()


class _Corrupt(Exception):
    pass


def _open(entry: Path, shape: tuple[int, ...]) -> Pixels | None:
    if not entry.exists():
        return None
    try:
        done = read_record(entry / "done.json", CacheEntry)
        arrays = read_npz(entry / "facts.npz")
        checksums = arrays.pop("crc")
        check_regular(entry / "pixels.bin")
        # Copy-on-write ("c"), because torch warns about read-only arrays; nothing is written, so pages stay shared.
        array = np.memmap(entry / "pixels.bin", np.uint8, "c", shape=shape)
        facts = ImageFacts.from_arrays(arrays)
        fits = tuple(done["shape"]) == shape and facts.has_rows(shape[0])
    except Exception as problem:
        raise _Corrupt(f"{type(problem).__name__}: {problem}") from problem
    if not fits:
        raise _Corrupt("wrong shape")
    if not np.array_equal(_compute_checksums(array), checksums):
        raise _Corrupt("checksum")
    with suppress(OSError):  # an entry of another user is usable but not writable
        (entry / "done.json").touch()  # marks the last use for `_make_room`
    return Pixels(array, facts)


def _build(
    entry: Path,
    shape: tuple[int, ...],
    dataset: Dataset,
    size: int,
    config: DataConfig,
    on_progress: Callable[[int], None] | None,
) -> Pixels:
    entry.parent.mkdir(parents=True, exist_ok=True)
    _make_room(entry.parent, int(np.prod(shape)))
    with scratch_folder(entry) as partial:
        with open(partial / "pixels.bin", "wb") as file:
            if hasattr(os, "posix_fallocate"):  # not on macOS. Reserve space: a memmap on a full disk raises SIGBUS
                os.posix_fallocate(file.fileno(), 0, int(np.prod(shape)))
            else:
                file.truncate(int(np.prod(shape)))
        array = np.memmap(partial / "pixels.bin", np.uint8, "r+", shape=shape)
        facts = scan(dataset, size, array, config, on_progress=on_progress)
        array.flush()
        columns: dict[str, Any] = {"crc": _compute_checksums(array), **facts.to_arrays()}
        np.savez(partial / "facts.npz", **columns)
        write_json(partial / "done.json", {"shape": list(shape), "name": dataset.name})
        if not entry.exists():  # another process may have been faster
            partial.rename(entry)
        return Pixels(array, facts)


def _compute_checksums(array: np.ndarray) -> np.ndarray:
    with ThreadPoolExecutor(count_cores()) as pool:
        values = pool.map(lambda i: zlib.crc32(array[i].data), range(len(array)), chunksize=64)
        return np.fromiter(values, np.uint32, len(array))


def _make_room(folder: Path, wanted: int) -> None:
    """Delete the least recently used entries until the new one fits into VITLING_CACHE_GB (default 20)."""
    limit = read_number("VITLING_CACHE_GB", 20.0) * 1e9
    if wanted > limit:
        raise OSError(f"{wanted / 1e9:.1f} GB exceeds the cache limit of {limit / 1e9:.0f} GB (VITLING_CACHE_GB)")
    remove_leftovers(folder)
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    kept = wanted
    for entry in sorted(entries, key=_read_last_use, reverse=True):
        size = _measure_size(entry)
        if kept + size > limit:
            shutil.rmtree(entry, ignore_errors=True)
        else:
            kept += size
    if shutil.disk_usage(folder).free < wanted + _MIN_FREE_DISK:
        raise OSError(f"{folder} has no space for {wanted / 1e9:.1f} GB")


# Another process may delete an entry at any time, so a missing file counts as old and empty.


def _read_last_use(entry: Path) -> float:
    try:
        return (entry / "done.json").stat().st_mtime
    except OSError:
        return 0.0


def _measure_size(entry: Path) -> int:
    try:
        return (entry / "pixels.bin").stat().st_size
    except OSError:
        return 0
