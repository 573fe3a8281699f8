"""`vitling demo`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

from vitling.commands.flags import Out
from vitling.commands.results import format_percent
from vitling.console import Console, echo, make_table
from vitling.evaluation.intervals import format_interval
from vitling.metric_names import METRIC_NAMES
from vitling.ranges import AT_LEAST_1, SEED


def demo(
    out: Out = "runs/demo",
    epochs: Annotated[int, AT_LEAST_1] = 200,
    pretrain_epochs: Annotated[int, AT_LEAST_1] = 64,
    seed: Annotated[int, SEED] = 0,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Show what pre-training adds on small digits, in three minutes.

    The data are scikit-learn's 1,797 scanned digits of 8 x 8 pixels, which a CPU can train on. Two networks learn from
    the same 100 labels: one starts at random, one was pre-trained with IDMM.

    Args:
        out: Directory for the runs.
        epochs: Passes over the 100 labelled digits.
        pretrain_epochs: Passes over all 1,498 training digits, without labels.
        seed: Random seed; it also selects the 100 labelled digits.
        resume: Continue an interrupted demo in --out.
        overwrite: Delete an earlier demo in --out.
    """
    from vitling.runs.demo import demo as run

    print_demo(run(out, epochs, pretrain_epochs, seed, resume, overwrite), out)


def print_demo(results: dict[str, dict[str, Any]], out: str) -> None:
    """Print the results of all runs and the gain from pre-training."""
    Console().print(_demo_table(results))
    random, pretrained, idmm = (results[name] for name in ("random", "pretrain", "idmm"))
    points = 100 * (idmm["last"]["test"]["top1"] - random["last"]["test"]["top1"])
    echo(
        f"With the same {idmm['images']} labels, IDMM pre-training on {pretrained['images']:,} unlabelled digits gives "
        f"{abs(points):.1f}\npoints {'more' if points >= 0 else 'less'} than a random initialisation. "
        "One seed on 8 x 8 pixel digits is only a demonstration;\nresults/demo-digits.json contains three seeds."
    )
    echo(f"Saved to {', '.join(str(Path(out) / name) for name in results)}")
    echo("Train on your own images, both stages: vitling train DATA --out runs/first")
    echo(f"Use this model: vitling predict {shlex.quote(str(Path(out) / 'idmm'))} IMAGES")
    if (report := Path(out) / "report.html").exists():
        echo(f"The digits, curves and mistakes as a web page:\n{report}")


def _demo_table(results: dict[str, dict[str, Any]]) -> Table:
    columns = ("labels", "steps", "seconds", f"test {METRIC_NAMES['top1'].display}", "95 %")
    table = make_table(["start"], columns, f"{results['idmm']['last']['test']['n']} test digits; last epoch")
    pretrained = results["pretrain"]
    for name, start, seconds in (
        ("random", "random", ""),
        ("idmm", f"IDMM on {pretrained['images']:,} images", f"{pretrained['seconds']:.0f} + "),
        ("all-labels", "random", ""),
    ):
        result = results[name]
        seconds += f"{result['seconds']:.0f}"
        test = result["last"]["test"]
        scores = format_percent(test["top1"]), format_interval(test["top1"], test["n"])
        table.add_row(start, f"{result['images']:,}", f"{result['steps']:,}", seconds, *scores)
    return table
