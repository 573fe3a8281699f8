"""Collect finished runs of `vitling train`, `pretrain` or `finetune` into one results file.

python benchmarks/collect.py runs/a runs/b --what TITLE --command "vitling train DATA --epochs E --out DIR" \
    --columns epochs optim.lr last.test.top1 pretrain/last.knn/top1 --out results/NAME.json

A column is a dotted name in result.json or, if it has none such, a setting in config.json; pretrain/NAME looks into the
first stage. Without --columns, and with one run, the whole result.json is kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitling.files import write_json
from vitling.loading import read_json

MISSING = object()
FOLDERS = ("pretrain", "large")  # runs inside a run


def collect_runs(runs: Sequence[Path], columns: Sequence[str]) -> dict[str, Any]:
    """Return the entries of a results file: hashes of the data, environment, and rows or one result."""
    results = [read_json(run / "result.json") for run in runs]
    environment = {k: v for k, v in read_json(runs[0] / "environment.json").items() if k != "command"}
    hashes = {split: hash for result in results for split, hash in result.get("data_hashes", {}).items()}
    about = {"data_hashes": hashes, "environment": environment}
    return about | ({"rows": [make_row(run, columns) for run in runs]} if columns else {"result": results[0]})


def make_row(run: Path, columns: Sequence[str]) -> dict[str, Any]:
    commit = read_json(run / "environment.json").get("commit")
    return {"run": run.name, **{name: find_value(run, name) for name in columns}, "commit": commit}


def find_value(run: Path, name: str) -> Any:
    """Find a dotted name in result.json or config.json of a run, or of a run inside it."""
    folder, _, inner = name.partition("/")
    if folder in FOLDERS:
        return find_value(run / folder, inner) if (run / folder).is_dir() else None
    for file in ("result.json", "config.json"):
        if (value := _look_up(read_json(run / file), name)) is not MISSING:
            return value
    raise SystemExit(f"{run} has no {name} in result.json or config.json.")


def _look_up(content: Any, name: str) -> Any:
    for word in name.split("."):
        if not isinstance(content, dict) or word not in content:
            return MISSING
        content = content[word]
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--what", required=True, help="title of the section in docs/results.md")
    parser.add_argument("--command", required=True, help="command that trains the runs, without paths of this machine")
    parser.add_argument("--caution", default="", help="what a reader has to know")
    parser.add_argument("--columns", nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if len(options.runs) > 1 and not options.columns:
        parser.error("several runs need --columns")
    about = {"what": options.what, "command": options.command}
    about |= {"caution": options.caution} if options.caution else {}
    write_json(options.out, about | collect_runs(options.runs, options.columns))


if __name__ == "__main__":
    main()
