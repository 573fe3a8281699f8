"""Reader for Parquet as written by Hugging Face: an image column (bytes, or a struct with bytes) and a label column."""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitling.data.config import DataConfig
from vitling.data.sources.source import (
    Source,
    SourceSplit,
    concat_splits,
    drop_empty_labels,
    find_split_in_name,
    sort_class_names,
)
from vitling.errors import InvalidFile, UserError
from vitling.loading import MAX_UNPACKED, check_expansion, check_regular, parse_json

MAX_ROWS = 10**6  # in a file of any size; larger files may have one row per byte
BATCH = 64  # rows that are read at a time
LABEL_NAMES = ("label", "labels", "fine_label", "class", "target")


class ParquetReader:
    """Reader of a Parquet column. Row groups are loaded on first use and kept in Arrow, without Python objects."""

    def __init__(self, path: Path, column: str):
        self.path, self.column = path, column
        metadata = pq.read_metadata(path)
        sizes = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
        self.starts = np.cumsum([0, *sizes]).tolist()
        self.groups: dict[int, pa.Array | InvalidFile] = {}
        self.size = 0  # bytes of the groups
        self.lock = threading.Lock()

    def __reduce__(self):
        return ParquetReader, (self.path, self.column)

    def __call__(self, row: int) -> bytes:
        group = bisect_right(self.starts, row) - 1
        value = self._load_group(group)[row - self.starts[group]].as_py()
        if value is None:
            raise ValueError("the row has no image bytes")
        return value

    def _load_group(self, group: int) -> pa.Array:
        with self.lock:
            if group not in self.groups:
                try:
                    self.groups[group] = self._read_group(group)
                except InvalidFile as problem:
                    self.groups[group] = problem  # raised for every row, without unpacking the group again
            found = self.groups[group]
        if isinstance(found, InvalidFile):
            raise found
        return found

    def _read_group(self, group: int) -> pa.Array:
        images = _read_columns(self.path, [self.column], [group], self.size).column(0).combine_chunks()
        if isinstance(images, pa.ChunkedArray):
            images = pa.concat_arrays(images.chunks)
        self.size += images.nbytes
        return images.field("bytes") if pa.types.is_struct(images.type) else images


def read(paths: Sequence[Path], name: str, config: DataConfig) -> Source:
    source = Source(name)
    by_split: dict[str, list[SourceSplit]] = defaultdict(list)
    for path in paths:
        try:
            check_regular(path)
            schema = pq.read_schema(path)
            if len(set(schema.names)) < len(schema.names):
                raise InvalidFile(path, "has two columns of the same name")
            label = _find_label_column(schema, config)
            names = _read_class_names(schema, label)
            source.class_order = source.class_order or names
            source.multi |= label is not None and _is_list(schema.field(label).type)
            split = _read_split(path, schema, label, names, config)
        # ValueError: names that are not UTF-8, among others; OverflowError: times that Python cannot express
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            reason = " ".join(str(error).split())  # Arrow's may have several lines
            raise InvalidFile(path, f"cannot be read as Parquet ({reason}); the copy may be incomplete") from None
        where = path.name if len(paths) == 1 else f"{path.parent.name}/{path.name}"
        by_split[find_split_in_name(where) or "train"].append(split)
    source.splits = {name: concat_splits(splits) for name, splits in by_split.items()}
    drop_empty_labels(source)
    train = source.splits.get("train")
    if source.class_order is None and train is not None and train.labels is not None:
        source.class_order = sort_class_names({word for words in train.labels for word in words})
    return source


