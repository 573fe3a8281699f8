"""Describe the image files behind results/, and add content hashes to results that were recorded without them.

python -m vitling.papers.data_files results DIR [FILE=NAME[/SPLIT] ...]

DIR holds the datasets, as for `vitling reproduce --data`; files that were described before stay in the list. FILE=NAME
names the dataset of a benchmark's results whose command does not; with /SPLIT, one split of it. Hashes that are added
say so: nothing proves that the files are those of the time.
"""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitling.files import write_json
from vitling.loading import read_json
from vitling.papers.datasets import find_copy, register_readers
from vitling.papers.datasets.entry import ENTRIES
from vitling.papers.ledger import Ledger, Row
from vitling.papers.locations import DATASETS, find_data
from vitling.papers.studies import find_study
from vitling.papers.study import StudyRun
from vitling.report.data_files import FILE, read_known

if TYPE_CHECKING:
    from vitling.data.dataset import Dataset

COMMAND = "python -m vitling.papers.data_files results DIR"
WHAT = "The image files behind the results"
DIGITS = "embedded:digits"  # come with scikit-learn
_FILE = re.compile(r"([\w-]+?)-(?:train|test)[\w-]*\.(?:tar|parquet)")


@dataclass
class Collection:
    """The datasets in a folder. Each split is read once, when it is needed."""

    folder: Path

    def __post_init__(self) -> None:
        self.splits: dict[tuple[str, str], dict[str, Any]] = {}

    def describe(self, name: str) -> dict[str, dict[str, Any]]:
        """Describe the splits of a dataset; empty if the folder does not have it."""
        if not any(known == name for known, _ in self.splits):
            for split, dataset in _open_splits(name, self.folder):
                self.splits[name, split] = {
                    "data": name,
                    "split": split,
                    **describe_files(dataset),
                    "distributed": name == DIGITS or bool(name in ENTRIES and find_copy(name, self.folder)),
                }
        return {split: found for (known, split), found in self.splits.items() if known == name}

    def list_hashes(self, name: str) -> dict[str, str]:
        return {split: found["content_hash"] for split, found in self.describe(name).items()}


def mark_hashes(hashes: dict[str, str], *assumed: str) -> dict[str, Any]:
    return {"data_hashes": hashes, "data_hashes_from": f"computed later by `{' '.join([COMMAND, *assumed])}`"}


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


def add_hashes(path: Path, collection: Collection, assumed: dict[str, str]) -> None:
    """Add hashes to the rows of a study, or to a file of measurements, that have none."""
    content = read_json(path)
    if "study" in content:
        study = find_study(content["study"])
        runs = {run.name: run for run in study.runs}

        def add(row: Row) -> Row:
            run = runs.get(row["run"])
            hashes = _list_run_hashes(run, collection) if run else {}
            return row | mark_hashes(hashes) if hashes and "value" in row and not row.get("data_hashes") else row

        Ledger(path, study, content.get("trial")).rewrite(add)
        return
    what = assumed.get(path.stem) or _find_name(content.get("command", ""))
    name, _, only = what.partition("/")
    hashes = {s: hash for s, hash in collection.list_hashes(name).items() if only in ("", s)} if name else {}
    if hashes and not content.get("data_hashes"):
        words = [f"{path.stem}={what}"] if path.stem in assumed else []
        write_json(path, content | mark_hashes(hashes, *words))


def _list_run_hashes(run: StudyRun, collection: Collection) -> dict[str, str]:
    hashes = collection.list_hashes(run.data) if run.data else {}
    before = collection.list_hashes(run.pretrain_data) if run.pretrain_data else {}
    return hashes | ({"pretrain": before["train"]} if before else {})


def _find_name(command: str) -> str:
    """Find the dataset that a command names by its files, or NAME/train if it names only that split."""
    if DIGITS in command or command.startswith("vitling demo"):
        return DIGITS
    found = _FILE.search(command)
    if not found or found[1] not in DATASETS:
        return ""
    return found[1] if f"{found[1]}-test" in command else f"{found[1]}/train"


def main(results: str, folder: str, *assumed: str) -> None:
    from vitling.training.rundir import describe_environment

    register_readers()
    collection = Collection(Path(folder))
    for path in sorted(Path(results).glob("*.json")):
        if path.name != FILE:
            add_hashes(path, collection, dict(word.split("=") for word in assumed))
    known = read_known(Path(results)) | {found["content_hash"]: found for found in collection.splits.values()}
    splits = sorted(known.values(), key=lambda found: (found["data"], found["split"], found["content_hash"]))
    environment = describe_environment() | {"command": COMMAND}
    write_json(Path(results) / FILE, {"what": WHAT, "command": COMMAND, "environment": environment, "splits": splits})
    print(f"Saved to {Path(results) / FILE}")


if __name__ == "__main__":
    main(*sys.argv[1:])
