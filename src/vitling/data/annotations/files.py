"""Files of annotated data, in a folder or a tar, found by names that other machines have written."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from vitling.data.dataset import Reader
from vitling.data.sources.folder import FileReader, walk_files
from vitling.data.sources.layout import make_printable
from vitling.data.sources.source import IMAGE_SUFFIXES, SPLIT_OF
from vitling.data.sources.tar import TarReader, list_members
from vitling.errors import UserError

ANNOTATION_FOLDERS = frozenset(["annotations", "labels", "labelling"])


class Files:
    """Files by their path below the data's root; row i of `reader` is `names[i]`."""

    def __init__(self, name: str, names: list[str], reader: Reader):
        self.name, self.reader = name, reader
        self.names = _strip_shared_folders([make_printable(name) for name in names])
        self.rows = {name: row for row, name in enumerate(self.names)}
        self.images = [name for name in self.names if get_suffix(name) in IMAGE_SUFFIXES]
        self._by_base: dict[str, list[str]] = defaultdict(list)
        for image in self.images:
            self._by_base[posixpath.basename(image)].append(image)

    def read(self, name: str) -> bytes:
        raw = self.reader(self.rows[name])
        assert isinstance(raw, bytes)
        return raw

    def find_image(self, name: str, near: str = "") -> str | None:
        """Find an image by the name that the annotation file `near` gives it.

        Of several with the same ending, the one that shares most words with `near`, such as train, is taken.
        """
        name = posixpath.normpath(make_printable(name).replace("\\", "/"))
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(near), name))
        for exact in (beside, name):
            if exact in self.rows:
                return exact
        found = self._by_base.get(posixpath.basename(name), [])
        longer = [image for image in found if image.endswith("/" + name.lstrip("./"))] or found
        wanted = set(split_words(near))
        return max(longer, key=lambda image: len(wanted & set(split_words(image))), default=None)


def open_files(spec: str) -> tuple[Files, str | None]:
    """List the files of a folder or tar. For an annotation file, list those beside it; also return its name."""
    path = Path(spec).expanduser()
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
    return files, next(name for name in files.names if wanted.endswith(name))


def _open_folder(root: Path) -> Files:
    names = [path for path, kind in walk_files(str(root), "", set()) if kind == "file"]
    return Files(make_printable(root.resolve().name), names, FileReader(root, names))


def _strip_shared_folders(names: list[str]) -> list[str]:
    """Strip folders that contain everything, such as `VOC2012/`, unless they name a split."""
    while names:
        tops = {name.partition("/")[0] for name in names}
        if len(tops) > 1 or not all(name.count("/") > 1 for name in names) or tops.pop().lower() in SPLIT_OF:
            break
        names = [name.partition("/")[2] for name in names]
    return names


def get_suffix(name: str) -> str:
    return posixpath.splitext(name)[1].lower()


def split_words(path: str) -> list[str]:
    """Return the words of a path in lower case: annotations, instances, train for annotations/instances_train2017."""
    return re.findall(r"[^\W\d_]+", posixpath.splitext(path)[0].lower())


def find_split(path: str) -> str:
    """Find the split in the words of a path; train if there is none."""
    found = [SPLIT_OF[word] for word in split_words(path) if word in SPLIT_OF]
    return found[-1] if found else "train"
