"""Search for duplicate images: exact (same bytes) and near (resized or re-encoded)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitling.data.scan import THUMB, ImageFacts

BANDS = 4  # keys per image; a hash of 64 bits in 4 bands finds all pairs that differ in at most 3 bits
MAX_NEIGHBOURS = 48  # images of its bucket that an image is compared with
MAX_DIFFERENCE = 4.0  # mean absolute difference of two thumbnails, in grey levels
MAX_RELATIVE_DIFFERENCE = 0.15  # the same, as a fraction of the thumbnail's contrast
MIN_CONTRAST = 2.0  # grey levels; below it a thumbnail is blank and looks like every other blank one
CHUNK = 65536  # pairs compared at once, which bounds the memory


@dataclass(frozen=True)
class Duplicates:
    """Clusters of ids. `near` leaves out clusters whose images all have the same bytes."""

    exact: list[list[int]]
    near: list[list[int]]


@dataclass(frozen=True)
class Leak:
    """An image `id` of `split` that is also in train."""

    split: str
    id: int
    train_id: int
    kind: str  # "exact" or "near"


def find_duplicates(facts: ImageFacts) -> Duplicates:
    exact = cluster_exact(facts)
    return Duplicates(_list_members(exact), _list_members(cluster_near(facts), not_within=exact))


def find_exact_duplicates(facts: ImageFacts) -> list[list[int]]:
    """Find clusters of images with the same bytes."""
    return _list_members(cluster_exact(facts))


def find_leaks(splits: dict[str, ImageFacts]) -> list[Leak]:
    """Find images of other splits that are also in train; exact copies are not listed again as near ones."""
    names = list(splits)
    sizes = [len(facts) for facts in splits.values()]
    starts = np.cumsum([0, *sizes])
    everything = _concat(list(splits.values()))
    owner = np.repeat(np.arange(len(names)), sizes)
    train = names.index("train")
    leaks: dict[int, Leak] = {}
    for kind, cluster in (("exact", cluster_exact(everything)), ("near", cluster_near(everything))):
        first_in_train = {int(cluster[i]): int(i) for i in np.flatnonzero(owner == train)[::-1]}
        for i in np.flatnonzero(owner != train):
            twin = first_in_train.get(int(cluster[i]))
            if twin is not None and int(i) not in leaks:
                o = owner[i]
                leaks[int(i)] = Leak(names[o], int(i - starts[o]), int(twin - starts[train]), kind)
    return [leaks[i] for i in sorted(leaks)]


def cluster_exact(facts: ImageFacts) -> np.ndarray:
    """Return each image's cluster, numbered by its smallest id; images that cannot be decoded stay alone."""
    keys = facts.digests.view([("digest", "V16")]).reshape(-1)
    _, first, cluster = np.unique(keys, return_index=True, return_inverse=True)
    return np.where(facts.ok, first[cluster], np.arange(len(facts)))


def cluster_near(facts: ImageFacts) -> np.ndarray:
    """Return each image's cluster of near and exact duplicates, numbered by its smallest id."""
    cluster = cluster_exact(facts)
    thumbs = facts.thumbs.reshape(len(facts), THUMB * THUMB).astype(np.int16)
    brightness = thumbs.mean(axis=1)
    contrast = np.abs(thumbs - brightness[:, None]).mean(axis=1)
    limit = np.minimum(MAX_DIFFERENCE, MAX_RELATIVE_DIFFERENCE * contrast)
    ids = np.flatnonzero(facts.ok & (contrast >= MIN_CONTRAST) & (cluster == np.arange(len(facts))))
    for band in _hash_bands(facts.thumbs[ids]):
        ordered = np.lexsort((brightness[ids], band))
        cluster = _merge_neighbours(cluster, ids[ordered], band[ordered], brightness, thumbs, limit)
    return cluster


def _merge_neighbours(
    cluster: np.ndarray,
    ids: np.ndarray,
    band: np.ndarray,
    brightness: np.ndarray,
    thumbs: np.ndarray,
    limit: np.ndarray,
) -> np.ndarray:
    """Merge clusters whose images look alike. Only neighbours in a bucket sorted by brightness are compared, because
    near duplicates hardly differ in it."""
    for shift in range(1, MAX_NEIGHBOURS + 1):
        left, right = ids[:-shift], ids[shift:]
        close = (band[:-shift] == band[shift:]) & (brightness[right] - brightness[left] < MAX_DIFFERENCE)
        if not close.any():
            break
        candidates = close & (cluster[left] != cluster[right])
        left, right = left[candidates], right[candidates]
        alike = _look_alike(left, right, thumbs, limit)
        cluster = merge_clusters(cluster, left[alike], right[alike])
    return cluster


def _look_alike(left: np.ndarray, right: np.ndarray, thumbs: np.ndarray, limit: np.ndarray) -> np.ndarray:
    alike = np.zeros(len(left), bool)
    for start in range(0, len(left), CHUNK):
        a, b = left[start : start + CHUNK], right[start : start + CHUNK]
        difference = np.abs(thumbs[a] - thumbs[b]).mean(axis=1)
        alike[start : start + CHUNK] = difference < np.minimum(limit[a], limit[b])
    return alike


def merge_clusters(cluster: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Merge the clusters of each pair of ids; each cluster is numbered by its smallest id."""
    if not len(left):
        return cluster
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(left)), (cluster[left], cluster[right])), shape=(len(cluster), len(cluster)))
    _, component = connected_components(edges, directed=False)
    _, first, merged = np.unique(component[cluster], return_index=True, return_inverse=True)
    return first[merged]


def hash_thumbnails(thumbs: np.ndarray) -> np.ndarray:
    """Hash thumbnails to uint64 [N]: 8 x 9 area means, one bit for each that is darker than the next in its row."""
    n = len(thumbs)
    rows = thumbs.astype(np.float32).reshape(n, 8, 2, 16).mean(axis=2)
    cells = rows @ _compute_area_weights(16, 9)
    bits = cells[:, :, 1:] > cells[:, :, :-1]
    return np.packbits(bits.reshape(n, 64), axis=1).view(np.uint64).reshape(n)


def _hash_bands(thumbs: np.ndarray) -> list[np.ndarray]:
    hashes = hash_thumbnails(thumbs)
    width = 64 // BANDS
    return [(hashes >> np.uint64(width * k)) & np.uint64(2**width - 1) for k in range(BANDS)]


def _compute_area_weights(n: int, m: int) -> np.ndarray:
    """Return a matrix [n, m] with the overlap of n equal cells with m equal cells, with columns that sum to one."""
    edges, cells = np.arange(m + 1) * n / m, np.arange(n)[:, None]
    overlap = np.minimum(cells + 1, edges[1:]) - np.maximum(cells, edges[:-1])
    return (np.maximum(overlap, 0) * m / n).astype(np.float32)


def _list_members(cluster: np.ndarray, not_within: np.ndarray | None = None) -> list[list[int]]:
    """List clusters of two or more, leaving out those that lie within one cluster of `not_within`."""
    order = np.argsort(cluster, kind="stable")
    _, starts = np.unique(cluster[order], return_index=True)
    clusters = [members for members in np.split(order, starts[1:]) if len(members) > 1]
    if not_within is not None:
        clusters = [members for members in clusters if len(np.unique(not_within[members])) > 1]
    return [members.tolist() for members in clusters]


def _concat(facts: list[ImageFacts]) -> ImageFacts:
    """Concatenate the columns that the search needs."""
    everything = ImageFacts.empty(0)
    for name in ("ok", "digests", "thumbs"):
        setattr(everything, name, np.concatenate([getattr(f, name) for f in facts]))
    return everything
