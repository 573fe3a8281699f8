"""Lines of a study's table: our results next to the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitling.formatting import format_count, format_mean

LEARNT = 0.8  # of the constant's loss: above, DRLoc's task counts as not learnt
Rows = dict[int, dict[str, Any]]  # of one run, by seed


@dataclass(frozen=True)
class Line:
    """The cells of one run; empty where nothing is known."""

    run: str
    ours: str
    paper: str
    gain: str  # over the run it is compared with
    paper_gain: str
    note: str


def make_lines(results: dict[str, Any]) -> list[Line]:
    """Make a line for every run that has a row."""
    about = {run["run"]: run for run in results["runs"]}
    rows: dict[str, Rows] = {}
    for row in results["rows"]:
        rows.setdefault(row["run"], {})[row["seed"]] = row
    return [_make_line(about.get(run, {"run": run}), own, about, rows) for run, own in rows.items()]


def select_columns(found: Sequence[Line], titles: dict[str, str]) -> dict[str, str]:
    """Return the titles of the columns that are not empty, by name."""
    return {name: title for name, title in titles.items() if any(getattr(line, name) for line in found)}


def _make_line(run: dict[str, Any], own: Rows, about: dict[str, Any], rows: dict[str, Rows]) -> Line:
    base = run.get("against", "")
    paper, base_paper = run.get("paper"), about.get(base, {}).get("paper")
    others = {seed: row["value"] for seed, row in rows.get(base, {}).items() if "value" in row}
    gains = [row["value"] - others[seed] for seed, row in own.items() if "value" in row and seed in others]
    return Line(
        run["run"],
        _format_values([row["value"] for row in own.values() if "value" in row]),
        "" if paper is None else _format_value(paper),
        _format_gain(gains, len(own)),
        "" if paper is None or base_paper is None else f"{paper - base_paper:+.2f}",
        "; ".join(_collect_notes(run, own, rows.get(base, {}))),
    )


def _format_value(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _format_values(values: list[float]) -> str:
    """Format mean, std and the number of seeds; counts (integers) have no std."""
    if all(isinstance(value, int) for value in values):
        return ", ".join(sorted({_format_value(value) for value in values}))
    return f"{format_mean(values)} ({format_count(len(values), 'seed')})" if values else ""


def _format_gain(gains: list[float], seeds: int) -> str:
    """Format the mean gain over the seeds that both have, which may be fewer."""
    few = f" ({format_count(len(gains), 'seed')})" if 0 < len(gains) < seeds else ""
    return f"{format_mean(gains, sign='+')}{few}" if gains else ""


def _collect_notes(run: dict[str, Any], own: Rows, base: Rows) -> list[str]:
    notes = [run["note"]] if run.get("note") else []
    curves = {seed: row.get("curves", {}).get("top1") for seed, row in own.items() if "value" in row}
    if compared := [seed for seed, curve in curves.items() if curve and "value" in base.get(seed, {})]:
        reached = (_find_epoch(curves[seed], base[seed]["value"]) for seed in compared)
        notes.append(f"reaches the baseline's final accuracy at epoch {', '.join(reached)}")
    notes += _describe_localisation(own)
    notes += _count_ahead(own, base)
    notes += dict.fromkeys(
        words for row in own.values() for stage in row.get("stages", []) for words in stage.get("warnings", [])
    )
    notes += _describe_shared([row for row in own.values() if "stages" in row])
    notes += dict.fromkeys(row["origin"] for row in own.values() if "origin" in row)
    for kind in ("caution", "failed", "stopped"):
        notes += sorted({f"{kind}: {row[kind]}" for row in own.values() if kind in row})
    if any(row["fingerprint"] != run.get("fingerprint") for row in own.values()):
        notes.append("made with settings that differ from the study's current ones")
    return notes


def _describe_localisation(own: Rows) -> list[str]:
    """Compare DRLoc's last loss with that of the best constant prediction, where a row has it."""
    rows = [row for row in own.values() if "drloc_constant" in row and "drloc" in row.get("terms", {})]
    if not rows:
        return []
    losses, constant = [row["terms"]["drloc"] for row in rows], rows[0]["drloc_constant"]
    learnt = "" if max(losses) < LEARNT * constant else ": the task was not learnt"
    return [f"localisation loss {', '.join(f'{loss:.3f}' for loss in losses)} ({constant:.3f} for a constant){learnt}"]


def _count_ahead(own: Rows, base: Rows) -> list[str]:
    """Count the datasets on which a run is ahead of its baseline, as EsViT does."""
    both = [seed for seed, row in own.items() if "each" in row and "each" in base.get(seed, {})]
    pairs = [(own[seed]["each"], base[seed]["each"]) for seed in both]
    ahead = [sum(value > theirs[name] for name, value in mine.items() if name in theirs) for mine, theirs in pairs]
    return [f"ahead on {', '.join(map(str, ahead))} of {len(pairs[0][0])}"] if pairs else []


def _describe_shared(rows: list[dict[str, Any]]) -> list[str]:
    """Describe the stages shared with other runs, and their part of the training time."""
    shared = [stage for row in rows for stage in row["stages"] if stage["shared"]]
    if not shared:
        return []
    total, theirs = (sum(part["seconds"] for part in parts) / 60 for parts in (rows, shared))
    kinds = " and ".join(dict.fromkeys(stage["stage"] for stage in shared))
    return [f"{total:.1f} minutes of training, {theirs:.1f} of them shared with other runs ({kinds})"]


def _find_epoch(curve: dict[str, list[float]], wanted: float) -> str:
    at = (epoch for epoch, value in zip(curve["epoch"], curve["value"]) if value >= wanted)
    return str(next(at, "none"))
