"""`vitling train`."""

from __future__ import annotations

from typing import Annotated, Any

from tyro.conf import arg

from vitling.commands.flags import NO_PREFIX
from vitling.commands.results import print_group_report, print_run, run_training
from vitling.console import echo, is_main_process
from vitling.settings.config import TrainConfig


def train(
    config: Annotated[TrainConfig, NO_PREFIX],
    baselines: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="")] = (),
) -> None:
    """Train a network from scratch: without labels, then with them.

    Settings that you leave open are planned from the images and the machine; the plan is printed with its reasons.

    Example: vitling train images/ --out runs/first

    Args:
        baselines: Then train alternatives on the labels, for at most the same time, and show them in the report:
            random (the same network from a random start) or other backbones, such as resnet50.
    """
    from vitling.runs.baselines import check_baselines
    from vitling.runs.train import train as run

    check_baselines(baselines, config)
    result = run_training(config, run, print_run)
    if baselines and result is not None:
        _compare_with(baselines, config, result)


def _compare_with(baselines: tuple[str, ...], config: TrainConfig, result: dict[str, Any]) -> None:
    """Train the baselines and print their scores beside that of the run."""
    from vitling.runs.api import Result
    from vitling.runs.baselines import train_baselines
    from vitling.runs.report import sum_seconds

    found = {"this run": result} | train_baselines(config, result, baselines)
    if not is_main_process():
        return
    for name, one in found.items():
        echo(f"  {name}: {Result(one, config.out).describe()}, {sum_seconds(one):.0f} s")
    print_group_report(config.out)
