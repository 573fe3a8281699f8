"""`vitling report`: collect what is known about runs and write it as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from vitling.errors import UserError
from vitling.files import atomic_write, check_writable
from vitling.report.data import ReportData, RunReport
from vitling.report.page import render_page
from vitling.runs.report_files import (
    RunFiles,
    list_curves,
    list_facts,
    list_scores,
    list_stages,
    list_warnings,
    open_files,
    read_errors,
    read_origin,
)
from vitling.version import __version__

FILE = "report.html"


def write_report(runs: Sequence[str], out: str | None = None) -> Path:
    """Write the report of one run or of several side by side, and return its path."""
    from vitling.runs.group import list_runs

    if not runs:
        raise UserError("No run given. Name one or more run directories: vitling report runs/first")
    path = Path(out) if out else _default_path(runs)
    check_writable(path)
    folders = [folder for run in runs for folder in list_runs(run)]
    found = [open_files(name, folder) for name, folder in zip(shorten_names(folders), folders)]
    write_page(path, [collect(files) for files in found])
    return path


def _default_path(runs: Sequence[str]) -> Path:
    if len(runs) > 1:
        return Path(FILE)
    return Path(runs[0]) / FILE


def shorten_names(folders: Sequence[Path]) -> list[str]:
    """Name runs by their paths, without the folder that several have in common."""
    if len(folders) < 2 or len({folder.resolve() for folder in folders}) < len(folders):
        return [str(folder) for folder in folders]
    common = os.path.commonpath([folder.resolve().parent for folder in folders])
    return [str(folder.resolve().relative_to(common)) for folder in folders]


def write_page(path: Path, runs: list[RunReport]) -> None:
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs side by side"
    made = datetime.now().strftime("%Y-%m-%d %H:%M")
    page = render_page(ReportData(title, made, __version__, tuple(runs)))
    with atomic_write(path, "w") as file:
        file.write(page)


def collect(files: RunFiles) -> RunReport:
    """Collect everything about a run."""
    scores = list_scores(files)
    headline = scores[0] if scores else None
    errors = read_errors(files, headline.split) if headline else None
    held_out = {score.split: score.images for score in reversed(scores)}
    return RunReport(
        name=files.name,
        headline=headline,
        scores=tuple(scores),
        facts=tuple(list_facts(files, held_out)),
        warnings=tuple(list_warnings(files)),
        stages=tuple(list_stages(files)),
        curves=tuple(list_curves(files)),
        origin=read_origin(files),
        class_names=tuple(one.name for one in errors.classes) if errors else (),
        errors=errors,
    )
