"""`vitling train`."""

from __future__ import annotations

from typing import Annotated

from vitling.commands.flags import NO_PREFIX
from vitling.commands.results import print_run, run_training
from vitling.settings.config import TrainConfig


def train(config: Annotated[TrainConfig, NO_PREFIX]) -> None:
    """Train a network from scratch: without labels, then with them.

    Settings that you leave open are planned from the images and the machine; the plan is printed with its reasons.

    Example: vitling train images/ --out runs/first
    """
    from vitling.runs.train import train as run

    run_training(config, run, print_run)
