"""`vitling segment`."""

from __future__ import annotations

from typing import Annotated

from vitling.commands.dense_results import print_dense_run
from vitling.commands.flags import NO_PREFIX
from vitling.commands.results import run_training
from vitling.settings.dense import SegmentConfig


def segment(config: Annotated[SegmentConfig, NO_PREFIX]) -> None:
    """Train a network that gives every pixel a class.

    What you leave open is planned from the images and the machine.

    Example: vitling segment images/ --from runs/pre --out runs/street

    Then: vitling evaluate runs/street images/, and vitling predict runs/street IMAGES --out drawn
    """
    from vitling.runs.dense import train_dense as run

    run_training(config, run, print_dense_run)
