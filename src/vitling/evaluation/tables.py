"""Tables of embedded images that Embedding Atlas, FiftyOne and Spotlight open (`vitling embed --for`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import normalize

from vitling.evaluation.knn import find_nearest
from vitling.evaluation.model import Model
from vitling.evaluation.projection import TSNE_LEAST, compute_tsne, project
from vitling.files import atomic_write, make_csv, write_file

Tool = Literal["atlas", "fiftyone", "spotlight"]
SUFFIXES: dict[Tool, str] = {"atlas": ".parquet", "fiftyone": ".csv", "spotlight": ".parquet"}
NEIGHBOURS = 10
TSNE_MOST = 5_000  # images; more are placed by their principal components


@dataclass
class EmbeddedSplit:
    """Features of a split, or of loose images; row i of each array belongs to `keys[i]`."""

    split: str
    keys: list[str]
    embeddings: np.ndarray
    labels: np.ndarray | None
    class_names: tuple[str, ...]
    errors: dict[str, str]


def write_table(out: Path, parts: list[EmbeddedSplit], tool: Tool, model: Model, source: str) -> None:
    """Write path, label, prediction, confidence, place and nearest images of each image, in the form of the tool."""
    vectors = np.concatenate([part.embeddings for part in parts])
    rows, distances = _find_neighbours(vectors)
    paths = [_locate(source, key) for part in parts for key in part.keys]
    columns: dict[str, Any] = {
        "filepath" if tool == "fiftyone" else "path": paths,
        "split": [part.split for part in parts for _ in part.keys],
        "label": ["|".join(name) if isinstance(name, list) else name for part in parts for name in name_labels(part)],
        **_predict(model, vectors),
        **dict(zip("xy", _place(vectors).T.tolist())),
    }
    if tool == "fiftyone":
        _write_csv(out, columns | {"neighbours": ["|".join(paths[i] for i in row) for row in rows]})
        return
    if tool == "atlas":
        near = [{"ids": row.tolist(), "distances": far.tolist()} for row, far in zip(rows, distances)]
        columns = {"id": list(range(len(paths)))} | columns | {"neighbors": near}
    else:
        columns |= {"neighbours": [[paths[i] for i in row] for row in rows], "embedding": vectors.tolist()}
    write_parquet(out, columns)


def _find_neighbours(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the rows [N, k] of the nearest other images, and the cosine distances to them."""
    unit = normalize(torch.from_numpy(vectors).float(), dim=1)
    similarity, rows = find_nearest(unit, unit, min(NEIGHBOURS, len(unit) - 1), first=0)
    return rows.numpy(), (1 - similarity).numpy()


def _place(vectors: np.ndarray) -> np.ndarray:
    """Place the images in the plane, [N, 2]: by t-SNE, or by principal components if they are few or many."""
    components = project(vectors.astype(np.float64))
    if TSNE_LEAST <= len(vectors) <= TSNE_MOST:
        return compute_tsne(components)
    return components[:, :2]


@torch.inference_mode()
def _predict(model: Model, vectors: np.ndarray) -> dict[str, Any]:
    """Return the predicted classes and their calibrated probability; nothing for a model without a head."""
    if model.head is None:
        return {}
    scaled = model.head(torch.from_numpy(vectors).to(model.device)).float().cpu() / model.meta.temperature
    if model.meta.task == "multi":
        rows = (scaled > 0).tolist()
        names = ["|".join(name for name, chosen in zip(model.class_names, row) if chosen) for row in rows]
        return {"prediction": names, "confidence": scaled.sigmoid().amax(dim=1).tolist()}
    best = scaled.softmax(dim=1).max(dim=1)
    return {"prediction": [model.class_names[c] for c in best.indices], "confidence": best.values.tolist()}


def name_labels(part: EmbeddedSplit) -> list[Any]:
    """Return the name of each image's class; a list of names where an image may have several, None without labels."""
    if part.labels is None:
        return [None] * len(part.keys)
    if part.labels.ndim == 1:
        return [part.class_names[c] for c in part.labels]
    return [[part.class_names[c] for c in np.flatnonzero(row)] for row in part.labels]


def _locate(source: str, key: str) -> str:
    """Return the absolute path of an image; images without a file of their own keep their name in the data."""
    for path in (Path(source) / key, Path(source).parent / key, Path(key)):
        if path.is_file():
            return str(path.resolve())
    return key


def _write_csv(out: Path, columns: dict[str, Any]) -> None:
    cells = zip(*([_format_cell(cell) for cell in column] for column in columns.values()))
    write_file(out, make_csv([list(columns), *cells]))


def _format_cell(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.6g}"
    return "" if cell is None else str(cell)


def write_parquet(out: Path, columns: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_write(out) as file:
        pq.write_table(pa.table(columns), file)
