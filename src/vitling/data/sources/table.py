"""Reader for CSV and TSV files with one path per row and optional labels, splits and groups."""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from pathlib import Path

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.dataset import BadFile
from vitling.data.sources.folder import FileReader
from vitling.data.sources.source import SPLIT_OF, Source, SourceSplit, drop_empty_labels
from vitling.errors import UserError
from vitling.loading import open_text

Row = dict[str, str]
_FIX_QUOTES = 'Check for an unclosed quote (").'


def read(path: Path, config: DataConfig) -> Source:
    rows, columns = read_rows(path, config)
    if config.path_column not in columns:
        raise _make_missing_column_error(path, config.path_column, columns, "path")
    label_column = _check_label_column(path, columns, config)
    for flag, column in (("split", config.split_column), ("group", config.group_column)):
        if column not in columns and column != flag:
            raise _make_missing_column_error(path, column, columns, flag)
    source = Source(path.stem)
    splits = [_parse_split(path, row.get(config.split_column, ""), number) for number, row in enumerate(rows, 2)]
    labels, source.multi, separator = _parse_labels([row.get(label_column, "") for row in rows], config)
    if source.multi:
        source.notes.append(f'Several labels per image, separated by "{separator}".')
    placed: dict[str, list[int]] = defaultdict(list)
    for i, (row, split) in enumerate(zip(rows, splits)):
        if reason := _find_problem(path.parent, row[config.path_column]):
            source.bad.append(BadFile(row[config.path_column] or f"row {i + 2}", reason, split))
        else:
            placed[split].append(i)
    if not placed:
        raise UserError(
            f"None of the {len(rows):,} files in {path} exists, the first being {rows[0][config.path_column]}. Paths "
            f"are relative to {path.parent.resolve()}."
        )
    everything = SourceSplit(
        keys=[row[config.path_column] for row in rows],
        reader=FileReader(path.parent, [row[config.path_column] for row in rows]),
        rows=np.arange(len(rows)),
        labels=labels,
        groups=[row[config.group_column] for row in rows] if config.group_column in columns else None,
    )
    source.splits = {split: everything.take(ids) for split, ids in placed.items()}
    if "pool" in source.splits:
        source.splits["pool"].labels = None
    drop_empty_labels(source)
    if repeated := len(rows) - len(set(everything.keys)):
        source.notes.append(f"{repeated:,} rows repeat the path of another row.")
    return source


def read_rows(path: Path, config: DataConfig) -> tuple[list[Row], list[str]]:
    """Read the rows and the columns of a CSV or TSV; raise UserError for one that cannot be read."""
    try:
        with open_text(path, "utf-8-sig") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}). Save it as UTF-8.") from None
    header = text.split("\n", 1)[0]
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=header.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, restval="", skipinitialspace=True)
    columns, rows, lines = _parse_rows(path, reader)
    used = {config.path_column, config.label_column, config.split_column, config.group_column}
    _check_quotes(path, rows, lines, used, odd=text.count('"') % 2 == 1)
    if not rows:
        raise UserError(f"{path} has a header but no rows.")
    return rows, columns


def _parse_rows(path: Path, reader: csv.DictReader) -> tuple[list[str], list[Row], list[int]]:
    """Return columns, rows, and the line where each row begins."""
    rows: list[Row] = []
    lines = [1]
    try:
        columns = [column.strip() for column in reader.fieldnames or []]
        reader.fieldnames = columns
        lines = [reader.line_num + 1]
        for row in reader:
            rows.append({column: (row[column] or "").strip() for column in columns})
            lines.append(reader.line_num + 1)
    except csv.Error as error:
        raise UserError(f"{path}, line {lines[-1]}: {error}. {_FIX_QUOTES}") from None
    if any("\n" in column for column in columns):
        raise UserError(f"{path}, line 1: the header spans several lines. {_FIX_QUOTES}")
    return columns, rows, lines


def _check_quotes(path: Path, rows: list[Row], lines: list[int], used: set[str], odd: bool) -> None:
    """Raise UserError for an unclosed quote, which makes the csv module silently swallow the rows that follow. `odd`:
    the file has an odd number of quotes."""
    for row, line in zip(rows, lines):
        multi_line = {column for column, cell in row.items() if "\n" in cell}
        if used & multi_line or (odd and multi_line and row is rows[-1]):
            raise UserError(f"{path}, line {line}: a cell spans several lines. {_FIX_QUOTES}")


def _check_label_column(path: Path, columns: list[str], config: DataConfig) -> str:
    rest = set(columns) - {config.path_column, config.split_column, config.group_column}
    if config.label_column and config.label_column not in columns and (rest or config.label_column != "label"):
        error = _make_missing_column_error(path, config.label_column, columns, "label")
        raise UserError(f"{error}, or pass --data.label-column '' to use the images without labels.")
    return config.label_column


def _make_missing_column_error(path: Path, column: str, columns: list[str], flag: str) -> UserError:
    has = ", ".join(columns) or "none"
    return UserError(f'{path} has no column "{column}", only {has}. Pass --data.{flag}-column NAME')


def _parse_split(path: Path, word: str, number: int) -> str:
    if not word:
        return "train"
    split = "pool" if word.lower() == "pool" else SPLIT_OF.get(word.lower())
    if split is None:
        raise UserError(f'{path}, line {number}: unknown split "{word}"; use train, val, test or unlabelled.')
    return split


def _parse_labels(cells: list[str], config: DataConfig) -> tuple[list[tuple[str, ...]], bool, str]:
    separator = next((mark for mark in config.label_separator if any(mark in cell for cell in cells)), "")
    if not separator:
        return [(cell,) if cell else () for cell in cells], False, ""
    words = [[word.strip() for word in cell.split(separator)] for cell in cells]
    return [tuple(dict.fromkeys(word for word in row if word)) for row in words], True, separator


def _find_problem(folder: Path, path: str) -> str | None:
    if not path:
        return "no path in the row"
    return None if os.path.isfile(folder / path) else "no such file"
