"""Near duplicates that a hold-out must not separate: frames of a burst, resized or re-encoded copies."""

from __future__ import annotations

from contextlib import suppress
from weakref import WeakKeyDictionary

import numpy as np

from vitling.data.cache import cache_root, hash_dataset
from vitling.data.config import DataConfig
from vitling.data.dataset import Dataset, Reader
from vitling.data.duplicates import cluster_near, merge_clusters
from vitling.data.scan import ImageFacts, scan
from vitling.errors import InvalidFile
from vitling.files import atomic_write
from vitling.loading import read_npz

MAX_IMAGES = 20_000  # images; larger datasets skip the search, which decodes every image
MAX_FRACTION = 0.1  # of all images; larger clusters are blank or placeholder images, which a hold-out may separate
_FORMAT = 1  # part of the file's name; increase when the search changes

_known: WeakKeyDictionary[Reader, dict[bytes, np.ndarray]] = WeakKeyDictionary()


def group_look_alikes(
    dataset: Dataset, config: DataConfig, facts: ImageFacts | None = None
) -> tuple[np.ndarray | None, int]:
    """Return the groups that a hold-out keeps together, and the number of images with a near duplicate.

    Groups of the data that contain near duplicates of each other are merged. The groups are None if there are none.
    With the `facts` of its images, none is decoded again.
    """
    if len(dataset) > MAX_IMAGES:
        return dataset.groups, 0
    cluster = _find_clusters(dataset, config) if facts is None else cluster_near(facts)
    sizes = np.bincount(cluster, minlength=len(dataset))[cluster]
    cluster = np.where(sizes > MAX_FRACTION * len(dataset), np.arange(len(dataset)), cluster)
    alike = int(((sizes > 1) & (sizes <= MAX_FRACTION * len(dataset))).sum())
    if not alike:
        return dataset.groups, 0
    if dataset.groups is not None:
        _, first, group = np.unique(dataset.groups, return_index=True, return_inverse=True)
        cluster = merge_clusters(cluster, np.arange(len(dataset)), first[group])
    return cluster, alike


def _find_clusters(dataset: Dataset, config: DataConfig) -> np.ndarray:
    """Return the cluster of each image, cached, so that a run of two stages decodes the images only once."""
    try:
        known = _known.setdefault(dataset.reader, {})
    except TypeError:  # a reader without weak references
        known = {}
    key = dataset.rows.tobytes()
    if key not in known:
        known[key] = _load_or_search(dataset, config)
    return known[key]


def _load_or_search(dataset: Dataset, config: DataConfig) -> np.ndarray:
    name = f"{hash_dataset(dataset, _FORMAT, config)}.npz"
    with suppress(OSError, InvalidFile):  # none yet, or damaged
        cached = read_npz(cache_root() / "look-alikes" / name).get("cluster")
        if cached is not None and _are_clusters(cached, len(dataset)):
            return cached
    found = cluster_near(scan(dataset, config=config))
    with suppress(OSError), atomic_write(cache_root() / "look-alikes" / name) as file:  # a cache never stops a run
        np.savez(file, cluster=found)
    return found


def _are_clusters(values: np.ndarray, images: int) -> bool:
    return values.dtype == np.int64 and values.shape == (images,) and bool(((values >= 0) & (values < images)).all())
