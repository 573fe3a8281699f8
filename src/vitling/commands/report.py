"""`vitling report`."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Positional, arg

from vitling.commands.flags import OptionalOut
from vitling.console import echo


def report(
    runs: Annotated[tuple[str, ...], Positional, arg(metavar="RUN ...", help_behavior_hint="(required)")],
    out: OptionalOut = None,
) -> None:
    """Write a page with the results, curves and mistakes of runs.

    One HTML file that needs no network and no server. Training commands write it at the end; several runs are shown
    side by side.

    Args:
        runs: Run directories, or folders made with --seeds.
        out: The page to write. Default: report.html in the run directory; for several runs, in this folder.
    """
    from vitling.runs.report import write_report

    echo(f"Saved to {write_report(runs, out)}")
