"""Store of decoded pixels: on the GPU if they fit, else in host memory, else streamed from disk."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitling.data.cache import Pixels, decode_all
from vitling.data.config import DataConfig
from vitling.data.content import hash_records, make_records
from vitling.data.dataset import BadFile, Dataset, sample_evenly
from vitling.data.decode import decode, squash
from vitling.data.host import count_cores, get_free_memory
from vitling.data.scan import ImageFacts
from vitling.data.splits import drop_bad

Placement = Literal["auto", "device", "host", "stream"]
SIZE_SAMPLE = 256  # images whose sides give the median
COLOUR_SAMPLE = 2000  # images whose pixels give mean and std
MEMORY_FRACTION = 0.5  # of the free memory; the rest is for the network and other processes

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass
class Store:
    """Images of one split, squashed to S x S, with their aspect ratios."""

    dataset: Dataset
    size: int
    channels: int
    device: torch.device
    placement: Literal["device", "host", "stream"]
    aspect: Tensor
    fetch_pixels: Callable[[np.ndarray], Tensor]
    facts: ImageFacts
    bad: list[BadFile]
    labels: Tensor | None
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    records: np.ndarray = field(default_factory=lambda: np.zeros((0, 16), np.uint8))  # of all images, bad ones too

    def __len__(self) -> int:
        return len(self.dataset)

    def fetch(self, ids: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return pixels, uint8 [B, C, S, S], and aspect ratios (width / height) [B], both on the device."""
        index = torch.from_numpy(ids).to(self.device, non_blocking=True)
        return self.fetch_pixels(ids), self.aspect[index]

    def take(self, ids: np.ndarray) -> Store:
        """Select images by id, without copying pixels; they get the new ids 0..len(ids)-1."""
        index = torch.from_numpy(ids).to(self.device)
        return replace(
            self,
            dataset=self.dataset.take(ids),
            aspect=self.aspect[index],
            fetch_pixels=lambda rows: self.fetch_pixels(ids[rows]),
            facts=self.facts.take(ids),
            labels=None if self.labels is None else self.labels[index],
        )

    @property
    def content_hash(self) -> str:
        """Hash of the split as `vitling inspect` prints it."""
        return hash_records(self.records)

    @property
    def identity(self) -> str:
        """Hash of the content: images, labels, class names, their order, size and channels."""
        digest = hashlib.blake2b(self.facts.digests.tobytes(), digest_size=16)
        for labels in (self.dataset.labels, self.dataset.partial_labels):
            digest.update(b"" if labels is None else labels.tobytes())
        digest.update(repr((self.dataset.class_names, self.size, self.channels)).encode())
        return digest.hexdigest()

    @property
    def gigabytes(self) -> float:
        return len(self) * self.channels * self.size**2 / 1e9


def build_store(
    dataset: Dataset,
    size: int,
    config: DataConfig | None = None,
    device: str | torch.device = "cpu",
    placement: Placement = "auto",
    allow_bad: bool = False,
    split: str = "train",
    use_cache: bool = True,
    on_progress: Callable[[int], None] | None = None,
    warn: Callable[[str], None] = lambda line: None,
    known_bad: Sequence[BadFile] = (),
) -> Store:
    """Decode a split or load it from the cache, leave out bad images, and place the pixels."""
    config, device = config or DataConfig(), torch.device(device)
    chosen = choose_placement(len(dataset) * config.channels * size**2, device) if placement == "auto" else placement
    if chosen == "device" and device.type == "cpu":
        chosen = "host"
    pixels = decode_all(dataset, size, config, on_progress, warn, use_cache, in_memory=chosen != "stream")
    kept, bad = drop_bad(dataset, pixels.facts, allow_bad, split, known_bad)
    rows = np.flatnonzero(pixels.facts.ok)
    facts = pixels.facts.take(rows)
    aspect = torch.from_numpy(facts.width / np.maximum(facts.height, 1)).float().to(device)
    labels = None if kept.labels is None else torch.from_numpy(kept.labels).to(device)
    fetch = _make_fetcher(chosen, pixels, rows, kept, size, config, device)
    records = make_records(dataset, pixels.facts.digests)
    return Store(kept, size, config.channels, device, chosen, aspect, fetch, facts, bad, labels, records=records)


