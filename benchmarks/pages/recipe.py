"""docs/recipe.md: the search for a better recipe of `vitling train`, from results/recipe-search.jsonl.

python -m benchmarks.pages.recipe results docs/recipe.md
"""

from __future__ import annotations

import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitling.files import write_file
from vitling.formatting import format_count, format_mean
from vitling.loading import read_json_lines

from .markdown import make_table  # relative: recipe_search.py imports this module as pages.recipe

FILE = "recipe-search.jsonl"
HEAD = """# The search for a recipe

Generated from [results/recipe-search.jsonl](../results/recipe-search.jsonl) by `make results`; do not edit. Each run is
`vitling train` with one change to its plan, or with several joined by "+", made by `benchmarks/recipe_search.py`. A
fifth of the training images is held out, different images for each seed, and the test split stays closed. `cifar100-20`
is the first 20 classes of our part of CIFAR-100, small enough for a CPU. All runs of a table take about the same time
on a free machine: a change that makes epochs faster or slower gets more or fewer of them. Runs side by side on one
machine are slower, but train for as many epochs.

Gains are relative to `base`, the plan at that time, on the same seeds and held-out images; a positive gain in log loss
is a lower loss. One seed is a screening: two runs with the same settings may differ by up to 1.5 points. A change
becomes a default after three seeds. There is one exception: Muon became the default for PVTv2-B0 after three seeds on
digits and one on Flowers-102, whose two runs ended twelve epochs early, 4.7 and 5.9 points ahead.
"""
PLANS = {1: "AdamW", 2: "Muon, mimetic weights for plain ViTs"}  # what `base` was; a new default gets a new number
TITLES = ("change", "flags", "top-1 held out", "gain", "log loss", "gain in log loss", "seeds")


Group = tuple[str, int, str]  # dataset, number of the plan, flags of the base
Candidates = dict[tuple[str, str], dict[int, dict[str, Any]]]  # rows by seed, by name and flags


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
            format_mean(self.gains, sign="+"),
            format_mean(self.log_loss, 3),
            format_mean(self.loss_gains, 3, "+"),
        )
        return (self.candidate, f"`{self.flags}`" if self.flags else "", *numbers, str(len(self.top1)))


def compare(rows: Iterable[dict[str, Any]]) -> dict[Group, list[Comparison]]:
    """Compare the candidates with the base of the same dataset and plan, best first. Failed runs are left out."""
    found: dict[Group, Candidates] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if "top1" in row:
            found[find_group(row)][row["candidate"], _list_flags(row)][row["seed"]] = row
    return {key: _compare(candidates) for key, candidates in sorted(found.items())}


def find_group(row: dict[str, Any]) -> Group:
    return row["data"], row["plan"], row["base"]


def _list_flags(row: dict[str, Any]) -> str:
    """List the flags of a candidate: its length, if it differs from the base's, and its change."""
    length = re.match(r"(--pretrain-epochs \d+ )?--epochs \d+", row["length"])
    words = [length[0] if length and row["length"] != row["base"] else "", row["flags"]]
    return " ".join(filter(None, words))


def _compare(candidates: Candidates) -> list[Comparison]:
    base, made = candidates.get(("base", ""), {}), []
    for (name, flags), rows in candidates.items():
        shared = [seed for seed in rows if seed in base and name != "base"]
        gains, loss_gains = (
            [sign * (rows[seed][key] - base[seed][key]) for seed in shared]
            for key, sign in (("top1", 1), ("log_loss", -1))
        )
        top1, log_loss = ([row[key] for row in rows.values()] for key in ("top1", "log_loss"))
        made.append(Comparison(name, flags, top1, log_loss, gains, loss_gains))
    return sorted(made, key=lambda one: -statistics.mean(one.top1))


def render(folder: Path) -> str:
    """Render the page from the search in `folder`."""
    path = folder / FILE
    rows = read_json_lines(path, dict[str, Any]) if path.exists() else []
    compared = compare(rows)
    groups = dict.fromkeys([*compared, *map(find_group, rows)])  # a group may have failed runs alone
    own = {group: [row for row in rows if find_group(row) == group] for group in groups}
    return "\n".join([HEAD, *(_render_group(group, compared.get(group, []), own[group]) for group in groups)])


def _render_group(group: Group, candidates: list[Comparison], rows: list[dict[str, Any]]) -> str:
    data, plan, base = group
    found = [row for row in rows if "top1" in row]
    finished = [(row["candidate"], row["seed"]) for row in found]
    failed = [row for row in rows if "error" in row and (row["candidate"], row["seed"]) not in finished]
    named = "; ".join(f"`{row['candidate']}`, seed {row['seed']} ({_shorten(row['error'])})" for row in failed)
    if not found:
        return f"## {data}\n\nBase: {PLANS[plan]}; `{base}`.\n\nNot finished: {named}.\n"
    networks, commits = (", ".join(sorted({str(row[key]) for row in found})) for key in ("backbone", "commit"))
    machines = ", ".join(sorted({row["gpu"] or "a CPU" for row in found}))
    held_out = ", ".join(sorted({f"{row['images_held_out']:,}" for row in found}))
    lines = [f"## {data}, {networks}\n", f"Base: {PLANS[plan]}; `{base}`. {held_out} images held out.\n"]
    lines.append(make_table(TITLES, [one.cells for one in candidates]))
    lines += [f"\nNot finished: {named}."] if failed else []
    return "\n".join(lines) + f"\n\n{format_count(len(found), 'run')} on {machines}; commit {commits}.\n"


def _shorten(error: str) -> str:
    """Return the first sentence of an error message."""
    return error.removeprefix("Error: ").partition(". ")[0].rstrip(".")


def main(folder: str, out: str) -> None:
    write_file(out, render(Path(folder)))
    print(f"Saved to {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
