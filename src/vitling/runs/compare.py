"""`vitling compare`: finished runs side by side, on the same images."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from vitling.errors import UserError
from vitling.evaluation.comparison import compare_pair, rank_runs
from vitling.evaluation.config import Weights
from vitling.evaluation.intervals import summarise_values
from vitling.files import check_writable, write_json
from vitling.loading import read_record
from vitling.metric_names import primary_metric
from vitling.records import RunResult
from vitling.runs.group import list_runs


def compare(
    runs: tuple[str, ...],
    split: Literal["auto", "val", "test"] = "auto",
    weights: Weights = "last",
    out: str | None = None,
) -> dict[str, Any]:
    """Rank runs, or folders of several seeds, and compare each with the next; also written to `out` as JSON."""
    if out:
        check_writable(out)
    if len(runs) < 2:
        raise UserError("Name two runs or more: vitling compare runs/first runs/second")
    folders = {run: list_runs(run) for run in runs}
    for run in runs:
        _check_classifiers(run, folders[run])
    times = Counter(folder.resolve() for run in runs for folder in folders[run])
    if twice := [str(folder) for folder, count in times.items() if count > 1]:
        raise UserError(f"{twice[0]} is named twice, or belongs to a folder of seeds that is named too.")
    chosen, ranked = rank_runs(folders, split, weights)
    result = {
        "split": chosen,
        "weights": weights,
        "images": len(ranked[0].predictions[0]),
        "metric": primary_metric(ranked[0].is_multi_label),
        "runs": [{"run": group.name, **summarise_values(group.values)} for group in ranked],
        "differences": [compare_pair(better, worse) for better, worse in pairwise(ranked)],
    }
    if out:
        write_json(out, result)
    return result


def _check_classifiers(run: str, folders: list[Path]) -> None:
    """Raise UserError for runs that detect or segment: they save no predictions that could be compared."""
    results = (folder / "result.json" for folder in folders)
    if any(read_record(path, RunResult).get("task") in ("detect", "segment") for path in results if path.exists()):
        raise UserError(f"compare is for classifiers; {run} detects or segments. See `vitling evaluate {run} DATA`.")
