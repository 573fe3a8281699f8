"""Content hash of a split: its images and their labels, independent of their location and order.

An image's record is blake2b over the bytes of its encoded file (or the shape, type and pixels of an array) and the
sorted names of its classes. The hash of a split is blake2b over the sorted records of all its images, bad ones
included, as 16 hexadecimal digits. File names, folders, the order of images and the numbers of classes do not count;
duplicates do. A folder and a tar of the same files have the same hash; re-encoded images have a different one.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vitling.data.dataset import UNLABELLED, Dataset
from vitling.data.host import count_cores
from vitling.data.scan import DIGEST_BYTES, hash_image
from vitling.shortage import raise_if_short

_VERSION = b"vitling split 1"  # change when the definition above changes
_HASH_BYTES = 8
_CHUNK = 64  # images per task of the thread pool


def hash_content(dataset: Dataset) -> str:
    """Read all files of a split and hash them. Use `hash_records` where their digests are known already."""
    return hash_records(make_records(dataset, read_digests(dataset)))


def read_digests(dataset: Dataset) -> np.ndarray:
    """Hash each image file, uint8 [N, 16], in threads and without decoding; zeros if it cannot be read."""
    digests = np.zeros((len(dataset), DIGEST_BYTES), np.uint8)

    def read_chunk(start: int) -> None:
        for i in range(start, min(start + _CHUNK, len(dataset))):
            try:
                digests[i] = hash_image(dataset.read(i))
            except Exception as problem:  # such as a row without an image, which the scan reports
                raise_if_short(problem)
                digests[i] = 0

    with ThreadPoolExecutor(count_cores(), thread_name_prefix="hash") as pool:
        list(pool.map(read_chunk, range(0, len(dataset), _CHUNK)))
    return digests


def make_records(dataset: Dataset, digests: np.ndarray) -> np.ndarray:
    """Combine the digest of each image with its labels, uint8 [N, 16]."""
    records = np.empty((len(dataset), DIGEST_BYTES), np.uint8)
    for i in range(len(dataset)):
        record = hashlib.blake2b(digests[i].tobytes(), digest_size=DIGEST_BYTES)
        for name in _list_classes(dataset, i):
            record.update(b"\0" + name.encode())
        records[i] = np.frombuffer(record.digest(), np.uint8)
    return records


def hash_records(*records: np.ndarray) -> str:
    """Hash the records of a split, or of the parts into which it was divided."""
    lines = sorted(row.tobytes() for part in records for row in part)
    return hashlib.blake2b(b"".join([_VERSION, *lines]), digest_size=_HASH_BYTES).hexdigest()


def _list_classes(dataset: Dataset, i: int) -> list[str]:
    labels = dataset.labels if dataset.labels is not None else dataset.partial_labels
    if labels is None:
        return []
    if labels.ndim == 2:
        return sorted(dataset.class_names[c] for c in np.flatnonzero(labels[i]))
    return [] if labels[i] == UNLABELLED else [dataset.class_names[labels[i]]]
