"""`vitling report`: collect what is known about runs and write it as one HTML page."""

from __future__ import annotations

import os
import shlex
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from vitling.console import Log
from vitling.errors import UserError
from vitling.files import check_writable, write_file
from vitling.report.data import ReportData, RunReport
from vitling.report.page import render_page
from vitling.runs.group import list_finished
from vitling.runs.opening import OpenRun, open_run, start_processes
from vitling.runs.report_dense import read_dense
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
from vitling.runs.report_images import Limits, RunImages, make_map, measure_reliability
from vitling.runs.report_matches import match_views
from vitling.runs.report_pictures import choose_samples, draw_attention, draw_training_views
from vitling.runs.report_suspects import collect_suspects
from vitling.runs.timing import report_seconds
from vitling.settings.config import Config
from vitling.shortage import is_out_of_memory
from vitling.training.compilation import free_graphs
from vitling.training.rundir import RunDirectory
from vitling.version import __version__

FILE = "report.html"
SECONDS_OF_IMAGES = 2.0  # the images of one run take longer than this, however few they are


def write_report(runs: Sequence[str], out: str | None = None) -> Path:
    """Write the report of one run or of several side by side, and return its path."""
    if not runs:
        raise UserError("No run given. Name one or more run directories: vitling report runs/first")
    path = Path(out) if out else Path(FILE) if len(runs) > 1 else Path(runs[0], FILE)
    check_writable(path)
    found = _open_runs([folder for run in runs for folder in list_finished(run)])
    limits = Limits().share(len(found))
    write_page(path, [collect(files, limits, RunDirectory(files.folder).log_test_opening) for files in found])
    return path


def _open_runs(folders: Sequence[Path]) -> list[RunFiles]:
    return [open_files(name, folder) for name, folder in zip(shorten_names(folders), folders)]


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
    write_file(path, page)


def train_and_report(request: Config, verb: str, train: Callable[[OpenRun[Config]], dict[str, Any]]) -> dict[str, Any]:
    """Open the run of a command, train in it unless it has finished already, write its report and return its result."""
    with start_processes(request, verb) as processes, open_run(request, verb, processes) as run:
        result = run.result or train(run)
        _report_run(run, result)
        return result


def _report_run(run: OpenRun, result: dict[str, Any]) -> None:
    """Write the report of a run that has finished, unless --no-report was passed or an earlier start wrote it."""
    config, directory = run.draft.config, run.directory
    written = run.result is not None and (directory.path / FILE).exists()
    if config.report and directory.writes and not written:
        free_graphs()
        timed = config.minutes is not None
        seconds = report_seconds(60 * (config.minutes or 0) if timed else sum_seconds(result), timed)
        with_images = seconds >= SECONDS_OF_IMAGES
        report_finished([directory.path], directory.path / FILE, seconds, directory.log, with_images)


def report_group(out: str) -> None:
    """Write one report of the runs of a folder, side by side; each has a report of its own too."""
    try:
        folders = list_finished(out)
    except UserError:  # none has finished
        return
    if len(folders) > 1:
        free_graphs()
        seconds = sum(sum_seconds(files.result) for files in _open_runs(folders))
        report_finished(folders, Path(out) / FILE, report_seconds(seconds, timed=False), Log())


def report_finished(folders: Sequence[Path], path: Path, seconds: float, log: Log, with_images: bool = True) -> None:
    """Write the report of runs that have just finished, in about `seconds`.

    A failure is a warning: the runs themselves are done. The test split is not opened once more, because their own
    evaluation has opened it.
    """
    log.info("Writing the report.")
    began = time.perf_counter()
    try:
        found = _open_runs(folders)
        limits = Limits().share(len(found))
        share = seconds / len(found)
        if with_images:
            pages = [collect(files, limits.fit(share, files.result["images_per_second"])) for files in found]
        else:
            pages = [_leave_out_images(collect_files(files), folder) for files, folder in zip(found, folders)]
        write_page(path, pages)
        log.debug(f"The report took {time.perf_counter() - began:.1f} s.")
    except Exception as problem:
        log.debug(traceback.format_exc())
        command = shlex.join(["vitling", "report", *map(str, folders)])
        log.warning(f"The report could not be written ({type(problem).__name__}: {problem}). Try: {command}")


def _leave_out_images(report: RunReport, folder: Path) -> RunReport:
    if report.dense is not None:  # it has its pictures already
        return report
    command = shlex.join(["vitling", "report", str(folder)])
    note = f"Sections with images are left out, because the run had little time. To add them: {command}"
    return replace(report, warnings=(*report.warnings, note))


def sum_seconds(result: dict[str, Any]) -> float:
    """Add up the seconds of the stages of a run."""
    return sum(stage["seconds"] for stage in result.get("stages", {"": result}).values())


def collect(files: RunFiles, limits: Limits, on_test_opened: Callable[[str], None] = lambda why: None) -> RunReport:
    """Collect everything about a run. Without its images, the page has fewer sections and a warning."""
    report = collect_files(files)
    if files.is_dense:
        return report
    try:
        report = _add_images(report, RunImages(files, limits, on_test_opened))
    except (UserError, OSError, RuntimeError, MemoryError) as problem:
        if isinstance(problem, RuntimeError | MemoryError) and not is_out_of_memory(problem):
            raise
        reason = "out of memory." if is_out_of_memory(problem) else problem
        report = replace(report, warnings=(*report.warnings, f"Sections with images are left out: {reason}"))
    return replace(report, origin=read_origin(files))  # again: the images may be those of test, opened just now


def _add_images(report: RunReport, images: RunImages) -> RunReport:
    class_names = images.shown.dataset.class_names
    if report.errors and class_names != report.class_names:
        raise UserError(f"{images.files.resolved.config.source} has other classes than the run.")
    placed = make_map(images)
    samples = choose_samples(placed) if placed else []
    errors = report.errors and replace(report.errors, reliability=measure_reliability(images))
    return replace(
        report,
        class_names=class_names,
        images=placed,
        errors=errors,
        attention=draw_attention(images, samples),
        matches=match_views(images, samples),
        views=draw_training_views(images),
    )


def collect_files(files: RunFiles) -> RunReport:
    """Collect what the files of a run contain. Mistakes are those on val; on test only if there is no val."""
    scores = list_scores(files)
    splits = {score.split: score.images for score in reversed(scores)}
    errors = None if files.is_dense else read_errors(files, "val" if "val" in splits else "test")
    return RunReport(
        name=files.name,
        headline=scores[0] if scores else None,
        scores=tuple(scores),
        facts=tuple(list_facts(files, splits)),
        warnings=tuple(list_warnings(files)),
        stages=tuple(list_stages(files)),
        curves=tuple(list_curves(files)),
        origin=read_origin(files),
        class_names=tuple(one.name for one in errors.classes) if errors else (),
        errors=errors,
        dense=read_dense(files) if files.is_dense else None,
        suspects=collect_suspects(files.folder, files.resolved.config),
    )