def _read_split(
    path: Path, schema: pa.Schema, label: str | None, names: Sequence[str] | None, config: DataConfig
) -> SourceSplit:
    group = config.group_column if config.group_column in schema.names else None
    columns = [column for column in (label, group) if column]
    reader = ParquetReader(path, _find_image_column(path, schema))
    n = reader.starts[-1]
    if n > max(MAX_ROWS, path.stat().st_size):  # nulls take no space in the file, but in memory
        raise InvalidFile(path, f"{n:,} rows in {path.stat().st_size:,} bytes cannot be images")
    table = _read_columns(path, columns) if columns else None
    split = SourceSplit([f"{path.name}[{i}]" for i in range(n)], reader, np.arange(n))
    if table is not None and label:
        split.labels = [_name_labels(path, value, names) for value in table.column(label).to_pylist()]
    if table is not None and group:
        split.groups = ["" if value is None else str(value) for value in table.column(group).to_pylist()]
    return split


def _read_columns(path: Path, columns: list[str], groups: list[int] | None = None, size: int = 0) -> pa.Table:
    """Read columns a few rows at a time: a value that is stored once may be repeated in a million rows.

    `size` is the number of bytes that were read from the file before.
    """
    batches = []
    with pq.ParquetFile(path) as file:
        largest = max(_list_chunk_sizes(file.metadata, columns, groups), default=0)
        check_expansion(path, size + largest)
        rows = max(1, min(BATCH, MAX_UNPACKED // max(largest, 1)))  # each may have a value of that size
        for batch in file.iter_batches(rows, groups, columns, use_threads=False):
            batches.append(batch)
            size += batch.nbytes
            check_expansion(path, size)
        schema = pa.schema([file.schema_arrow.field(column) for column in columns])
    return pa.Table.from_batches(batches, None if batches else schema)


def _list_chunk_sizes(metadata: pq.FileMetaData, columns: list[str], groups: list[int] | None) -> list[int]:
    """Return the unpacked bytes of each of the columns in each row group, as the file states them."""
    names = [metadata.schema.column(c).path.partition(".")[0] for c in range(metadata.num_columns)]
    chosen = range(metadata.num_row_groups) if groups is None else groups
    numbers = [(g, c) for g in chosen for c, name in enumerate(names) if name in columns]
    return [metadata.row_group(g).column(c).total_uncompressed_size for g, c in numbers]


def _find_image_column(path: Path, schema: pa.Schema) -> str:
    candidates = [field.name for field in schema if _holds_images(field.type)]
    if not candidates:
        raise UserError(f"{path} has no column with image bytes, only {', '.join(schema.names)}.")
    return next((name for name in ("image", "img") if name in candidates), candidates[0])


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _holds_images(field.type) for field in kind)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _find_label_column(schema: pa.Schema, config: DataConfig) -> str | None:
    if config.label_column in ("", *schema.names):
        return config.label_column or None
    if config.label_column != "label":
        has = ", ".join(schema.names)
        raise UserError(f'There is no column "{config.label_column}", only {has}. Pass --data.label-column NAME.')
    return next((name for name in LABEL_NAMES if name in schema.names), None)


def _is_list(kind: pa.DataType) -> bool:
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _read_class_names(schema: pa.Schema, label: str | None) -> tuple[str, ...] | None:
    """Read the class names from the ClassLabel in the schema's metadata, inside lists too."""
    try:
        metadata = parse_json((schema.metadata or {})[b"huggingface"], Any, "the schema")
        feature: Any = metadata["info"]["features"][label]
        while "names" not in feature:
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        return tuple(str(name) for name in feature["names"])
    except (KeyError, IndexError, TypeError, InvalidFile):
        return None


def _name_labels(path: Path, value: Any, names: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(word for item in value for word in _name_labels(path, item, names))
    if value in (None, "", -1) or value != value:  # pandas writes NaN, and Hugging Face -1 for hidden test labels
        return ()
    if isinstance(value, float) and math.isinf(value):
        raise UserError(f"{path} has the label {value}, which is no class.")
    if names is None or isinstance(value, str):
        return (str(value),)
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise UserError(f"{path} has the label {value}, but its metadata names {len(names)} classes.")
    return (names[value],)
