"""`vitling report --watch RUN`: a live page of a run in progress, served to this computer only."""

from __future__ import annotations

import sys
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from vitling.errors import InvalidFile, UserError
from vitling.files import is_claimed, is_run
from vitling.loading import read_bytes, read_json_lines, read_record
from vitling.records import MetricsLine
from vitling.report.data import RunCurves
from vitling.report.page import embed_json, render_live_page
from vitling.report.specs import SECOND, make_curve_charts
from vitling.runs.report_files import format_seconds, read_curves
from vitling.settings.stages import LARGE_FOLDER, PRETRAIN_FOLDER

HOST = "127.0.0.1"  # loopback: other computers cannot connect
LOG_LINES = 40
_REPORT = "report.html"
_FOREVER = 1e8  # seconds; a longer time left is not shown


def make_server(run: str) -> ThreadingHTTPServer:
    """Make a server for the page of a run, on a free port; raise UserError if there is no such run."""
    folder = Path(run)
    if not is_run(folder):
        raise UserError(f"{run} is not a run: it lacks config.json or environment.json. Start the training first.")
    return _Server(folder, render_live_page(run).encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, page: bytes):
        super().__init__((HOST, 0), _Handler)
        self.folder, self.page = folder, page

    def find(self, path: str) -> tuple[str, bytes] | None:
        """Return the type and the content of a path."""
        if path == "/":
            return "text/html; charset=utf-8", self.page
        if path == "/data.json":
            return "application/json", embed_json(describe_progress(self.folder)).encode()
        if path == f"/{_REPORT}" and (self.folder / _REPORT).exists():
            return "text/html; charset=utf-8", read_bytes(self.folder / _REPORT)
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that a browser has dropped; print other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET of known paths, and nothing else."""

    server: _Server

    def do_GET(self) -> None:
        port = self.connection.getsockname()[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(HTTPStatus.FORBIDDEN)  # a name of another site that resolves to this computer
            return
        try:
            found = self.server.find(self.path)
        except (OSError, UserError):  # the run was deleted, or its files are damaged
            found = None
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, body = found
        self.send_response(HTTPStatus.OK)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        for name, value in (headers | {"X-Content-Type-Options": "nosniff"}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def describe_progress(folder: Path) -> dict[str, Any]:
    """Describe how far a run is, with the charts of its curves and the end of its log."""
    stages = _list_stages(folder)
    curves = [curve for title, stage in stages for curve in read_curves(title, stage / "metrics.jsonl")]
    title, stage = stages[-1]
    share, text = _measure_stage(stage)
    finished = (folder / "result.json").exists()
    if finished:
        share, text = 1.0, "Finished."
    elif not is_claimed(folder):
        text = f"Not running. {text} Continue it with --resume."
    elif title:
        text = f"{title}: {text[0].lower()}{text[1:]}"
    log = folder / "log.txt"
    return {
        "state": text,
        "progress": share,
        "has_report": (folder / _REPORT).exists(),
        "charts": {chart.id: asdict(chart) for chart in make_curve_charts([RunCurves(folder.name, tuple(curves))])},
        "log": read_bytes(log).decode(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else [],
    }


def _list_stages(folder: Path) -> list[tuple[str, Path]]:
    """List the stages that have begun, with their titles."""
    first, large = folder / PRETRAIN_FOLDER, folder / LARGE_FOLDER
    if not is_run(first):
        stages = [("", folder)]
    else:
        stages = [("First stage", first)]
        if (first / "result.json").exists() and (folder / "metrics.jsonl").exists():
            stages.append((SECOND, folder))
    return [*stages, ("Larger size", large)] if is_run(large) else stages


def _measure_stage(stage: Path) -> tuple[float, str]:
    """Return how much of a stage is done, from 0 to 1, and the same in words."""
    try:
        config = read_record(stage / "config.json", dict[str, Any])
    except InvalidFile:
        return 0.0, "Starting."
    path, planned, batch = stage / "metrics.jsonl", config.get("epochs"), config.get("batch")
    try:
        lines = read_json_lines(path, MetricsLine) if path.exists() else []
    except InvalidFile as problem:
        return 0.0, str(problem)
    epochs = next((line["epochs"] for line in reversed(lines) if "epochs" in line), planned)
    if not lines or not isinstance(epochs, int) or epochs < 1:
        return 0.0, "Starting."
    step = lines[-1]["step"]
    pace = next((line["images_per_second"] for line in reversed(lines) if "images_per_second" in line), None)
    text = f"Epoch {lines[-1]['epoch']} of {epochs}."
    finished = [line for line in lines if line["kind"] == "epoch"]
    if not finished:
        return 0.0, text
    total = epochs * finished[-1]["step"] / finished[-1]["epoch"]
    if isinstance(pace, int | float) and pace > 0 and isinstance(batch, int):
        seconds = max(total - step, 0) * batch / pace
        if seconds < _FOREVER:
            text += f" About {format_seconds(seconds)} left in this stage, at {pace:,.0f} images/s."
    return min(step / total, 1.0), text
