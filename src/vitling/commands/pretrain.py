"""`vitling pretrain`."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from vitling.commands.flags import NO_PREFIX
from vitling.commands.results import run_training
from vitling.console import echo
from vitling.formatting import format_count
from vitling.settings.config import PretrainConfig


def pretrain(config: Annotated[PretrainConfig, NO_PREFIX]) -> None:
    """Pre-train a network on your images, without labels.

    Only --method supervised and supcon use labels.

    Example: vitling pretrain images/ --out runs/pre, then vitling finetune images/ --from runs/pre --out runs/first
    """
    from vitling.runs.pretrain import pretrain as run

    run_training(config, run, _print_pretraining)


def _print_pretraining(result: dict[str, Any], config: PretrainConfig) -> None:
    """Print a summary of the run and the command that fine-tunes from it."""
    echo(
        f"{result['method']}: {result['backbone']} at {result['size']} px, {result['images']:,} images, "
        f"{format_count(result['epochs'], 'epoch')}, {result['seconds']:.0f} s, "
        f"{result['images_per_second']:,.0f} images/s, "
        f"loss {result['last'].get('loss', float('nan')):.3f}"
    )
    echo(f"Saved to {config.out}")
    data = shlex.quote(config.source) if config.source and result.get("labelled", True) else "LABELLED_DATA"
    echo(f"The second stage: vitling finetune {data} --from {shlex.quote(config.out)} --out RUN")
