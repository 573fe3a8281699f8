"""Files of annotated data, in a folder or a tar, found by names that other machines have written."""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from vitling.data.dataset import Reader
from vitling.data.sources.folder import FileReader, walk_files
from vitling.data.sources.layout import make_printable, strip_shared_folders
from vitling.data.sources.source import IMAGE_SUFFIXES, SPLIT_OF
from vitling.data.sources.tar import TarReader, list_members
from vitling.errors import UserError
from vitling.loading import expand_home

ANNOTATION_FOLDERS = frozenset(["annotations", "labels"])
IMAGE_FOLDERS = frozenset(["images", "image", "imgs", "img", "jpegimages"])
MAX_NAMESAKES = 300  # images of one name whose paths are compared with that of the annotations, each time
_DEPTH = 8  # folders and name that images are indexed by


class Files:
    """Files by their path below the data's root; row i of `reader` is `names[i]`."""

    def __init__(self, name: str, names: list[str], reader: Reader):
        self.name, self.reader = name, reader
        self.names = strip_shared_folders([make_printable(name) for name in names])
        self.rows = {name: row for row, name in enumerate(self.names)}
        self.images = [name for name in self.names if get_suffix(name) in IMAGE_SUFFIXES]
        self._by_ending: dict[str, list[str]] = defaultdict(list)
        self._by_stem: dict[str, list[str]] = defaultdict(list)
        self._by_place: dict[str, list[str]] = defaultdict(list)  # without suffix and folder of images
        for image in self.images:
            for ending in _list_endings(image)[:_DEPTH]:
                self._by_ending[ending].append(image)
            self._by_stem[get_stem(image)].append(image)
            self._by_place[strip_folder(image, IMAGE_FOLDERS) or posixpath.splitext(image)[0]].append(image)
        self._sorted: dict[str, list[str]] = {}  # images of one ending or stem, if there are many

    def read(self, name: str) -> bytes:
        raw = self.reader(self.rows[name])
        assert isinstance(raw, bytes)
        return raw

    def find_image(self, name: str, near: str = "") -> str | None:
        """Find an image by the name that the annotation file `near` gives it.

        Of several with the same ending, the one whose path is most like `near` is taken. If no image has the folders
        of the name, only an image whose file name is unique is taken: annotations must not go to a wrong one.
        """
        name = posixpath.normpath(make_printable(name).replace("\\", "/"))
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(near), name))
        for exact in (beside, name):
            if exact in self.rows:
                return exact
        base, name = posixpath.basename(name), name.lstrip("./")
        endings = _list_endings(name)
        longer = self._by_ending.get(endings[:_DEPTH][-1], [])
        if len(endings) > _DEPTH:
            longer = [image for image in longer if _ends_with(image, name)]
        if longer:
            return self._choose_nearest(name, longer, near)
        found = self._by_ending.get(base, [])
        if "/" in name and len(found) > 1:
            return max((ending for ending in endings[1:] if ending in self.rows), key=len, default=None)
        return self._choose_nearest(base, found, near)

    def find_partner(self, name: str) -> str | None:
        """Find the image with the same name as an annotation file, except for folder and suffix."""
        stem = get_stem(name)
        if nearest := self._choose_nearest(f"stem {stem}", self._by_stem.get(stem, []), name):
            return nearest
        same_place = self._by_place.get(strip_folder(name, ANNOTATION_FOLDERS) or posixpath.splitext(name)[0], [])
        return same_place[0] if len(same_place) == 1 else None

    def _choose_nearest(self, key: str, images: list[str], near: str) -> str | None:
        """Choose the image whose path is most like `near`. Of many, only those in the nearest folder above `near` are
        compared; None if these are many too. `key` names the images."""
        if len(images) > MAX_NAMESAKES:
            if key not in self._sorted:
                self._sorted[key] = sorted(images)
            images = _find_below(self._sorted[key], posixpath.dirname(near))
        return _find_most_similar(images, near)


