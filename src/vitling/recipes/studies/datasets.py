"""The data sets that studies want, and where they are looked for: in one folder, by name. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vitling.errors import UserError

SUFFIXES = (".tar", ".parquet", ".csv", ".npz")
WEIGHTS = (".safetensors", ".pth", ".pt", ".bin")


@dataclass(frozen=True)
class DataSet:
    title: str
    train: int  # images, as the papers count them
    test: int
    files: tuple[str, str] | None = None  # names of the two files, if they are not NAME-train and NAME-test


# drloc.txt Table 1 (a)
DATASETS = {
    "imagenet1k": DataSet("ImageNet-1K", 1_281_167, 50_000),
    "imagenet100": DataSet("ImageNet-100", 126_689, 5_000),
    "cifar10": DataSet("CIFAR-10", 50_000, 10_000),
    "cifar100": DataSet("CIFAR-100", 50_000, 10_000),
    "flowers102": DataSet("Oxford Flowers102, train and val together", 2_040, 6_149),
    "svhn": DataSet("SVHN without its extra images", 73_257, 26_032),
    "domainnet-clipart": DataSet("DomainNet, ClipArt", 33_525, 14_604),
    "domainnet-infograph": DataSet("DomainNet, Infograph", 36_023, 15_582),
    "domainnet-painting": DataSet("DomainNet, Painting", 50_416, 21_850),
    "domainnet-quickdraw": DataSet("DomainNet, Quickdraw", 120_750, 51_750),
    "domainnet-real": DataSet("DomainNet, Real", 120_906, 52_041),
    "domainnet-sketch": DataSet("DomainNet, Sketch", 48_212, 20_916),
    # not a benchmark of anybody's: every fifth training image, for where the whole is not at hand
    "cifar100-10k": DataSet("a part of CIFAR-100", 10_000, 5_000, ("cifar100-train-10k", "cifar100-test-5k")),
}


def find_data(name: str, folder: Path) -> tuple[str, str] | None:
    """Train and test, each as a DATA that `vitling train` takes; None if one of them is not there."""
    found = [_find_split(folder, name, split, file) for split, file in zip(("train", "test"), _files(name))]
    return (str(found[0]), str(found[1])) if found[0] and found[1] else None


def _files(name: str) -> tuple[str, str]:
    return DATASETS[name].files or (f"{name}-train", f"{name}-test")


def _find_split(folder: Path, name: str, split: str, file: str) -> Path | None:
    files = (folder / f"{stem}{suffix}" for stem in (file, f"{name}/{split}") for suffix in SUFFIXES)
    return next((place for place in (folder / name / split, *files) if place.exists()), None)


def find_weights(backbone: str, folder: Path) -> str | None:
    places = (folder / "weights" / f"{backbone}{suffix}" for suffix in WEIGHTS)
    return next((str(place) for place in places if place.is_file()), None)


def wanted(data: Iterable[str], weights: Iterable[str], folder: Path) -> list[str]:
    """What to put where, for a person whose folder lacks it: a line for each."""
    lines = [
        f"{name} ({about.title}, {about.train:,} + {about.test:,} images): {folder / name}/train/ and test/ with a "
        f"folder a class, or {folder / files[0]}.tar and {files[1]}.tar ({', '.join(SUFFIXES[1:])})"
        for name, about, files in ((name, DATASETS[name], _files(name)) for name in data)
    ]
    return lines + [
        f"ImageNet-1K weights: {folder / 'weights' / backbone}{WEIGHTS[0]} ({', '.join(WEIGHTS[1:])})"
        for backbone in weights
    ]


def check_folder(data: str | None) -> Path:
    if not data:
        raise UserError("Where are the data sets? Pass --data DIR, a folder with one sub-folder for each.")
    if not Path(data).is_dir():
        raise UserError(f"--data {data}: there is no such folder.")
    return Path(data).absolute()  # a run goes on only from the same place, however it is written
