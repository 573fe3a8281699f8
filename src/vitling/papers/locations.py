"""The data sets that studies want, and where they are looked for: in one folder, by name. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vitling.errors import UserError
from vitling.papers import datasets
from vitling.papers.datasets.entry import Entry

SUFFIXES = (".tar", ".parquet", ".csv", ".npz")
WEIGHTS = (".safetensors", ".pth", ".pt", ".bin")


@dataclass(frozen=True)
class StudyDataset:
    title: str
    train: int  # images, as the papers count them
    test: int  # 0: it is pre-trained on, and has no test split
    files: tuple[str, str] | None = None  # names of the two files, if they are not NAME-train and NAME-test


def _of(entry: Entry) -> StudyDataset:
    together = ", train and val together" if entry.val else ""
    return StudyDataset(entry.title + together, entry.trained_on, entry.test)


DATASETS = {
    **{name: _of(entry) for name, entry in datasets.ENTRIES.items()},
    # IDMM, Sec. 4.3
    "sin10k": StudyDataset("10 images of each class of ImageNet-1K", 10_000, 0),
    "sin-total10k": StudyDataset("10,000 images of ImageNet-1K, drawn whatever their class", 10_000, 0),
    # not a benchmark of anybody's: every fifth training image, for where the whole is not at hand
    "cifar100-10k": StudyDataset("a part of CIFAR-100", 10_000, 5_000, ("cifar100-train-10k", "cifar100-test-5k")),
    # for pre-training alone: what is to be learnt of them are masks, not classes
    "camvid": StudyDataset("CamVid's training frames, without their masks", 367, 0),
}


def find_data(name: str, folder: Path) -> tuple[str, str] | None:
    """Train and test, each as a DATA that `vitling train` takes ("" for a test split that the data set does not have);
    None if one of them is not there. A copy as its authors distribute it serves as well."""
    about = DATASETS[name]
    if name in datasets.ENTRIES and (native := datasets.find_copy(name, folder)):
        together = "?val=train" if datasets.ENTRIES[name].val else ""
        return native + together, native if about.test else ""
    train, test = (_find_split(folder, name, split, file) for split, file in zip(("train", "test"), _files(name)))
    if not about.test:
        return (str(train), "") if train else None
    return (str(train), str(test)) if train and test else None


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
    return [_wanted_data(name, folder) for name in data] + [
        f"ImageNet-1K weights: {folder / 'weights' / backbone}{WEIGHTS[0]} ({', '.join(WEIGHTS[1:])})"
        for backbone in weights
    ]


def _wanted_data(name: str, folder: Path) -> str:
    about, (train, test) = DATASETS[name], _files(name)
    others = ", ".join(SUFFIXES[1:])
    if not about.test:
        return (
            f"{name} ({about.title}, {about.train:,} images): {folder / name}/train/ with the images, or "
            f"{folder / train}.tar ({others})"
        )
    return (
        f"{name} ({about.title}, {about.train:,} + {about.test:,} images): {folder / name}/train/ and test/ with a "
        f"folder a class, or {folder / train}.tar and {test}.tar ({others}){_as_distributed(name, folder)}"
    )


def _as_distributed(name: str, folder: Path) -> str:
    return f", or {folder / name}/ as distributed" if name in datasets.ENTRIES else ""


def check_folder(data: str | None) -> Path:
    if not data:
        raise UserError("Where are the data sets? Pass --data DIR, a folder with one sub-folder for each.")
    if not Path(data).is_dir():
        raise UserError(f"--data {data}: there is no such folder.")
    return Path(data).absolute()  # a run goes on only from the same place, however it is written
