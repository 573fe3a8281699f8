"""The image files behind the results: their hashes, and how they differ from the files as distributed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitling.loading import read_json

FILE = "data-files.json"

Known = dict[str, dict[str, Any]]  # a split by its content hash


def read_known(folder: Path) -> Known:
    """Read results/data-files.json; empty if there is none."""
    path = folder / FILE
    return {split["content_hash"]: split for split in read_json(path)["splits"]} if path.exists() else {}


def list_hashes(content: dict[str, Any]) -> list[str]:
    """List the content hashes in a results file, each once."""
    rows = [row for row in content.get("rows") or [] if isinstance(row, dict)] if _has_rows(content) else []
    named = [part.get("data_hashes", {}) for part in (content, content.get("result") or {}, *rows)]
    return list(dict.fromkeys(hash for hashes in named for hash in hashes.values()))


def _has_rows(content: dict[str, Any]) -> bool:
    return isinstance(content.get("rows"), list)


def describe_data(content: dict[str, Any], known: Known) -> str:
    """Describe the data of a results file in a line; "" if it names none."""
    found = [describe_split(hash, known) for hash in list_hashes(content)]
    return f"Data: {'; '.join(found)}." if found else ""


def describe_split(hash: str, known: Known) -> str:
    if hash not in known:
        return f"`{hash}` (files not described)"
    split = known[hash]
    other = "" if split["distributed"] else f", not the original files: {describe_files(split)}"
    return f"{split['data']} {split['split']} `{hash}`{other}"


def describe_files(split: dict[str, Any]) -> str:
    """Describe formats and sizes, such as "WEBP, shorter side 384 px"."""
    (shortest, shorter), (_, longest) = split["shorter_side"], split["longer_side"]
    if shortest == longest:
        size = f"{shortest} x {shortest} px"
    else:
        size = f"shorter side {shortest if shortest == shorter else f'{shortest} to {shorter}'} px"
    return f"{' and '.join(split['formats'])}, {size}"


def tabulate(known: Known) -> list[list[str]]:
    """Make a row for each split: data, split, images, files, whether they are original, hash."""
    return [
        [
            split["data"],
            split["split"],
            f"{split['images']:,}",
            describe_files(split),
            "yes" if split["distributed"] else "no",
            f"`{hash}`",
        ]
        for hash, split in known.items()
    ]
