"""A study's results, line by line: ours beside the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitling.formatting import format_count

Rows = dict[int, dict[str, Any]]  # of one run, by seed


@dataclass(frozen=True)
class Line:
    """What is known of one run, in words; "" where nothing is."""

    run: str
    ours: str
    paper: str
    gain: str  # over the run that it is compared with
    paper_gain: str
    note: str


def make_lines(results: dict[str, Any]) -> list[Line]:
    """Of every run that has a row."""
    about = {run["run"]: run for run in results["runs"]}
    rows: dict[str, Rows] = {}
    for row in results["rows"]:
        rows.setdefault(row["run"], {})[row["seed"]] = row
    return [_line(about.get(run, {"run": run}), own, about, rows) for run, own in rows.items()]


def select_columns(found: Sequence[Line], titles: dict[str, str]) -> dict[str, str]:
    """The columns in which something stands, by name."""
    return {name: title for name, title in titles.items() if any(getattr(line, name) for line in found)}


def _line(run: dict[str, Any], own: Rows, about: dict[str, Any], rows: dict[str, Rows]) -> Line:
    base = run.get("against", "")
    paper, base_paper = run.get("paper"), about.get(base, {}).get("paper")
    gains = [value - other for value, other in _side_by_side(own, rows.get(base, {}))]
    return Line(
        run["run"],
        _ours([row["value"] for row in own.values() if "value" in row]),
        "" if paper is None else _figure(paper),
        _gain(gains, len(own)),
        "" if paper is None or base_paper is None else f"{paper - base_paper:+.2f}",
        "; ".join(_notes(run, own, rows.get(base, {}))),
    )


def _side_by_side(own: Rows, base: Rows) -> list[tuple[float, float]]:
    """Figures of the same seed."""
    seeds = [seed for seed, row in own.items() if "value" in row and "value" in base.get(seed, {})]
    return [(own[seed]["value"], base[seed]["value"]) for seed in seeds]


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _ours(values: list[float]) -> str:
    """With how many there are: one seed is called one seed. A count has none."""
    if all(isinstance(value, int) for value in values):
        return ", ".join(sorted({_figure(value) for value in values}))
    return f"{_spread(values)} ({format_count(len(values), 'seed')})" if values else ""


def _spread(values: list[float], sign: str = "") -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.2f}{deviation}"


def _gain(gains: list[float], seeds: int) -> str:
    """Of the seeds that both have, which may be fewer."""
    few = f" ({format_count(len(gains), 'seed')})" if 0 < len(gains) < seeds else ""
    return f"{_spread(gains, '+')}{few}" if gains else ""


def _notes(run: dict[str, Any], own: Rows, base: Rows) -> list[str]:
    notes = [run["note"]] if run.get("note") else []
    compared = [seed for seed, row in own.items() if _has_curve(row) and "value" in base.get(seed, {})]
    if compared:
        reached = (_reached(own[seed], base[seed]) for seed in compared)
        notes.append(f"reaches the baseline's last at epoch {', '.join(reached)}")
    notes += _ahead(own, base)
    notes += dict.fromkeys(
        words for row in own.values() for stage in row.get("stages", []) for words in stage.get("warnings", [])
    )
    notes += _sharing([row for row in own.values() if "stages" in row])
    notes += dict.fromkeys(row["origin"] for row in own.values() if "origin" in row)
    for kind in ("caution", "failed", "stopped"):
        notes += sorted({f"{kind}: {row[kind]}" for row in own.values() if kind in row})
    if any(row["fingerprint"] != run.get("fingerprint") for row in own.values()):
        notes.append("made with other settings than the study has now")
    return notes


def _ahead(own: Rows, base: Rows) -> list[str]:
    """EsViT counts the data sets on which a network is ahead of its counterpart."""
    both = [seed for seed, row in own.items() if "each" in row and "each" in base.get(seed, {})]
    pairs = [(own[seed]["each"], base[seed]["each"]) for seed in both]
    ahead = [sum(value > theirs[name] for name, value in mine.items() if name in theirs) for mine, theirs in pairs]
    return [f"ahead on {', '.join(map(str, ahead))} of {len(pairs[0][0])}"] if pairs else []


def _sharing(rows: list[dict[str, Any]]) -> list[str]:
    """What other runs have trained for this one, and how much of its time that is."""
    shared = [stage for row in rows for stage in row["stages"] if stage["shared"]]
    if not shared:
        return []
    total, theirs = (sum(part["seconds"] for part in parts) / 60 for parts in (rows, shared))
    kinds = " and ".join(dict.fromkeys(stage["stage"] for stage in shared))
    return [f"{total:.1f} minutes of training, {theirs:.1f} of them shared with other runs ({kinds})"]


def _has_curve(row: dict[str, Any]) -> bool:
    return "value" in row and "top1" in row.get("curves", {})


def _reached(row: dict[str, Any], base: dict[str, Any]) -> str:
    curve = row["curves"]["top1"]
    at = (epoch for epoch, value in zip(curve["epoch"], curve["value"]) if value >= base["value"])
    return str(next(at, "none"))
