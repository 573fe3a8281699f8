"""`--minutes`: how many epochs fit into a time, compilation included."""

from __future__ import annotations

import copy
import gc
import time
from dataclasses import replace

import torch

from vitling.errors import UserError
from vitling.objectives.objective import Objective
from vitling.runs.running import Stores, begun
from vitling.settings.config import Config, LabelledConfig
from vitling.training.pace import measure_pace
from vitling.training.processes import Processes
from vitling.training.rundir import RunDirectory
from vitling.training.signals import raise_on_signal

CAREFUL = 0.96  # of the time that is left: checkpoints and looks at the features take some
SAVING = 5.0  # seconds, and for Python to end
EVALUATING = 3  # times as fast as training


class TooFewEpochs(UserError):
    """Fewer fit into the time than would teach anything."""


def fitted(
    config: Config,
    objective: Objective,
    stores: Stores,
    run: RunDirectory,
    processes: Processes,
    began: float,
    least: int = 1,
) -> Config:
    """As many epochs as fit, at most those of the config; TooFewEpochs where that is less than `least`. The pace is
    that of some steps of a copy, which also fills the compiler's cache; `began` is when the clock started."""
    if config.minutes is None or begun(run):
        return config
    run.log.info("Measuring the pace, to fit the run into the time.")
    with raise_on_signal("Stopped before the first step; continue with --resume."):
        pace, how = measure_pace(copy.deepcopy(objective), stores.train, config.for_the_loop(), processes)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    left = 60 * config.minutes - (time.monotonic() - began) - _ending(config, stores, pace)
    share = torch.tensor(CAREFUL * left * pace / len(stores.train), device=processes.device)
    fitting = int(processes.mean(share))
    epochs = max(1, min(config.epochs, fitting))
    if epochs < least:
        few = f"{fitting if fitting > 0 else 'no'} epoch{'s' * (fitting > 1)} of it would fit into the time"
        raise TooFewEpochs(f"{few}, and with fewer than {least} it gives little.")
    run.log.info(f"{pace:,.0f} images/s, {max(left, 0):.0f} s left to train: --epochs {epochs}.")
    if fitting < 1:
        gone = time.monotonic() - began
        run.log.warning(
            f"{config.minutes:.3g} minutes are too short for this: {gone:.0f} s went by before the training, and one "
            f"epoch takes {max(1, len(stores.train) / pace):.0f} s."
        )
    warmup = config.optim.warmup(epochs)
    optim = replace(config.optim, warmup_epochs=min(warmup, epochs / 10))
    return replace(config, epochs=epochs, optim=optim, loop=replace(config.loop, compile=how))


def _ending(config: Config, stores: Stores, pace: float) -> float:
    """What comes after the training: the test split is decoded, and judged like val, on views that may be larger."""
    if isinstance(config, LabelledConfig):
        pace *= (config.size or 1) ** 2 / config.eval_size**2
    hidden = stores.splits.hidden_test
    test, val = 0 if hidden is None else len(hidden), 0 if stores.val is None else len(stores.val)
    return SAVING + test * stores.seconds_per_image + (test + val) / (EVALUATING * pace)
