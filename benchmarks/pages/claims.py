"""docs/claims.md and the README's table: text from docs/claims.toml, figures from results/.

The page also lists every run that is more than a point away from the paper, with the causes that were tried.

python -m benchmarks.pages.claims results docs/claims.toml docs/claims.md README.md

In the texts, {FILE/RUN} is a run of a study as mean, std and seeds; {FILE/RUN - FILE/RUN} is a gain, seed by seed;
{paper FILE/RUN} is the paper's figure; {FILE:NAME.NAME} is a value of any results file, with a number for an item of a
list. |1 rounds to one digit, |%1 to percent with one digit.
"""

from __future__ import annotations

import re
import statistics
import sys
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.pages.markdown import make_table
from vitling.files import write_file
from vitling.formatting import format_count, format_mean
from vitling.loading import read_json

VERDICTS = ("holds", "holds in part", "did not hold", "not testable here", "not yet run")
MARKS = ("<!-- results: written by `make results` -->", "<!-- end of results -->")
HEAD = """# The papers' claims

Generated from `docs/claims.toml` and `results/` by `make results`; do not edit. Each row is a claim of one of the
three papers with our evidence and a verdict. Figures are test top-1 of the last epoch in percent unless stated
otherwise, ± is the standard deviation over seeds, and figures of one seed are marked: same-seed GPU runs of small
probes differ by up to 1.5 points, so smaller gaps mean nothing. Our Flowers-102 and CIFAR-100 files are
[not the originals](results.md#data).

| verdict | meaning |
| --- | --- |
| holds | three seeds, or an exact count, agree with the claim |
| holds in part | the direction agrees, but the size does not, some cases do not, or there is one seed |
| did not hold | measured here, and the effect was absent or reversed |
| not testable here | needs data, weights or hardware that we do not have |
| not yet run | can be run here; the command is given |
"""
GAP = 1.0  # points between our figure and the paper's from which the page lists the causes tried
GAPS_HEAD = f"""## Gaps above {GAP:g} point

Every run that ends more than {GAP:g} point above or below the paper's figure, and the causes tried. The runs behind the
causes are in the tables whose name ends with `-causes` ([results.md](results.md)).

"""
CLAIM_TITLES = ("claim", "where", "evidence here", "verdict", "results")
GAP_TITLES = ("runs", "ours", "the paper", "difference", "causes tried, and what they gave")
HEADLINE_TITLES = {"run": "run", "without": "without", "with": "with", "paper": "the paper"}
_REFERENCE = re.compile(r"\{([^{}|]+)(?:\|(%?)(\d))?\}")