def open_files(spec: str) -> tuple[Files, str | None]:
    """List the files of a folder or tar. For an annotation file, list those beside it; also return its name."""
    path = expand_home(spec)
    if path.is_dir():
        return _open_folder(path), None
    if not path.is_file():
        raise UserError(f"{path} does not exist. Pass a folder, a tar or a JSON file with annotations.")
    if path.suffix.lower() == ".tar":
        members = list_members(path)
        return Files(path.stem, list(members), TarReader(path, np.array(list(members.values())).reshape(-1, 2))), None
    if path.suffix.lower() != ".json":
        raise UserError(f"{path} holds no annotations. Pass a folder, a .tar or a .json file.")
    root = path.parent.parent if path.parent.name.lower() in ANNOTATION_FOLDERS else path.parent
    files = _open_folder(root)
    wanted = make_printable(path.relative_to(root).as_posix())
    found = max((name for name in files.names if _ends_with(wanted, name)), key=len, default=None)
    if found is None:
        raise UserError(f"{path} is hidden or cannot be read. Rename it so that its name does not begin with a dot.")
    return files, found


def _open_folder(root: Path) -> Files:
    names = [path for path, kind in walk_files(str(root), "", set()) if kind == "file"]
    return Files(make_printable(root.resolve().name), names, FileReader(root, names))


def _ends_with(path: str, ending: str) -> bool:
    """Return whether the last folders and the name of a path are those of the ending."""
    return f"/{path}".endswith(f"/{ending}")


def _list_endings(path: str) -> list[str]:
    """List the last part of a path, its last two parts and so on."""
    parts = path.split("/")
    return ["/".join(parts[-k:]) for k in range(1, len(parts) + 1)]


def _find_below(images: list[str], folder: str) -> list[str]:
    """Return those of the sorted images that are in a folder or, if there are none, in the next one above that has
    some; none if that has more than MAX_NAMESAKES."""
    while True:
        start = f"{folder}/" if folder else ""
        low, high = bisect_left(images, start), bisect_left(images, f"{start}\U0010ffff")
        if low < high or not folder:
            return images[low:high] if high - low <= MAX_NAMESAKES else []
        folder = posixpath.dirname(folder)


def _find_most_similar(images: list[str], near: str) -> str | None:
    """Return the image whose path shares most words and the longest start with that of `near`."""
    folder, wanted = posixpath.dirname(near), set(split_words(near))

    def rate(image: str) -> tuple[int, int]:
        shared = posixpath.commonprefix([posixpath.dirname(image).split("/"), folder.split("/")])
        return len(wanted & set(split_words(image))), len(shared)

    return max(images, key=rate, default=None)


def strip_folder(name: str, kinds: Collection[str]) -> str | None:
    """Return a path without its suffix and without the first folder of these kinds; None if it is in none of them."""
    *folders, _ = parts = posixpath.splitext(name)[0].split("/")
    place = next((k for k, folder in enumerate(folders) if folder.lower() in kinds), None)
    return None if place is None else "/".join(parts[:place] + parts[place + 1 :])


def get_stem(name: str) -> str:
    return posixpath.splitext(posixpath.basename(name))[0]


def get_suffix(name: str) -> str:
    return posixpath.splitext(name)[1].lower()


def split_words(path: str) -> list[str]:
    """Return the words of a path in lower case: annotations, instances, train for annotations/instances_train2017."""
    return re.findall(r"[^\W\d_]+", posixpath.splitext(path)[0].lower())


def find_split(path: str) -> str:
    """Find the split in the words of a path; train if there is none."""
    found = [SPLIT_OF[word] for word in split_words(path) if word in SPLIT_OF]
    return found[-1] if found else "train"


def read_names(files: Files, candidates: Sequence[str]) -> list[str]:
    """Read the lines of the first of these files that exists, such as classes.txt; [] without one."""
    for name in candidates:
        if name in files.rows:
            lines = files.read(name).decode("utf-8", "replace").splitlines()
            return [make_printable(line.strip()) for line in lines if line.strip()]
    return []


def read_lists(files: Files, kind: str) -> dict[str, str]:
    """Return the split of each image from Pascal VOC's lists, ImageSets/KIND/train.txt and so on; {} without them."""
    splits: dict[str, str] = {}
    for name in files.names:
        *folders, list_file = name.lower().split("/")
        if folders[-2:] == ["imagesets", kind] and list_file in ("train.txt", "val.txt", "test.txt"):
            for line in files.read(name).decode("utf-8", "replace").splitlines():
                if words := line.split():
                    splits[make_printable(words[0])] = list_file.removesuffix(".txt")
    return splits
