"""What a person can say about the data. Flags: `--data.channels 1`, `--data.label-column kind`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_PIXELS = 100_000_000


@dataclass(frozen=True)
class DataConfig:
    channels: int = 3
    """1 grey, 3 RGB, 4 RGBA; any other number only for arrays (.npz) that have as many."""
    bits: int = 16
    """White point of images with 16 bits a channel: 12 for 12-bit scans in 16-bit files."""
    normalise: Literal["imagenet", "data"] = "imagenet"
    """Mean and deviation for the network's input: ImageNet's, or those of the training images."""
    path_column: str = "path"
    """CSV: the column with the image's path, relative to the CSV."""
    label_column: str = "label"
    """CSV, Parquet, JSON in a tar: the column with the label. An empty name: images without labels."""
    split_column: str = "split"
    """CSV: the column that says train, val, test or unlabelled."""
    group_column: str = "group"
    """CSV, Parquet: images of one group (a patient, a site) never part in a hold-out."""
    label_separator: str = "|;,"
    """CSV: characters that part several labels in one cell; the first that occurs is the one. Empty: never part."""
    max_pixels: int = MAX_PIXELS
    """An image with more pixels is refused before it is decoded."""
    download: bool = False
    """Let torchvision download a data set that is not on disk."""
    folds: int = 0
    """Cross-validation: part the training images in so many folds. 0: no folds."""
    fold: int = 0
    """Cross-validation: the fold, counted from 0, that is val."""
