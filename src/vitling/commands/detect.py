"""`vitling detect`."""

from __future__ import annotations

from typing import Annotated

from vitling.commands.dense_results import print_dense_run
from vitling.commands.flags import NO_PREFIX
from vitling.commands.results import run_training
from vitling.settings.dense import DetectConfig


def detect(config: Annotated[DetectConfig, NO_PREFIX]) -> None:
    """Train a detector of boxes and masks on annotated images.

    What you leave open is planned from the images and the machine.

    Example: vitling detect images/ --from runs/pre --out runs/boxes

    Then: vitling evaluate runs/boxes images/, and vitling predict runs/boxes IMAGES --out drawn
    """
    from vitling.runs.dense import train_dense as run

    run_training(config, run, print_dense_run)
