"""`vitling compare`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from rich.table import Column
from tyro.conf import Positional, arg

from vitling.commands.flags import OptionalOut
from vitling.commands.results import format_percent
from vitling.console import Console, echo, make_table
from vitling.evaluation.config import Weights
from vitling.evaluation.intervals import format_interval
from vitling.metric_names import METRIC_NAMES


def compare(
    runs: Annotated[tuple[str, ...], Positional, arg(metavar="RUN RUN ...", help_behavior_hint="(required)")],
    split: Literal["auto", "val", "test"] = "auto",
    weights: Weights = "last",
    out: OptionalOut = None,
) -> None:
    """Compare runs and test whether they differ significantly.

    All runs are compared on the same images. A RUN is a run directory, or a folder made with --seeds: its runs count as
    one, with mean and standard deviation.

    Args:
        runs: Two or more runs, trained on the same classes.
        split: Images to compare on; auto is test if every run has it, else val.
        weights: Weights of the last epoch, or of the best epoch on validation.
        out: File for the comparison, as JSON.
    """
    from vitling.runs.compare import compare as compare_runs

    _print_differences(compare_runs(runs, split, weights, out))
    if out:
        echo(f"Saved to {out}")


def _print_differences(result: dict[str, Any]) -> None:
    with_interval = result["metric"] == "top1"
    caption = f"{METRIC_NAMES[result['metric']].display} on {result['images']:,} images of {result['split']}"
    columns = ("seeds", "mean", *(["95 %"] if with_interval else []), "std")
    table = make_table([Column("run", overflow="fold")], columns, caption)
    for row in result["runs"]:
        interval = [format_interval(row["mean"], result["images"])] if with_interval else []
        mean, std = format_percent(row["mean"]), format_percent(row["std"])
        table.add_row(row["run"], str(len(row["values"])), mean, *interval, std)
    Console().print(table)
    for found in result["differences"]:
        test = f" McNemar: p = {found['mcnemar_p']:.2g}." if "mcnemar_p" in found else ""
        echo(found["in_words"] + test)