def choose_placement(wanted: int, device: torch.device) -> Literal["device", "host", "stream"]:
    """Choose the device if `wanted` bytes take at most half of its free memory, else the host likewise, else stream."""
    if device.type == "cuda" and wanted <= MEMORY_FRACTION * torch.cuda.mem_get_info(device)[0]:
        return "device"
    return "host" if wanted <= MEMORY_FRACTION * get_free_memory() else "stream"


def choose_size(dataset: Dataset, useful: int) -> int:
    """Choose S: the most that the views can use (`views.Plan.store_side`), but not more than the images have."""
    return min(useful, measure_median_side(dataset) or useful)


def measure_median_side(dataset: Dataset) -> int | None:
    """Return the median of the images' longer sides, or None if no image can be read."""
    ids = sample_evenly(len(dataset), SIZE_SAMPLE)
    longer = [side for i in ids if (side := _measure_longer_side(dataset, int(i)))]
    return int(max(np.median(longer), 8)) if longer else None


def compute_mean_std(store: Store) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and std of each channel, on a scale of 0 to 1, over at most COLOUR_SAMPLE images."""
    ids = sample_evenly(len(store), COLOUR_SAMPLE)
    total, squares, count = torch.zeros(store.channels), torch.zeros(store.channels), 0
    for chunk in np.array_split(ids, max(1, len(ids) // 64)):
        x = store.fetch(chunk)[0].double() / 255
        total, squares = total + x.sum(dim=(0, 2, 3)).cpu(), squares + (x * x).sum(dim=(0, 2, 3)).cpu()
        count += x.numel() // x.shape[1]
    mean = total / count
    std = (squares / count - mean**2).clamp(min=1e-6).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())


def choose_normalisation(store: Store, config: DataConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return ImageNet's mean and std, or those of the data (always for images that are not RGB)."""
    if config.normalise == "imagenet" and config.channels == 3:
        return IMAGENET_MEAN, IMAGENET_STD
    return compute_mean_std(store)


def _make_fetcher(
    placement: str,
    pixels: Pixels,
    rows: np.ndarray,
    kept: Dataset,
    size: int,
    config: DataConfig,
    device: torch.device,
) -> Callable[[np.ndarray], Tensor]:
    if pixels.array is None:
        return _make_decoding_fetcher(kept, size, config, device)
    resident = torch.from_numpy(pixels.array)  # no copy: processes share the pages of a memory-mapped file
    if placement == "device":
        resident = resident.to(device)
        return lambda ids: gather(resident, torch.from_numpy(rows[ids]).to(device, non_blocking=True))
    return lambda ids: _upload(resident[torch.from_numpy(rows[ids])], device)


def gather(pixels: Tensor, index: Tensor) -> Tensor:
    """Return pixels[index], eight bytes at a time if possible, because a GPU gathers element by element."""
    if pixels[0].numel() % 8:
        return pixels[index]
    return pixels.flatten(1).view(torch.int64)[index].view(torch.uint8).view(-1, *pixels.shape[1:])


def _upload(pixels: Tensor, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return pixels
    return pixels.pin_memory().to(device, non_blocking=True)


def _make_decoding_fetcher(
    dataset: Dataset, size: int, config: DataConfig, device: torch.device
) -> Callable[[np.ndarray], Tensor]:
    pool = ThreadPoolExecutor(count_cores())

    def decode_one(i: int) -> np.ndarray:
        image = decode(dataset.read(i), config.channels, config.bits, config.max_pixels, draft_size=size)
        return squash(image, size, config.channels)

    return lambda ids: _upload(torch.from_numpy(np.stack(list(pool.map(decode_one, ids.tolist())))), device)


def _measure_longer_side(dataset: Dataset, i: int) -> int | None:
    try:
        raw = dataset.read(i)
        if isinstance(raw, np.ndarray):
            return max(raw.shape[:2])
        with Image.open(io.BytesIO(raw)) as image:
            return max(image.size)
    except Exception:  # the scan reports files that cannot be read
        return None
