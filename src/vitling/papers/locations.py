"""Locations of the studies' datasets and weights: in one folder, by name. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vitling.errors import UserError
from vitling.papers.datasets import ENTRIES, find_copy
from vitling.papers.datasets.entry import Entry

SUFFIXES = (".tar", ".parquet", ".csv", ".npz")
WEIGHTS = (".safetensors", ".pth", ".pt", ".bin")


@dataclass(frozen=True)
class StudyDataset:
    """A dataset with the counts of the papers."""

    title: str
    train: int
    test: int  # 0: for pre-training only
    files: tuple[str, str] | None = None  # stems of the two files, if not NAME-train and NAME-test
    annotated: str = ""  # name of the folder or tar of an annotated dataset, with all its splits


def _convert_entry(entry: Entry) -> StudyDataset:
    together = ", train and val together" if entry.val else ""
    return StudyDataset(entry.title + together, entry.trained_on, entry.test)


DATASETS = {
    **{name: _convert_entry(entry) for name, entry in ENTRIES.items()},
    # IDMM, Sec. 4.3
    "sin10k": StudyDataset("10 images of each class of ImageNet-1K", 10_000, 0),
    "sin-total10k": StudyDataset("10,000 images of ImageNet-1K, drawn regardless of class", 10_000, 0),
    # every fifth training image; not a benchmark but a substitute if the full dataset is not available
    "cifar100-10k": StudyDataset("a part of CIFAR-100", 10_000, 5_000, ("cifar100-train-10k", "cifar100-test-5k")),
    # boxes and masks instead of classes; COCO and ADE20K are tested on their val split
    "camvid": StudyDataset("CamVid's training frames, without their masks", 367, 0),
    "camvid-masks": StudyDataset("CamVid with its masks", 367, 233, annotated="camvid"),
    "coco": StudyDataset("COCO 2017", 118_287, 5_000, annotated="coco"),
    "ade20k": StudyDataset("ADE20K of the 2016 challenge", 20_210, 2_000, annotated="ade20k"),
}


def find_data(name: str, folder: Path) -> tuple[str, str] | None:
    """Return the DATA of train and test ("" if there is no test split), or None if one is missing.

    A copy as its authors distribute it is accepted too.
    """
    has_test = DATASETS[name].test > 0
    if stem := DATASETS[name].annotated:
        found = _find_annotated(folder, stem)
        return (str(found), str(found)) if found else None
    if name == "camvid" and (found := _find_annotated(folder, name)):
        return f"frames:{found}", ""
    if name in ENTRIES and (copy := find_copy(name, folder)):
        together = "?val=train" if ENTRIES[name].val else ""
        return copy + together, copy if has_test else ""
    train, test = (_find_split(folder, name, split, stem) for split, stem in zip(("train", "test"), _get_stems(name)))
    if train and (test or not has_test):
        return str(train), str(test) if has_test else ""
    return None


def _find_annotated(folder: Path, stem: str) -> Path | None:
    """Return the folder or tar of an annotated dataset; a folder of train/ alone has no annotations."""
    path = folder / stem
    if path.is_dir() and not (path / "train" / "masks").exists() and [p.name for p in path.iterdir()] == ["train"]:
        return None
    return next((found for found in (path, path.with_suffix(".tar")) if found.exists()), None)


def _get_stems(name: str) -> tuple[str, str]:
    return DATASETS[name].files or (f"{name}-train", f"{name}-test")


def _find_split(folder: Path, name: str, split: str, stem: str) -> Path | None:
    files = (folder / f"{start}{suffix}" for start in (stem, f"{name}/{split}") for suffix in SUFFIXES)
    return next((path for path in (folder / name / split, *files) if path.exists()), None)


def find_weights(backbone: str, folder: Path) -> str | None:
    paths = (folder / "weights" / f"{backbone}{suffix}" for suffix in WEIGHTS)
    return next((str(path) for path in paths if path.is_file()), None)


def describe_missing(data: Iterable[str], weights: Iterable[str], folder: Path) -> list[str]:
    """Describe what to put where, one line for each dataset and weights file."""
    return [_describe_dataset(name, folder) for name in data] + [
        f"ImageNet-1K weights: {folder / 'weights' / backbone}{WEIGHTS[0]} ({', '.join(WEIGHTS[1:])})"
        for backbone in weights
    ]


def _describe_dataset(name: str, folder: Path) -> str:
    about, (train, test), others = DATASETS[name], _get_stems(name), ", ".join(SUFFIXES[1:])
    if about.annotated:
        place = folder / about.annotated
        return (
            f"{name} ({about.title}, {about.train:,} + {about.test:,} images): {place}/ as distributed, or {place}.tar"
        )
    if not about.test:
        return (
            f"{name} ({about.title}, {about.train:,} images): {folder / name}/train/ with the images, or "
            f"{folder / train}.tar ({others})"
        )
    distributed = f", or {folder / name}/ as distributed" if name in ENTRIES else ""
    return (
        f"{name} ({about.title}, {about.train:,} + {about.test:,} images): {folder / name}/train/ and test/ with a "
        f"folder per class, or {folder / train}.tar and {test}.tar ({others}){distributed}"
    )


def check_folder(data: str | None) -> Path:
    """Return the absolute path of --data, since a run resumes only with the same paths."""
    if not data:
        raise UserError("The datasets are missing; pass --data DIR, a folder with one subfolder for each.")
    if not Path(data).is_dir():
        raise UserError(f"--data {data} does not exist.")
    return Path(data).absolute()
