"""Results that must be measured again, and why; detected from the files alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

DIRTY = "-dirty"  # suffix of the commit of a tree with changes that were not committed


def list_causes(content: dict[str, Any]) -> list[str]:
    """List why a results file, or rows of it, cannot be traced to the code and settings that made it."""
    causes = []
    if dirty := sorted({commit for commit in _find_commits(content) if commit.endswith(DIRTY)}):
        causes.append(f"made with uncommitted changes ({', '.join(dirty)})")
    if "study" in content:
        causes += _list_stale(content)
    elif content.get("command", "").startswith("vitling ") and "data_hashes_from" in content:
        causes.append("assembled from run directories before `benchmarks/collect.py` existed")
    return causes


def _find_commits(content: dict[str, Any]) -> Iterator[str]:
    rows = content.get("rows") or []
    for part in (content, *(rows if isinstance(rows, list) else ())):
        if isinstance(part, dict):
            yield str(part.get("commit", ""))
            yield str(part.get("environment", {}).get("commit", ""))
            yield from (str(stage.get("commit", "")) for stage in part.get("stages", []))


def _list_stale(content: dict[str, Any]) -> list[str]:
    now = {run["run"]: run["fingerprint"] for run in content["runs"]}
    stale = dict.fromkeys(row["run"] for row in content["rows"] if row["fingerprint"] != now.get(row["run"]))
    unfinished = dict.fromkeys(row["run"] for row in content["rows"] if "value" not in row)
    found = {"settings have changed": stale, "did not finish": unfinished}
    return [f"{cause}: {', '.join(runs)}" for cause, runs in found.items() if runs]