class Figures:
    """Figures of the files in results/, by reference."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.used: dict[str, None] = {}  # names of files, in order

    def fill(self, text: str) -> str:
        """Replace the references in a text by figures."""
        return _REFERENCE.sub(lambda found: self._format(found[1], bool(found[2]), int(found[3] or 2)), text)

    def _format(self, reference: str, percent: bool, digits: int) -> str:
        if ":" in reference:
            value = self._look_up(reference) * (100 if percent else 1)
            return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"
        if reference.startswith("paper "):
            return f"{self._find_paper(reference.removeprefix('paper ')):.{digits}f}"
        own, _, base = reference.partition(" - ")
        values = self._list_values(own)
        if not base:
            return f"{format_mean(list(values.values()), digits)} ({format_count(len(values), 'seed')})"
        others = self._list_values(base)
        gains = [values[seed] - others[seed] for seed in values if seed in others]
        if not gains:
            raise KeyError(f"{reference}: no seed in common")
        return f"{format_mean(gains, digits, '+')} ({format_count(len(gains), 'seed')})"

    def _read(self, name: str) -> dict[str, Any]:
        self.used[name] = None
        return read_json(self.folder / f"{name}.json")

    def _list_values(self, reference: str) -> dict[int, float]:
        name, _, run = reference.partition("/")
        found = {row["seed"]: row["value"] for row in self._read(name)["rows"] if row["run"] == run and "value" in row}
        if not found:
            raise KeyError(f"{reference} has no value")
        return found

    def _find_paper(self, reference: str) -> float:
        name, _, run = reference.partition("/")
        return next(one["paper"] for one in self._read(name)["runs"] if one["run"] == run)

    def _look_up(self, reference: str) -> Any:
        name, _, path = reference.partition(":")
        value: Any = self._read(name)
        for word in path.split("."):
            value = value[int(word)] if isinstance(value, list) else value[word]
        return value


def render_claims(folder: Path, source: Path) -> str:
    """Render the page of claims, a table for each paper."""
    content = tomllib.loads(source.read_text(encoding="utf-8"))
    sections = [_render_paper(paper, folder) for paper in content["papers"]]
    return "\n".join([HEAD, *sections, _render_gaps(content.get("gaps", []), folder)])


def _render_paper(paper: dict[str, Any], folder: Path) -> str:
    rows = []
    for claim in paper["claims"]:
        if claim["verdict"] not in VERDICTS:
            raise ValueError(f"{claim['claim']}: the verdict is {claim['verdict']!r}, not one of {VERDICTS}")
        figures = Figures(folder)
        evidence = figures.fill(claim["evidence"])
        links = ", ".join(f"[{name}](../results/{name}.json)" for name in figures.used)
        rows.append((claim["claim"], claim["where"], evidence, f"**{claim['verdict']}**", links))
    return f"## {paper['title']}\n\n{make_table(CLAIM_TITLES, rows)}\n"


def find_gaps(folder: Path) -> dict[str, tuple[float, float]]:
    """Find the runs that differ from the paper by more than GAP: mean and paper, by FILE/RUN.

    Counts, which are exact, and the studies of causes are left out.
    """
    gaps = {}
    for path in sorted(folder.glob("*.json")):
        content = read_json(path)
        if path.stem.endswith("-causes") or not isinstance(content, dict) or "study" not in content:
            continue
        for run in content["runs"]:
            values = [row["value"] for row in content["rows"] if row["run"] == run["run"] and "value" in row]
            if values and isinstance(run.get("paper"), float) and abs(statistics.mean(values) - run["paper"]) > GAP:
                gaps[f"{path.stem}/{run['run']}"] = statistics.mean(values), run["paper"]
    return gaps


def _render_gaps(entries: list[dict[str, Any]], folder: Path) -> str:
    gaps, figures = find_gaps(folder), Figures(folder)
    explained = [run for entry in entries for run in entry["runs"]]
    if sorted(explained) != sorted(gaps):
        new, old = sorted(gaps.keys() - set(explained)), sorted(set(explained) - gaps.keys())
        twice = sorted({run for run in explained if explained.count(run) > 1})
        raise ValueError(f"[[gaps]] of docs/claims.toml: {new} are missing, {old} are no gaps, {twice} occur twice")
    rows = []
    for entry in entries:
        named = "<br>".join(run.replace("/", ": ") for run in entry["runs"])
        found = [gaps[run] for run in entry["runs"]]
        columns = [f"{ours:.2f}" for ours, _ in found], [f"{paper:.2f}" for _, paper in found]
        differences = [f"{ours - paper:+.2f}" for ours, paper in found]
        rows.append([named, *map("<br>".join, (*columns, differences)), figures.fill(entry["causes"])])
    return f"{GAPS_HEAD}{make_table(GAP_TITLES, rows)}\n"


def render_headline(folder: Path, source: Path) -> str:
    """Render the README's table."""
    rows = tomllib.loads(source.read_text(encoding="utf-8"))["headline"]
    figures = Figures(folder)
    cells = [[figures.fill(row.get(name, "")) for name in HEADLINE_TITLES] for row in rows]
    return make_table(HEADLINE_TITLES.values(), cells)


def replace_headline(text: str, table: str) -> str:
    """Replace the table between the marks in the README."""
    before, _, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        raise ValueError(f"the text lacks {MARKS[0]} or {MARKS[1]}")
    return f"{before}{MARKS[0]}\n\n{table}\n\n{MARKS[1]}{after}"


def main(folder: str, source: str, page: str, readme: str) -> None:
    write_file(page, render_claims(Path(folder), Path(source)))
    text = replace_headline(Path(readme).read_text(encoding="utf-8"), render_headline(Path(folder), Path(source)))
    write_file(readme, text)
    print(f"Saved to {page} and {readme}")


if __name__ == "__main__":
    main(*sys.argv[1:])
