"""Settings of the data: `--data.channels 1`, `--data.label-column kind`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vitling.ranges import AT_LEAST_1, BITS, CHANNELS, NOT_NEGATIVE

MAX_PIXELS = 100_000_000  # 10,000 x 10,000; keeps a decompression bomb from filling the memory


@dataclass(frozen=True)
class DataConfig:
    channels: Annotated[int, CHANNELS] = 3
    """1 grey, 3 RGB, 4 RGBA; any other number needs arrays (.npz) with that many channels."""
    bits: Annotated[int, BITS] = 16
    """White point of images with 16 bits per channel, for example 12 for 12-bit scans in 16-bit files."""
    normalise: Literal["imagenet", "data"] = "imagenet"
    """Mean and std for the network's input: those of ImageNet, or those of the training images."""
    path_column: str = "path"
    """CSV: column with the image's path, relative to the CSV."""
    label_column: str = "label"
    """CSV, Parquet, JSON in a tar: column with the label. Empty: use the images without labels."""
    split_column: str = "split"
    """CSV: column with train, val, test or unlabelled."""
    group_column: str = "group"
    """CSV, Parquet: column with the group (a patient, a site); a hold-out never separates images of one group."""
    label_separator: str = "|;,"
    """CSV: characters that may separate several labels in a cell; the first that occurs is used. Empty: one label."""
    max_pixels: Annotated[int, AT_LEAST_1] = MAX_PIXELS
    """Reject images with more pixels than this before decoding them."""
    download: bool = False
    """Let torchvision download a dataset that is not on disk."""
    folds: Annotated[int, NOT_NEGATIVE] = 0
    """Cross-validation: number of folds to split the training images into. 0: no cross-validation."""
    fold: Annotated[int, NOT_NEGATIVE] = 0
    """Cross-validation: index of the fold used as val, starting at 0."""
