"""docs/recipe.md: the search for a better recipe of `vitling train`, from results/recipe-search.jsonl.

python -m vitling.report.recipe results docs/recipe.md
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitling.files import atomic_write
from vitling.formatting import format_count
from vitling.loading import read_json_lines

FILE = "recipe-search.jsonl"
HEAD = """# The search for a recipe

Generated from [results/recipe-search.jsonl](../results/recipe-search.jsonl) by `make results`; do not edit. Each run is
`vitling train` with one change of its plan, made by `benchmarks/recipe_search.py`. A fifth of the training images is
held out, other images with every seed, and the test split stays closed. All runs of a table take about the same time
on a free GPU: a change that makes an epoch cheaper or dearer gets more or fewer epochs. They ran side by side on one
GPU, which does not change their results.

Gains are against `base`, the plan itself, on the same seeds and held-out images. One seed is a screening: with 408
held-out images one image is 0.25 points, and two runs of the same settings differ by up to 1.5 points. The log loss
varies less. A change becomes a default only with three seeds.
"""
TITLES = ("change", "flags", "top-1 held out", "gain", "log loss", "gain in log loss", "seeds")


@dataclass(frozen=True)
class Comparison:
    """A candidate beside `base`: its scores by seed, and its gains on the seeds that both have."""

    candidate: str
    flags: str
    top1: list[float]
    log_loss: list[float]
    gains: list[float]
    loss_gains: list[float]

    @property
    def cells(self) -> tuple[str, ...]:
        numbers = (
            format_mean(self.top1),
            format_mean(self.gains, "+.2f"),
            format_mean(self.log_loss, ".3f"),
            format_mean(self.loss_gains, "+.3f"),
        )
        return (self.candidate, f"`{self.flags}`" if self.flags else "", *numbers, str(len(self.top1)))


def compare(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[Comparison]]:
    """Compare the candidates of each dataset and base with the base, best first. Failed runs are left out."""
    found: dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if "top1" in row:
            found[row["data"], row["base"]][row["candidate"]][row["seed"]] = row
    return {key: _compare(candidates) for key, candidates in sorted(found.items())}


def _compare(candidates: dict[str, dict[int, dict[str, Any]]]) -> list[Comparison]:
    base, made = candidates.get("base", {}), []
    for name, rows in candidates.items():
        shared = [seed for seed in rows if seed in base and name != "base"]
        gains, loss_gains = (
            [sign * (rows[seed][key] - base[seed][key]) for seed in shared]
            for key, sign in (("top1", 1), ("log_loss", -1))
        )
        top1, log_loss = ([row[key] for row in rows.values()] for key in ("top1", "log_loss"))
        made.append(Comparison(name, next(iter(rows.values()))["flags"], top1, log_loss, gains, loss_gains))
    return sorted(made, key=lambda one: -statistics.mean(one.top1))


def format_mean(values: list[float], form: str = ".2f") -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):{form.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{spread}"


def render(folder: Path) -> str:
    """Render the page from the search in `folder`."""
    path = folder / FILE
    rows = read_json_lines(path, dict[str, Any]) if path.exists() else []
    sections = [HEAD]
    for (data, base), candidates in compare(rows).items():
        own = [row for row in rows if (row["data"], row["base"]) == (data, base)]
        sections.append(_render_group(data, base, candidates, own))
    return "\n".join(sections)


def _render_group(data: str, base: str, candidates: list[Comparison], rows: list[dict[str, Any]]) -> str:
    found = [row for row in rows if "top1" in row]
    networks, commits, machines = (
        ", ".join(sorted({str(row[key]) for row in found})) for key in ("backbone", "commit", "gpu")
    )
    held_out = ", ".join(sorted({f"{row['images_held_out']:,}" for row in found}))
    lines = [f"## {data}, {networks}\n", f"`{base}`, {held_out} images held out.\n"]
    lines += [f"| {' | '.join(TITLES)} |", "| --- " * len(TITLES) + "|"]
    lines += [f"| {' | '.join(one.cells)} |" for one in candidates]
    failed = [f"`{row['candidate']}` ({row['error']})" for row in rows if "error" in row]
    lines += [f"\nNot finished: {'; '.join(failed)}."] if failed else []
    return "\n".join(lines) + f"\n\n{format_count(len(found), 'run')} on {machines}; commit {commits}.\n"


def main(folder: str, out: str) -> None:
    with atomic_write(out, "w") as file:
        file.write(render(Path(folder)))
    print(f"Saved to {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
