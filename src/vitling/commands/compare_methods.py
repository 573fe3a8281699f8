"""`vitling compare-methods`."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from rich.table import Table

from vitling.commands.flags import NO_PREFIX
from vitling.commands.results import format_percent, print_group_report
from vitling.console import Console, echo, is_main_process, make_table
from vitling.evaluation.intervals import format_interval
from vitling.settings.config import ComparisonConfig

BASELINE = "supervised"  # also the start of the names of baselines with other backbones
FEW_EPOCHS = 3  # a stage with fewer says little about a method


def compare_methods(config: Annotated[ComparisonConfig, NO_PREFIX]) -> None:
    """Train with every pre-training method and rank the results.

    Each method gets the same time on your images.

    Example: vitling compare-methods images/ --out runs/methods --minutes 8
    """
    from vitling.runs.compare_methods import compare_methods as run
    from vitling.runs.report import report_group

    result = run(config)
    if is_main_process():
        if config.report:
            report_group(config.out)
        print_comparison(result, config.out)


def print_comparison(result: dict[str, Any], out: str) -> None:
    """Print the ranking, how certain it is, and the command that trains with the best method."""
    Console().print(comparison_table(result))
    best = _rank(result["rows"])[0]
    if "value" not in best:
        echo("Every method stopped; the reasons are above.")
        return
    if result["differences"]:
        echo(_describe_lead(best, result["differences"]))
    if short := [row["method"] for row in result["rows"] if min(row.get("epochs", [FEW_EPOCHS])) < FEW_EPOCHS]:
        echo(f"{', '.join(short)} had a stage of fewer than {FEW_EPOCHS} epochs, too few to compare; raise --minutes.")
    echo(f"Saved to {out}, a run directory for each method")
    print_group_report(out)
    method = BASELINE if best["method"].startswith(BASELINE) else best["method"]
    flags = " ".join(filter(None, [f"--method {method}", best.get("flags", ""), "--out RUN"]))
    echo(f"Train with the best method: vitling train {shlex.quote(result['data'])} {flags}")


def comparison_table(result: dict[str, Any]) -> Table:
    columns = ("k-NN", "fine-tuned", "95 %", "epochs", "seconds")
    table = make_table(["method"], columns, "on held-out training images; one seed")
    for row in _rank(result["rows"]):
        if "value" not in row:
            table.add_row(row["method"], "", "stopped", "", "", "")
            continue
        scores = (format_percent(row.get(name)) for name in ("knn", "value"))
        interval = format_interval(row["value"], row["images"]) if row.get("metric") == "top1" else ""
        lengths = (" + ".join(f"{stage:.0f}" for stage in row[name]) for name in ("epochs", "seconds"))
        table.add_row(row["method"], *scores, interval, *lengths)
    return table


def _describe_lead(best: dict[str, Any], differences: list[dict[str, Any]]) -> str:
    """Describe how certain the best method's lead is on the held-out images."""
    from vitling.evaluation.comparison import format_points

    others = [f"{found['worse']} ({format_points(found['difference'], *found['interval'])})" for found in differences]
    close = [other for other, found in zip(others, differences) if not found["told_apart"]]
    if close:
        text = (
            f"{best['method']} ranks first, but on {best['images']:,} held-out images its lead over "
            f"{', '.join(close)} is not significant."
        )
        if any(found["interval"][0] > 0 for found in differences if not found["told_apart"]):
            text += " Where the interval excludes 0, McNemar's exact test still finds no significant difference."
    else:
        text = f"{best['method']} is better than the others; the next is {others[0]}."
    return f"{text} One seed each: the variation between seeds is not measured."


def _rank(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort by value, best first; methods that stopped come last."""
    return sorted(rows, key=lambda row: -row.get("value", -1.0))
