"""Images that are there twice: byte for byte, or to the eye (resized, re-encoded)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitling.data.scan import THUMB, ImageFacts

BANDS = 4
MAX_NEIGHBOURS = 48  # an image is compared with no more than so many others of its bucket
MAX_DIFFERENCE = 4.0  # mean absolute difference of two thumbnails, in grey levels
MAX_SHARE_OF_CONTRAST = 0.15  # the same, as a share of the thumbnail's own contrast
MIN_CONTRAST = 2.0  # below it a thumbnail is blank, and looks like every other blank one


@dataclass(frozen=True)
class Duplicates:
    """Clusters of ids. `near` leaves out clusters whose images are all byte for byte the same."""

    exact: list[list[int]]
    near: list[list[int]]


@dataclass(frozen=True)
class Leak:
    """Image `id` of `split` is there in train as well."""

    split: str
    id: int
    train_id: int
    kind: str  # "exact" or "near"


def find(facts: ImageFacts) -> Duplicates:
    same_bytes = exact_clusters(facts)
    return Duplicates(_members(same_bytes), _members(near_clusters(facts), unlike=same_bytes))


def across(splits: dict[str, ImageFacts]) -> list[Leak]:
    """Images of the other splits that train has too; an exact copy is not counted again as a near one."""
    names = list(splits)
    sizes = [len(facts) for facts in splits.values()]
    starts = np.cumsum([0, *sizes])
    everything = _joined(list(splits.values()))
    owner = np.repeat(np.arange(len(names)), sizes)
    train = names.index("train")
    leaks: dict[int, Leak] = {}
    for kind, cluster in (("exact", exact_clusters(everything)), ("near", near_clusters(everything))):
        first_in_train = {int(cluster[i]): int(i) for i in np.flatnonzero(owner == train)[::-1]}
        for i in np.flatnonzero(owner != train):
            twin = first_in_train.get(int(cluster[i]))
            if twin is not None and int(i) not in leaks:
                o = owner[i]
                leaks[int(i)] = Leak(names[o], int(i - starts[o]), int(twin - starts[train]), kind)
    return [leaks[i] for i in sorted(leaks)]


def exact_clusters(facts: ImageFacts) -> np.ndarray:
    """A cluster number for each image; images that could not be decoded are alone."""
    keys = facts.digests.view([("digest", "V16")]).reshape(-1)
    _, first, cluster = np.unique(keys, return_index=True, return_inverse=True)
    return np.where(facts.ok, first[cluster], np.arange(len(facts)))


def near_clusters(facts: ImageFacts) -> np.ndarray:
    """A cluster number for each image; near duplicates, exact ones among them, share theirs."""
    cluster = exact_clusters(facts)
    thumbs = facts.thumbs.reshape(len(facts), THUMB * THUMB).astype(np.int16)
    brightness = thumbs.mean(axis=1)
    contrast = np.abs(thumbs - brightness[:, None]).mean(axis=1)
    limit = np.minimum(MAX_DIFFERENCE, MAX_SHARE_OF_CONTRAST * contrast)
    ids = np.flatnonzero(facts.ok & (contrast >= MIN_CONTRAST) & (cluster == np.arange(len(facts))))
    forest = _Forest(len(facts))
    for band in _bands(facts.thumbs[ids]):
        ordered = np.lexsort((brightness[ids], band))
        _unite_neighbours(ids[ordered], band[ordered], brightness, thumbs, limit, forest)
    return forest.roots()[cluster]


def _unite_neighbours(ids, band, brightness, thumbs, limit, forest: _Forest) -> None:
    """Within a bucket images lie by brightness, and two alike differ little in it: so only neighbours are compared."""
    for shift in range(1, MAX_NEIGHBOURS + 1):
        left, right = ids[:-shift], ids[shift:]
        close = (band[:-shift] == band[shift:]) & (brightness[right] - brightness[left] < MAX_DIFFERENCE)
        if not close.any():
            return
        roots = forest.roots()
        left, right = left[close], right[close]
        apart = roots[left] != roots[right]
        left, right = left[apart], right[apart]
        for part in range(0, len(left), 65536):  # bounds the memory that the differences take
            a, b = left[part : part + 65536], right[part : part + 65536]
            difference = np.abs(thumbs[a] - thumbs[b]).mean(axis=1)
            for i, j in zip(*(side[difference < np.minimum(limit[a], limit[b])] for side in (a, b))):
                forest.unite(int(i), int(j))


def difference_hash(thumbs: np.ndarray) -> np.ndarray:
    """uint64 [N]: 8 x 9 area means, and for each but the last of a row whether the next one is brighter."""
    n = len(thumbs)
    rows = thumbs.astype(np.float32).reshape(n, 8, 2, 16).mean(axis=2)
    cells = rows @ _area_weights(16, 9)
    bits = cells[:, :, 1:] > cells[:, :, :-1]
    return np.packbits(bits.reshape(n, 64), axis=1).view(np.uint64).reshape(n)


def _bands(thumbs: np.ndarray) -> list[np.ndarray]:
    """Four keys of 16 bits: two hashes that differ in three bits at most share at least one."""
    hashes = difference_hash(thumbs)
    width = 64 // BANDS
    return [(hashes >> np.uint64(width * k)) & np.uint64(2**width - 1) for k in range(BANDS)]


def _area_weights(n: int, m: int) -> np.ndarray:
    """[n, m]: how much of each of n equal cells lies in each of m equal cells, columns summing to one."""
    edges, cells = np.arange(m + 1) * n / m, np.arange(n)[:, None]
    overlap = np.minimum(cells + 1, edges[1:]) - np.maximum(cells, edges[:-1])
    return (np.maximum(overlap, 0) * m / n).astype(np.float32)


class _Forest:
    """Union-find; the root of a cluster is its smallest id."""

    def __init__(self, n: int):
        self.parent = np.arange(n)

    def find(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = int(self.parent[i])
        return i

    def unite(self, i: int, j: int) -> None:
        i, j = sorted((self.find(i), self.find(j)))
        self.parent[j] = i

    def roots(self) -> np.ndarray:
        while True:
            above = self.parent[self.parent]
            if (above == self.parent).all():
                return above
            self.parent = above


def _members(cluster: np.ndarray, unlike: np.ndarray | None = None) -> list[list[int]]:
    """Clusters of two and more; with `unlike`, only those in which it takes two values."""
    order = np.argsort(cluster, kind="stable")
    _, starts = np.unique(cluster[order], return_index=True)
    clusters = [part for part in np.split(order, starts[1:]) if len(part) > 1]
    if unlike is not None:
        clusters = [part for part in clusters if len(np.unique(unlike[part])) > 1]
    return [part.tolist() for part in clusters]


def _joined(facts: list[ImageFacts]) -> ImageFacts:
    joined = ImageFacts.empty(0)
    for name in ("ok", "digests", "thumbs"):
        setattr(joined, name, np.concatenate([getattr(f, name) for f in facts]))
    return joined
