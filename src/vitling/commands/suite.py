"""`vitling suite`."""

from __future__ import annotations

from typing import Annotated, Any

from vitling.commands.flags import NO_PREFIX
from vitling.console import Console, echo
from vitling.errors import RunAborted, UserError
from vitling.papers.suite.config import SuiteConfig
from vitling.papers.suite.table import make_tables


def suite(config: Annotated[SuiteConfig, NO_PREFIX]) -> None:
    """Evaluate frozen networks on the papers' datasets.

    Datasets that are not on disk are skipped. Finished evaluations are not repeated; delete the file in --out to run
    one again.

    Example: vitling suite runs/first runs/second --data-root DIR --table esvit-t10
    """
    from vitling.papers.suite.suite import run_suite

    outcome = run_suite(config)
    _print_suite(outcome.summary)
    echo(f"Saved to {outcome.path}")
    if outcome.failed:
        first = next(iter(outcome.failed.values()))
        wrong_input = all(isinstance(problem, UserError) for problem in outcome.failed.values())
        kind = UserError if wrong_input else RunAborted
        raise kind(f"{len(outcome.failed)} failed: {'; '.join(outcome.failed)}. The first: {first}")


def _print_suite(summary: dict[str, Any]) -> None:
    console = Console()
    for table in make_tables(summary, console):
        console.print(table)
    for row in summary["rows"]:
        for note in row["notes"]:
            echo(f"* {row['data']}: {note}")
