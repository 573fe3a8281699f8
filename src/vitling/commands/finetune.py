"""`vitling finetune`."""

from __future__ import annotations

from typing import Annotated

from vitling.commands.flags import NO_PREFIX
from vitling.commands.results import print_run, run_training
from vitling.settings.config import FinetuneConfig


def finetune(config: Annotated[FinetuneConfig, NO_PREFIX]) -> None:
    """Fine-tune a pre-trained network on your labelled images.

    The defaults are IDMM's recipe.

    Example: vitling finetune images/ --from runs/pre --out runs/first

    Continue at a larger size and keep the head:
    vitling finetune images/ --from runs/first --size 448 --keep-head --out runs/large
    """
    from vitling.runs.finetune import finetune as run

    run_training(config, run, print_run)
