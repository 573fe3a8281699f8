"""docs/coverage.md: how many runs of each table have been measured, and why the others have not.

python -m benchmarks.pages.coverage results docs/coverage.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pages import data_files
from benchmarks.pages.markdown import make_table
from vitling.files import write_file
from vitling.formatting import format_count
from vitling.loading import convert, read_json
from vitling.papers.studies import all_studies
from vitling.papers.study import Study, StudyRun
from vitling.records import StudyResults

HEAD = """# Coverage

Generated from the definitions of the tables and the files in `results/` by `make results`; do not edit. The runs behind
each table and chart of the three papers, and of our own studies, are defined in `vitling.papers` and can be started
with `vitling reproduce NAME`. A run counts as measured with one seed or more.

Most runs have not been measured. Our data are Flowers-102, 10,000 images of CIFAR-100 and CamVid, so those that need
other datasets, or weights trained on ImageNet, cannot be run here; the last column lists what they need. The others
need a GPU.

"""
TITLES = ("table", "runs", "measured", "could be run here", "missing for the others")


@dataclass(frozen=True)
class Coverage:
    """The runs of one table: measured, not measured although all they need is there, and what the others need."""

    study: Study
    measured: int
    possible: int
    missing: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        counts = map(str, (len(self.study.runs), self.measured, self.possible))
        return (f"`{self.study.name}`", *counts, ", ".join(self.missing))


def cover(study: Study, folder: Path, available: set[str]) -> Coverage:
    """Compare a table with its results file."""
    path = folder / f"{study.name}.json"
    rows = convert(read_json(path), StudyResults, path)["rows"] if path.exists() else []
    measured = {row["run"] for row in rows if "value" in row}
    others = [run for run in study.runs if run.name not in measured]
    possible = [run for run in others if not _find_missing(run, available)]
    missing = dict.fromkeys(name for run in others for name in _find_missing(run, available))
    return Coverage(study, len(study.runs) - len(others), len(possible), tuple(missing))


def _find_missing(run: StudyRun, available: set[str]) -> list[str]:
    data = [name for name in run.needed_data if name not in available]
    return [*data, "ImageNet weights"] if run.weights else data


def render(folder: Path, studies: Iterable[Study]) -> str:
    """Render the page from the results files in `folder`."""
    available = {split["data"] for split in data_files.read_known(folder).values()}
    covered = [cover(study, folder, available) for study in studies]
    runs, measured = sum(len(one.study.runs) for one in covered), sum(one.measured for one in covered)
    possible = sum(one.possible for one in covered)
    total = f"{measured:,} of {format_count(runs, 'run')} have been measured; {possible:,} more could be run here."
    return f"{HEAD}{make_table(TITLES, [one.cells for one in covered])}\n\n{total}\n"


def main() -> None:
    folder, out = map(Path, sys.argv[1:])
    write_file(out, render(folder, all_studies()))
    print(f"Saved to {out}")


if __name__ == "__main__":
    main()
