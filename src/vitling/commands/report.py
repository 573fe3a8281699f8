"""`vitling report`."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from typing import Annotated

from tyro.conf import Positional, arg

from vitling.commands.flags import OptionalOut
from vitling.console import echo
from vitling.errors import UserError


def report(
    runs: Annotated[tuple[str, ...], Positional, arg(metavar="RUN ...", help_behavior_hint="(required)")],
    out: OptionalOut = None,
    watch: bool = False,
) -> None:
    """Write a page with the results, curves and mistakes of runs.

    One HTML file that needs no network and no server. Training commands write it at the end; several runs are shown
    side by side.

    Args:
        runs: Run directories, or folders made with --seeds or by compare-methods.
        out: The page to write. Default: report.html in the run directory; for several runs, in this folder.
        watch: Serve a live page of a run in progress instead, to this computer only, until Ctrl-C.
    """
    if watch:
        _watch(runs, out)
        return
    from vitling.runs.report import write_report

    echo(f"Saved to {write_report(runs, out)}")


def _watch(runs: tuple[str, ...], out: str | None) -> None:
    from vitling.runs.watch import make_server

    if len(runs) != 1 or out is not None:
        raise UserError("--watch shows one run and writes no file: vitling report --watch runs/first")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets background jobs ignore it
    with make_server(runs[0]) as server:
        echo(f"Watching {runs[0]} at http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            server.serve_forever()
