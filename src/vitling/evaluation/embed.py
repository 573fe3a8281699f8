"""`vitling embed`: features of images as .npz or .parquet, with keys and any labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitling.console import Log
from vitling.data.config import MAX_PIXELS, DataConfig
from vitling.data.dataset import Dataset, Splits
from vitling.data.splits import read_splits
from vitling.errors import UserError
from vitling.evaluation.bundle import load
from vitling.evaluation.config import Weights
from vitling.evaluation.inputs import IMAGE_SUFFIXES, Source, list_dataset_sources, list_sources
from vitling.evaluation.model import Model
from vitling.evaluation.tables import SUFFIXES, EmbeddedSplit, Tool, name_labels, write_parquet, write_table
from vitling.files import atomic_write, check_writable


def embed(
    model_path: str | os.PathLike,
    inputs: str | Sequence[str],
    out: str | os.PathLike,
    weights: Weights = "last",
    on_test_opened: Callable[[str], None] | None = None,
    config: DataConfig | None = None,
    tool: Tool | None = None,
) -> dict[str, str]:
    """Write the features of a dataset (all splits) or of loose images; return the unreadable images and why.

    For a tool, write a table that it opens instead.
    """
    out = Path(out)
    suffixes = list(_WRITERS) if tool is None else [SUFFIXES[tool]]
    if out.suffix not in suffixes:
        wanted = "" if tool is None else f" with --for {tool}"
        raise UserError(f"--out {out} must end in {' or '.join(suffixes)}{wanted}.")
    named = [inputs] if isinstance(inputs, str) else list(inputs)
    if not named:
        raise UserError("No images given. Name a dataset, files or globs: vitling embed RUN IMAGES ... --out PATH")
    check_writable(out)
    model = load(model_path, weights)
    config = replace(config or DataConfig(), channels=model.meta.channels, bits=model.meta.bits)
    if config.max_pixels != MAX_PIXELS:
        model.meta = replace(model.meta, max_pixels=config.max_pixels)
    if len(named) == 1 and Path(named[0]).suffix.lower() not in IMAGE_SUFFIXES:
        parts = _embed_dataset_source(model, named[0], config, on_test_opened)
    else:
        parts = [_embed_sources(model, "images", list_sources(named))]
    parts = [part for part in parts if len(part.keys) or part.errors]
    errors = {key: reason for part in parts for key, reason in part.errors.items()}
    if not any(len(part.keys) for part in parts):
        first = next((f" {key}: {reason}." for key, reason in errors.items()), "")
        raise UserError(f"None of the images could be read.{first}")
    if tool is None:
        _WRITERS[out.suffix](out, parts)
    elif sum(len(part.keys) for part in parts) < 2:
        raise UserError(f"--for {tool} needs at least two images that can be read.")
    else:
        write_table(out, [part for part in parts if len(part.keys)], tool, model, named[0])
    return errors


def _embed_dataset_source(
    model: Model, spec: str, config: DataConfig, on_test_opened: Callable[[str], None] | None
) -> list[EmbeddedSplit]:
    splits = read_splits(spec, config, needs_train=False)
    splits.on_test_opened = on_test_opened or splits.on_test_opened
    parts = [
        _embed_sources(model, split, list_dataset_sources(part), part.labels, part.class_names)
        for split, part in _open_splits(splits)
    ]
    parts[0].errors |= {bad.key: bad.reason for bad in splits.bad}
    return parts


def _open_splits(splits: Splits) -> Iterable[tuple[str, Dataset]]:
    named = {"train": splits.train, "val": splits.val, "unlabelled": splits.pool}
    if splits.has_test:
        named["test"] = splits.open_test("embed")
    return [(name, part) for name, part in named.items() if part is not None and len(part)]


def _embed_sources(
    model: Model, split: str, sources: list[Source], labels: np.ndarray | None = None, class_names: tuple[str, ...] = ()
) -> EmbeddedSplit:
    with Log().progress(f"Embedding {split}", len(sources)) as progress:
        rows, vectors, errors = model.embed_sources(sources, progress)
    kept = None if labels is None else labels[rows]
    return EmbeddedSplit(split, [sources[i].name for i in rows], vectors, kept, class_names, errors)


def _write_npz(out: Path, parts: list[EmbeddedSplit]) -> None:
    arrays: dict[str, Any] = {
        "keys": np.array([key for part in parts for key in part.keys]),
        "split": np.array([part.split for part in parts for _ in part.keys]),
        "embeddings": np.concatenate([part.embeddings for part in parts]),
    }
    known = [part.labels for part in parts if part.labels is not None]
    if known:
        arrays["labels"] = np.concatenate([_labels_or_blank(part, known[0]) for part in parts])
        arrays["class_names"] = np.array(next(part.class_names for part in parts if part.class_names))
    with atomic_write(out) as file:
        np.savez(file, **arrays)


def _labels_or_blank(part: EmbeddedSplit, like: np.ndarray) -> np.ndarray:
    """Return the labels, or for an unlabelled split -1 (all False if images may have several labels)."""
    if part.labels is not None:
        return part.labels
    return np.full((len(part.keys), *like.shape[1:]), -1 if like.ndim == 1 else False, dtype=like.dtype)


def _write_parquet(out: Path, parts: list[EmbeddedSplit]) -> None:
    import pyarrow as pa

    columns: dict[str, Any] = {
        "key": [key for part in parts for key in part.keys],
        "split": [part.split for part in parts for _ in part.keys],
    }
    if any(part.labels is not None for part in parts):
        columns["label"] = [label for part in parts for label in name_labels(part)]
    vectors = np.concatenate([part.embeddings for part in parts])
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    write_parquet(out, columns)


_WRITERS = {".npz": _write_npz, ".parquet": _write_parquet}
