"""`vitling reproduce`."""

from __future__ import annotations

from typing import Annotated, Any

from rich.table import Column
from tyro.conf import Positional, arg

from vitling.console import Console, echo, make_table
from vitling.errors import Interrupted, RunAborted
from vitling.formatting import describe_trial
from vitling.papers.lines import make_lines, select_columns
from vitling.ranges import AT_LEAST_1, POSITIVE


def reproduce(
    name: Annotated[str, Positional, arg(metavar="NAME")],
    data: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    seeds: Annotated[int, AT_LEAST_1] = 1,
    only: Annotated[tuple[str, ...], arg(metavar="PART ...", help_behavior_hint="")] = (),
    minutes: Annotated[float | None, POSITIVE, arg(metavar="M", help_behavior_hint="")] = None,
    epochs: Annotated[int | None, AT_LEAST_1, arg(metavar="N", help_behavior_hint="")] = None,
    runs_out: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="(default: runs/NAME)")] = None,
    out: Annotated[str | None, arg(metavar="PATH", help_behavior_hint="(default: results/NAME.json)")] = None,
    at_once: Annotated[int, AT_LEAST_1] = 1,
) -> None:
    """Train a paper's table and print our results next to it.

    Runs that are in results/NAME.json or finished in --runs-out are not repeated; interrupted runs are resumed.

    Args:
        name: The table; `vitling list tables` shows all.
        data: Folder of the datasets: DIR/flowers102/train/ and test/, or DIR/flowers102-train.tar and -test.tar.
        seeds: Runs per entry, with different seeds.
        only: Run only entries whose name contains one of these; =NAME matches a whole name.
        minutes: Start no new run after this many minutes.
        epochs: Train every run for only this many epochs, as a trial; its results are kept separate.
        runs_out: Directory for the run directories.
        out: File for the results.
        at_once: Number of processes that train at the same time.
            Use two or three on a large GPU if compiling takes as long as training.
    """
    from vitling.papers.reproduce import reproduce as run_study
    from vitling.papers.studies import find_study

    try:
        outcome = run_study(find_study(name), data, seeds, only, minutes, epochs, runs_out, out, at_once)
    except Interrupted as stop:  # its message names --resume, which this command does not have
        raise Interrupted(
            "Stopped; everything is saved. Run the same command again to continue.", stop.exit_code
        ) from None
    print_study(outcome.results)
    if outcome.path.exists():
        echo(f"Saved to {outcome.path}" + (f" and {outcome.picture}" if outcome.picture else ""))
    if outcome.failed:
        raise RunAborted(f"{len(outcome.failed)} of the runs failed: {'; '.join(outcome.failed)}.")


def print_study(results: dict[str, Any]) -> None:
    """Print a table of our results next to the paper's."""
    trial = describe_trial(results.get("trial"), ", ")
    echo(f"{results['study']}: {results['title']} ({results['source']}); {results['unit']}{trial}")
    found = make_lines(results)
    columns = select_columns(found, {"ours": "ours", "paper": "paper", "gain": "gain", "paper_gain": "paper's"})
    table = make_table([Column("run", overflow="fold")], columns.values())
    for line in found:
        table.add_row(line.run, *(getattr(line, name) for name in columns))
    Console().print(table)
    for line in found:  # below the table: a column of notes would leave no room for the numbers
        if line.note:
            echo(f"{line.run}: {line.note}")
