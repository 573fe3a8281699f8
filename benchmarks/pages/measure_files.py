"""Describe the image files behind results/: their content hash, number, formats and sides.

python -m benchmarks.pages.measure_files results DIR [NAME ...]

DIR holds the datasets, as for `vitling reproduce --data`; without a NAME, all that it has are described. Files that
were described before stay in the list.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.pages.data_files import FILE, read_known
from vitling.errors import UserError
from vitling.files import write_json
from vitling.papers.datasets import find_copy, register_readers
from vitling.papers.datasets.entry import ENTRIES
from vitling.papers.locations import DATASETS, find_data

if TYPE_CHECKING:
    from vitling.data.dataset import Dataset

COMMAND = "python -m benchmarks.pages.measure_files results DIR"
WHAT = "The image files behind the results"
DIGITS = "embedded:digits"  # come with scikit-learn


def describe_files(dataset: Dataset) -> dict[str, Any]:
    """Return the content hash of a split, and count, formats and sides of its files without decoding them."""
    import numpy as np
    from PIL import Image

    from vitling.data.content import hash_content

    formats: Counter[str] = Counter()
    sides = []
    for i in range(len(dataset)):
        raw = dataset.read(i)
        if isinstance(raw, np.ndarray):
            formats["array"] += 1
            sides.append(sorted(raw.shape[:2]))
        else:
            with Image.open(io.BytesIO(raw)) as image:
                formats[image.format or "unknown"] += 1
                sides.append(sorted(image.size))
    shorter, longer = zip(*sides)
    return {
        "content_hash": hash_content(dataset),
        "images": len(dataset),
        "formats": dict(formats.most_common()),
        "shorter_side": [min(shorter), max(shorter)],
        "longer_side": [min(longer), max(longer)],
    }


def _open_splits(name: str, folder: Path) -> Iterator[tuple[str, Dataset]]:
    from vitling.data.annotations.open import open_annotated
    from vitling.data.config import DataConfig
    from vitling.data.splits import read_splits

    if name == DIGITS:
        splits = read_splits(DIGITS, DataConfig())
        yield from (("train", splits.train), ("test", splits.open_test("content hash")))
        return
    if name in DATASETS and DATASETS[name].annotated:
        if found := find_data(name, folder):
            annotated = open_annotated(found[0], "detect" if name == "coco" else "segment", needs_train=False)
            yield from ((split, part.dataset) for split, part in annotated.items() if part is not None)
        return
    for split, source in zip(("train", "test"), find_data(name, folder) or ()):
        if source:
            yield split, read_splits(f"train={source}", DataConfig()).train


def main(results: str, folder: str, *names: str) -> None:
    from vitling.training.rundir import describe_environment

    register_readers()
    known = read_known(Path(results))
    if unknown := set(names) - {DIGITS, *DATASETS}:
        raise UserError(f"{min(unknown)}: unknown; choose from {', '.join((DIGITS, *DATASETS))}.")
    for name in names or (DIGITS, *DATASETS):
        copy = name == DIGITS or bool(name in ENTRIES and find_copy(name, Path(folder)))
        for split, dataset in _open_splits(name, Path(folder)):
            found = {"data": name, "split": split, **describe_files(dataset), "distributed": copy}
            known[found["content_hash"]] = found
    splits = sorted(known.values(), key=lambda found: (found["data"], found["split"], found["content_hash"]))
    environment = describe_environment() | {"command": COMMAND}
    write_json(Path(results) / FILE, {"what": WHAT, "command": COMMAND, "environment": environment, "splits": splits})
    print(f"Saved to {Path(results) / FILE}")


if __name__ == "__main__":
    main(*sys.argv[1:])
