"""Small copies of the papers' datasets, in the layout in which each is distributed and torchvision unpacks it.

`MAKERS[name](root)` writes one; `COUNTS[name]` says how many images of train, val and test it has.
"""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
from scipy.io import savemat

from tests.data.pictures import encoded, picture

CLASSES = 3
EACH = {"train": 3, "val": 1, "test": 2}  # images a class
_seeds = count()


def photo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {".jpg": "JPEG", ".JPEG": "JPEG", ".png": "PNG", ".ppm": "PPM"}[path.suffix]
    path.write_bytes(encoded(picture(next(_seeds), 24, 20), kind))


def write(path: Path, lines: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def pixels(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(next(_seeds)).integers(0, 256, (n, *shape), dtype=np.uint8)


def labels(split: str, classes: int = CLASSES) -> np.ndarray:
    return np.repeat(np.arange(classes), EACH[split])


def listed(
    root: Path, lists: dict[str, str], images: str, names: Sequence[str], show: Callable[[str], str] = str
) -> None:
    """Text lists of `class/image` lines, and the images."""
    for split, file in lists.items():
        lines = [f"{name}/{split}_{i}" for name in names for i in range(EACH[split])]
        write(root / file, [show(line) for line in lines])
        for line in lines:
            photo(root / images / f"{line}.jpg")


def food101(root: Path) -> None:
    home = root / "food-101"
    listed(home, {"train": "meta/train.txt", "test": "meta/test.txt"}, "images", ["pie", "ribs", "soup"])
    for split in ("train", "test"):
        by_class: dict[str, list[str]] = {}
        for line in (home / f"meta/{split}.txt").read_text().splitlines():
            by_class.setdefault(line.split("/")[0], []).append(line)
        (home / f"meta/{split}.json").write_text(json.dumps(by_class))


def dtd(root: Path) -> None:
    lists = {split: f"labels/{split}1.txt" for split in EACH}
    listed(root / "dtd" / "dtd", lists, "images", ["banded", "dotted", "woven"], "{}.jpg".format)


def indoor67(root: Path) -> None:
    lists = {"train": "TrainImages.txt", "test": "TestImages.txt"}
    listed(root / "indoor67", lists, "Images", ["bar", "deli", "gym"], "{}.jpg".format)


def sun397(root: Path) -> None:
    home, names = root / "SUN397", ["a/abbey", "a/arch/indoor", "b/bar"]
    write(home / "ClassName.txt", [f"/{name}" for name in names])
    for split, file in (("train", "Training"), ("test", "Testing")):
        paths = [f"{name}/sun_{split}{i}.jpg" for name in names for i in range(EACH[split])]
        write(home / "Partitions" / f"{file}_01.txt", [f"/{path}" for path in paths])
        for path in paths:
            photo(home / path)


def aircraft(root: Path) -> None:
    home, names, number = root / "fgvc-aircraft-2013b/data", ["707-320", "F/A-18", "Boeing 717"], count(1000001)
    write(home / "variants.txt", names)
    for split in EACH:
        rows = [(next(number), names[c]) for c in labels(split)]
        write(home / f"images_variant_{split}.txt", [f"{n} {name}" for n, name in rows])
        for n, _ in rows:
            photo(home / "images" / f"{n}.jpg")


def pets(root: Path) -> None:
    home, names = root / "oxford-iiit-pet", ["Abyssinian", "american_bulldog", "Birman"]
    for split, file in (("train", "trainval"), ("test", "test")):
        first = 1 if split == "train" else 100
        rows = [f"{names[c]}_{first + i} {c + 1} 1 1" for i, c in enumerate(labels(split))]
        write(home / "annotations" / f"{file}.txt", rows)
        for row in rows:
            photo(home / "images" / f"{row.split()[0]}.jpg")


def cub(root: Path) -> None:
    home, names = root / "CUB_200_2011", ["001.Albatross", "002.Jay", "003.Wren"]
    rows = [(c, split) for split in ("train", "test") for c in labels(split)]
    paths = [f"{names[c]}/bird_{i}.jpg" for i, (c, _) in enumerate(rows)]
    write(home / "classes.txt", [f"{i} {name}" for i, name in enumerate(names, 1)])
    write(home / "images.txt", [f"{i} {path}" for i, path in enumerate(paths, 1)])
    write(home / "image_class_labels.txt", [f"{i} {c + 1}" for i, (c, _) in enumerate(rows, 1)])
    write(home / "train_test_split.txt", [f"{i} {int(split == 'train')}" for i, (_, split) in enumerate(rows, 1)])
    for path in paths:
        photo(home / "images" / path)


def domainnet(root: Path, domain: str = "clipart") -> None:
    home, names = root / "domainnet", ["aircraft_carrier", "the_eiffel_tower", "zebra"]
    for split in ("train", "test"):
        rows = [f"{domain}/{names[c]}/{split}_{i}.jpg {c}" for i, c in enumerate(labels(split))]
        write(home / f"{domain}_{split}.txt", rows)
        for row in rows:
            photo(home / row.split()[0])


def webvision(root: Path) -> None:
    home = root / "webvision"
    write(home / "info/synsets.txt", ["n01440764 tench", "n01443537 goldfish, gold fish", "n01484850 shark"])
    for web in ("google", "flickr"):
        rows = [f"{web}/q{c:04d}/{i}.jpg {c}" for i, c in enumerate(labels("train"))]
        write(home / f"info/train_filelist_{web}.txt", rows)
        for row in rows:
            photo(home / row.split()[0])
    rows = [f"val{i:06d}.jpg {c}" for i, c in enumerate(labels("test"))]
    write(home / "info/val_filelist.txt", rows)
    for row in rows:
        photo(home / "val_images_256" / row.split()[0])


def flowers102(root: Path) -> None:
    home, number = root / "flowers-102", count(1)
    ids, classes = {}, []
    for split, key in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        classes += [c + 1 for c in labels(split)]
        ids[key] = np.array([[next(number) for _ in labels(split)]])
    for n in range(1, len(classes) + 1):
        photo(home / "jpg" / f"image_{n:05d}.jpg")
    savemat(home / "setid.mat", ids)
    savemat(home / "imagelabels.mat", {"labels": np.array([classes], np.uint8)})


def cars(root: Path) -> None:
    home, kind = root / "stanford_cars", [("fname", object), ("class", object)]
    (home / "devkit").mkdir(parents=True)
    savemat(
        home / "devkit/cars_meta.mat", {"class_names": np.array(["Acura TL 2012", "BMW M3 2012", "Fiat 500"], object)}
    )
    for split, file in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        rows = [(f"{i:05d}.jpg", c + 1) for i, c in enumerate(labels(split), 1)]
        savemat(home / file, {"annotations": np.array(rows, kind)})
        for name, _ in rows:
            photo(home / f"cars_{split}" / name)


def svhn(root: Path) -> None:
    for split in ("train", "test"):
        digits = labels(split, 10)
        (root / "svhn").mkdir(exist_ok=True, parents=True)
        arrays = {"X": pixels(len(digits), 32, 32, 3).transpose(1, 2, 3, 0), "y": np.where(digits, digits, 10)[:, None]}
        savemat(root / "svhn" / f"{split}_32x32.mat", arrays)


def cifar10(root: Path) -> None:
    home = root / "cifar-10-batches-py"
    home.mkdir()
    dump(home / "batches.meta", {"label_names": ["plane", "car", "bird"]})
    for i in range(1, 6):
        dump(home / f"data_batch_{i}", {"data": pixels(3, 3072), "labels": [0, 1, 2]})
    dump(home / "test_batch", {"data": pixels(6, 3072), "labels": labels("test").tolist()})


def cifar10_binary(root: Path) -> None:
    home = root / "cifar-10-batches-bin"
    write(home / "batches.meta.txt", ["plane", "car", "bird"])
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        rows = np.concatenate([np.array([[0], [1], [2]], np.uint8), pixels(3, 3072)], axis=1)
        rows.tofile(home / f"{name}.bin")


def cifar100(root: Path) -> None:
    home = root / "cifar-100-python"
    home.mkdir()
    dump(home / "meta", {"fine_label_names": ["apple", "bear", "cup"], "coarse_label_names": ["a", "b"]})
    for split in ("train", "test"):
        classes = labels(split).tolist()
        about = {"fine_labels": classes, "coarse_labels": [0] * len(classes)}
        dump(home / split, {"data": pixels(len(classes), 3072), **about})


def cifar100_binary(root: Path) -> None:
    home = root / "cifar-100-binary"
    write(home / "fine_label_names.txt", ["apple", "bear", "cup"])
    for split in ("train", "test"):
        fine = labels(split)[:, None].astype(np.uint8)
        np.concatenate([np.ones_like(fine), fine, pixels(len(fine), 3072)], axis=1).tofile(home / f"{split}.bin")


def dump(path: Path, content: dict) -> None:
    """As numpy had its names when CIFAR was made."""
    path.write_bytes(pickle.dumps(content, protocol=2).replace(b"numpy._core", b"numpy.core"))


def mnist(root: Path, packed: bool = False) -> None:
    home = root / "MNIST" / "raw"
    home.mkdir(parents=True)
    for split, stem in (("train", "train"), ("test", "t10k")):
        digits = labels(split, 10).astype(np.uint8)
        images = pixels(len(digits), 28, 28)
        for file, magic, array in (("images-idx3", 2051, images), ("labels-idx1", 2049, digits)):
            raw = np.array([magic, *array.shape], ">i4").tobytes() + array.tobytes()
            name = home / f"{stem}-{file}-ubyte"
            (name.with_name(f"{name.name}.gz") if packed else name).write_bytes(gzip.compress(raw) if packed else raw)


def stl10(root: Path) -> None:
    home = root / "stl10_binary"
    write(home / "class_names.txt", ["airplane", "bird", "car"])
    for split in ("train", "test"):
        classes = labels(split)
        pixels(len(classes), 3, 96, 96).tofile(home / f"{split}_X.bin")
        (classes + 1).astype(np.uint8).tofile(home / f"{split}_y.bin")
    pixels(4, 3, 96, 96).tofile(home / "unlabeled_X.bin")


def fer2013(root: Path) -> None:
    rows = ["emotion,pixels,Usage"]
    for split, usage in (("train", "Training"), ("val", "PublicTest"), ("test", "PrivateTest")):
        for emotion in labels(split, 7):
            rows.append(f"{emotion},{' '.join(map(str, pixels(48 * 48)))},{usage}")
    write(root / "fer2013/fer2013.csv", rows)


def hateful_memes(root: Path) -> None:
    """Enough for a hold-out that has both classes."""
    home = root / "hateful-memes"
    for split, file, classes in (("train", "train", [0, 1] * 12), ("test", "dev", [0, 0, 1, 1])):
        rows = [{"id": i, "img": f"img/{split}{i}.png", "label": c} for i, c in enumerate(classes)]
        write(home / f"{file}.jsonl", [json.dumps(row) for row in rows])
        for row in rows:
            photo(home / str(row["img"]))


def caltech101(root: Path) -> None:
    for name, n in (("BACKGROUND_Google", 32), ("accordion", 33), ("wrench", 31)):
        for i in range(n):
            photo(root / "caltech101/101_ObjectCategories" / name / f"image_{i + 1:04d}.jpg")


def gtsrb(root: Path) -> None:
    home = root / "gtsrb"
    for c in range(CLASSES):
        for track, frame in ((0, 0), (0, 1), (1, 0)):
            photo(home / f"GTSRB/Training/{c:05d}/{track:05d}_{frame:05d}.ppm")
    rows = [f"{i:05d}.ppm;24;20;1;1;20;20;{c}" for i, c in enumerate(labels("test"))]
    write(home / "GT-final_test.csv", ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId", *rows])
    for row in rows:
        photo(home / "GTSRB/Final_Test/Images" / row.split(";")[0])


def voc2007(root: Path) -> None:
    home, number = root / "VOCdevkit/VOC2007", count(1)
    kinds = [[("dog", 0), ("dog", 1)], [("person", 0), ("sofa", 0)], [("cat", 1), ("bird", 0)]]
    for split, each in EACH.items():
        ids = [f"{next(number):06d}" for _ in range(3 * each)]
        write(home / f"ImageSets/Main/{split}.txt", ids)
        for i, name in enumerate(ids):
            photo(home / "JPEGImages" / f"{name}.jpg")
            objects = "".join(
                f"<object><name>{word}</name><difficult>{hard}</difficult></object>" for word, hard in kinds[i % 3]
            )
            write(home / "Annotations" / f"{name}.xml", [f"<annotation>{objects}</annotation>"])


def patchcamelyon(root: Path) -> None:
    import h5py

    (root / "pcam").mkdir()
    for split, word in (("train", "train"), ("val", "valid"), ("test", "test")):
        classes = labels(split, 2).astype(np.uint8)
        for kind, array in (("x", pixels(len(classes), 96, 96, 3)), ("y", classes[:, None, None, None])):
            with h5py.File(root / "pcam" / f"camelyonpatch_level_2_split_{word}_{kind}.h5", "w") as file:
                file[kind] = array


def ucf101(root: Path) -> None:
    """As folders of extracted frames: the middle one is the image."""
    home, names = root / "ucf101", ["ApplyLipstick", "Archery", "BabyCrawling"]
    write(home / "ucfTrainTestlist/classInd.txt", [f"{i} {name}" for i, name in enumerate(names, 1)])
    for split, first in (("train", 8), ("test", 1)):
        clips = [f"{names[c]}/v_{names[c]}_g{first + i % 2:02d}_c{i:02d}" for i, c in enumerate(labels(split))]
        mark = " {}" if split == "train" else ""
        lines = [f"{clip}.avi{mark.format(c + 1)}" for clip, c in zip(clips, labels(split))]
        write(home / f"ucfTrainTestlist/{split}list01.txt", lines)
        for clip in clips:
            for frame in range(5):
                photo(home / "UCF-101" / clip / f"frame{frame:04d}.jpg")


WNIDS = ["n01440764", "n01443537", "n01484850"]


def imagenet1k(root: Path) -> None:
    for split, folder in (("train", "train"), ("test", "val")):
        for i, c in enumerate(labels(split)):
            photo(root / "imagenet" / folder / WNIDS[c] / f"{WNIDS[c]}_{i}.JPEG")


def imagenet100(root: Path) -> None:
    imagenet1k(root)
    write(root / "imagenet" / "imagenet-100.lst", WNIDS)


def imagenet22k(root: Path) -> None:
    for i, c in enumerate(labels("train")):
        photo(root / "imagenet22k" / WNIDS[c] / f"{WNIDS[c]}_{i}.JPEG")


def openimages(root: Path) -> None:
    for i in range(4):
        photo(root / f"openimages/train/train_{i % 2}/{i:016x}.jpg")


MAKERS: dict[str, Callable[[Path], None]] = {
    "food101": food101,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "sun397": sun397,
    "cars": cars,
    "aircraft": aircraft,
    "voc2007": voc2007,
    "dtd": dtd,
    "pets": pets,
    "caltech101": caltech101,
    "flowers102": flowers102,
    "mnist": mnist,
    "fer2013": fer2013,
    "stl10": stl10,
    "gtsrb": gtsrb,
    "patchcamelyon": patchcamelyon,
    "ucf101": ucf101,
    "hateful-memes": hateful_memes,
    "svhn": svhn,
    "indoor67": indoor67,
    "cub": cub,
    "imagenet1k": imagenet1k,
    "imagenet100": imagenet100,
    **{
        f"domainnet-{domain}": lambda root, domain=domain: domainnet(root, domain)
        for domain in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    },
    "imagenet22k": imagenet22k,
    "webvision": webvision,
    "openimages": openimages,
}
COUNTS = dict.fromkeys(MAKERS, (9, 0, 6)) | {
    "cifar10": (15, 0, 6),
    "aircraft": (9, 3, 6),
    "voc2007": (9, 3, 6),
    "dtd": (9, 3, 6),
    "caltech101": (90, 0, 6),
    "flowers102": (9, 3, 6),
    "mnist": (30, 0, 20),
    "fer2013": (21, 7, 14),
    "patchcamelyon": (6, 2, 4),
    "hateful-memes": (24, 0, 4),
    "svhn": (30, 0, 20),
    "imagenet22k": (9, 0, 0),
    "webvision": (18, 0, 6),
    "openimages": (4, 0, 0),
}
