"""What trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vitling.commands.flags import Out
from vitling.console import is_main_process
from vitling.settings.config import ComparisonConfig, FinetuneConfig, PretrainConfig, TrainConfig


def demo(
    out: Out = "runs/demo",
    epochs: int = 200,
    pretrain_epochs: int = 64,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """What pre-training without labels gives on the embedded digits, on the CPU, in under three minutes.

    Scikit-learn's 1,797 digits: real scans, 8 x 8 pixels. A random start against IDMM, both with 100 labels.

    Args:
        out: Directory of the runs.
        epochs: Passes over the 100 labelled digits.
        pretrain_epochs: Passes over all 1,498 training digits, without labels.
        seed: Another one draws other labels and gives other runs.
        resume: Continue the demo in --out where it was stopped.
        overwrite: Delete an earlier demo in --out.
    """
    from vitling.commands.summary import show_demo
    from vitling.runs.demo import demo as digits

    show_demo(digits(out, epochs, pretrain_epochs, seed, resume, overwrite), out)


def train(config: TrainConfig) -> None:
    """Train a network on your images, from scratch: first on the images alone, then on their labels."""
    from vitling.runs.train import train as run

    if not _over_seeds(config, run):
        _show_result(run(config), config.out)


def pretrain(config: PretrainConfig) -> None:
    """Pre-train a network on your images; only --method supervised and supcon use labels."""
    from vitling.commands.summary import show_pretraining
    from vitling.runs.pretrain import pretrain as run

    if _over_seeds(config, run):
        return
    result = run(config)
    if is_main_process():
        show_pretraining(result, config)


def finetune(config: FinetuneConfig) -> None:
    """Fine-tune a pre-trained network on your labelled images."""
    from vitling.runs.finetune import finetune as run

    if not _over_seeds(config, run):
        _show_result(run(config), config.out)


def compare_methods(config: ComparisonConfig) -> None:
    """Give each method of pre-training the same time on your images, side by side."""
    from vitling.commands.summary import show_comparison
    from vitling.runs.compare_methods import compare_methods as run

    result = run(config)
    if is_main_process():
        show_comparison(result, config.out)


def _over_seeds(config: Any, run: Callable[[Any], dict[str, Any]]) -> bool:
    """Whether --seeds asked for several runs, now or when they were begun, which then are done."""
    from vitling.runs.asked import goes_on

    if config.seeds == 1 and not goes_on(config):
        return False
    from vitling.commands.summary import show_seeds
    from vitling.runs.seeds import over_seeds

    scores = over_seeds(config, run)
    if is_main_process():
        show_seeds(scores, config.out)
    return True


def _show_result(result: dict[str, Any], out: str) -> None:
    if not is_main_process():
        return
    from vitling.commands.summary import show_run

    show_run(result, out)
