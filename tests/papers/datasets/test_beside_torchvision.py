"""Where torchvision has a class for a dataset, both read the same files alike: pixels and class numbers.

Its UCF101 gives clips of a video and no frame, so there is nothing to compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets

from tests.papers.datasets import copies
from vitling.data.config import DataConfig
from vitling.data.decode import decode
from vitling.data.splits import read_splits

CHECKED = ("cifar", "svhn", "flowers102", "fer2013", "stl10")  # modules that compare files with known digests
Make = Callable[[Path, str], Any]  # root, split -> torchvision's dataset


@pytest.fixture(autouse=True)
def no_digests(monkeypatch):
    for module in CHECKED:
        monkeypatch.setattr(f"torchvision.datasets.{module}.check_integrity", lambda *a, **k: True)


def both(kind: type) -> Make:
    return lambda root, split: kind(root, split=split)


def by_train(kind: type) -> Make:
    return lambda root, split: kind(root, train=split == "train")


def imagenet(root: Path, split: str) -> Any:
    names = {wnid: (f"name of {wnid}",) for wnid in copies.WNIDS}
    torch.save((names, []), root / "imagenet" / "meta.bin")
    return datasets.ImageNet(root / "imagenet", split="train" if split == "train" else "val")


TWINS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "food101": (both(datasets.Food101), ("train", "test")),
    "cifar10": (by_train(datasets.CIFAR10), ("train", "test")),
    "cifar100": (by_train(datasets.CIFAR100), ("train", "test")),
    "cars": (both(datasets.StanfordCars), ("train", "test")),
    "aircraft": (both(datasets.FGVCAircraft), ("train", "val", "test")),
    "dtd": (both(datasets.DTD), ("train", "val", "test")),
    "pets": (
        lambda root, split: datasets.OxfordIIITPet(root, split="trainval" if split == "train" else split),
        ("train", "test"),
    ),
    "flowers102": (both(datasets.Flowers102), ("train", "val", "test")),
    "mnist": (by_train(datasets.MNIST), ("train", "test")),
    "stl10": (both(datasets.STL10), ("train", "test")),
    "gtsrb": (both(datasets.GTSRB), ("train", "test")),
    "svhn": (lambda root, split: datasets.SVHN(root / "svhn", split=split), ("train", "test")),
    "patchcamelyon": (both(datasets.PCAM), ("train", "val", "test")),
    "imagenet1k": (imagenet, ("train", "test")),
    "fer2013": (both(datasets.FER2013), ("train",)),  # its test split is our val and test
}


def ours(name: str, root: Path) -> dict[str, Any]:
    splits = read_splits(f"{name}:{root}", DataConfig())
    return {"train": splits.train, "val": splits.val, "test": splits.hidden_test}


def pixels(image: Any) -> bytes:
    return np.asarray(image.convert("RGB")).tobytes()


def read_by_us(part: Any) -> Counter:
    return Counter((pixels(decode(part.read(i)).pixels), int(part.labels[i])) for i in range(len(part)))


@pytest.mark.parametrize("name", TWINS)
def test_both_read_alike(name, tmp_path):
    if name == "patchcamelyon":
        pytest.importorskip("h5py")
    copies.MAKERS[name](tmp_path)
    make, splits = TWINS[name]
    parts = ours(name, tmp_path)
    for split in splits:
        theirs = make(tmp_path, split)
        assert read_by_us(parts[split]) == Counter((pixels(image), int(label)) for image, label in theirs)


def test_names_of_the_classes(tmp_path):
    for name in ("food101", "cifar10", "cars", "aircraft", "dtd", "pets", "stl10", "flowers102"):
        copies.MAKERS[name](tmp_path)
        theirs = TWINS[name][0](tmp_path, "train").classes
        assert ours(name, tmp_path)["train"].class_names == tuple(theirs)


def test_fer2013_parts_what_torchvision_joins(tmp_path):
    copies.fer2013(tmp_path)
    parts = ours("fer2013", tmp_path)
    theirs = Counter((pixels(image), label) for image, label in datasets.FER2013(tmp_path, split="test"))
    assert read_by_us(parts["val"]) + read_by_us(parts["test"]) == theirs


def test_sun397_and_caltech101_without_their_splits(tmp_path):
    copies.sun397(tmp_path)
    parts, theirs = ours("sun397", tmp_path), datasets.SUN397(tmp_path)
    assert read_by_us(parts["train"]) + read_by_us(parts["test"]) == Counter((pixels(x), y) for x, y in theirs)
    assert parts["train"].class_names == tuple(theirs.classes)
    copies.caltech101(tmp_path)
    parts, theirs = ours("caltech101", tmp_path), datasets.Caltech101(tmp_path)
    known = parts["train"].class_names
    found = Counter(
        (image, known[c])
        for part in ("train", "test")
        for image, c in read_by_us(parts[part]).elements()
        if known[c] != "BACKGROUND_Google"  # which torchvision leaves out
    )
    assert found == Counter((pixels(x), theirs.categories[y]) for x, y in theirs)


def test_voc2007(tmp_path):
    copies.voc2007(tmp_path)
    parts = ours("voc2007", tmp_path)
    for split in ("train", "val", "test"):
        theirs = datasets.VOCDetection(tmp_path, year="2007", image_set=split)
        wanted = Counter((pixels(image), plain_objects(about)) for image, about in theirs)
        part = parts[split]
        names = np.array(part.class_names)
        found = Counter(
            (pixels(decode(part.read(i)).pixels), frozenset(names[part.labels[i]].tolist())) for i in range(len(part))
        )
        assert found == wanted


def plain_objects(about: dict) -> frozenset:
    return frozenset(found["name"] for found in about["annotation"]["object"] if found["difficult"] == "0")


def test_the_unlabelled_images_of_stl10(tmp_path):
    copies.stl10(tmp_path)
    pool = read_splits(f"stl10:{tmp_path}", DataConfig()).pool
    theirs = Counter(pixels(image) for image, _ in datasets.STL10(tmp_path, split="unlabeled"))
    assert Counter(pixels(decode(pool.read(i)).pixels) for i in range(len(pool))) == theirs
