"""What pre-training without labels gives, on scikit-learn's 1,797 digits: real scans, 8 x 8 pixels, embedded.

Of the 1,498 training digits 100 have labels, ten of each; the others are an unlabelled pool. A small network learns the
100 labels from a random start, and from IDMM on all 1,498 images, which learns from no label: the same labels, the same
settings, the same number of steps. A last run has all labels. Each opens the 299 test digits once, at its end.

The settings are for these digits, and were chosen on a fifth of the training digits, where longer training and other
learning rates gave the random start no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vitling.console import Log
from vitling.data.config import DataConfig
from vitling.methods.supervised import SupervisedConfig
from vitling.runs.pretrain import pretrain
from vitling.runs.train import train
from vitling.settings.config import PretrainConfig, TrainConfig
from vitling.training.config import LoopConfig, OptimConfig
from vitling.views.config import ViewChanges, ViewsConfig

DIGITS = "embedded:digits"
RUNS = ("random", "pretrain", "idmm", "all-labels")


def demo(
    out: str = "runs/demo",
    epochs: int = 200,
    pretrain_epochs: int = 64,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, dict[str, Any]]:
    """Random start against IDMM with 100 labels, and random start with all. About three minutes on two free CPU cores.

    Gives the result.json of each of RUNS, which are the folders in `out`.
    """
    few = f"{DIGITS}?labels=100&seed={seed}"
    start = {"seed": seed, "resume": resume, "overwrite": overwrite}
    random, pre, idmm, all_labels = (str(Path(out) / name) for name in RUNS)
    say, found = Log().info, {}
    with _one_thread():
        say("1 of 4: 100 labels, from a random start.")
        found["random"] = train(labelled(few, random, epochs, **start))
        say("2 of 4: IDMM on 1,498 digits, without labels.")
        found["pretrain"] = pretrain(unlabelled(few, pre, pretrain_epochs, **start))
        say("3 of 4: the same 100 labels, from what IDMM has learnt.")
        found["idmm"] = train(labelled(few, idmm, epochs, from_=pre, **start))
        say("4 of 4: all 1,498 labels, from a random start.")
        # Fifteen times as many images: a fifth of the epochs is three times as many steps.
        found["all-labels"] = train(labelled(DIGITS, all_labels, -(-epochs // 5), **start))
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    """So small a network gains little by a second one, and loses much where the cores have other work too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def labelled(source: str, out: str, epochs: int, **more: Any) -> TrainConfig:
    """Digits must not be mirrored, and small crops of 8 x 8 pixels show nothing: hence the views."""
    views = ViewsConfig(scale=(0.7, 1.0), flip=0.0, rotate=10.0, erase=0.0, mixup=0.0, cutmix=0.0, crop_fraction=1.0)
    return TrainConfig(
        source=source,
        method="supervised",
        out=out,
        epochs=epochs,
        batch=50,
        views=views,
        objective=SupervisedConfig(drop_path=0.0),
        optim=OptimConfig(lr=1e-3),
        **_network(),
        **more,
    )


def unlabelled(source: str, out: str, epochs: int, **more: Any) -> PretrainConfig:
    """The paper's IDMM, but for the views; and as it has few epochs, with smaller batches at a higher rate, which needs
    the longer warm-up."""
    views = ViewChanges(scale=(0.5, 1.0), local_scale=(0.3, 0.7), flip=0.0, rotate=15.0, colour=False, blur=0.0)
    return PretrainConfig(
        source=source,
        out=out,
        epochs=epochs,
        batch=64,
        drop_path=0.0,
        views=views,
        optim=OptimConfig(lr=1.5e-3, warmup_epochs=epochs / 10),
        **_network(),
        **more,
    )


def _network() -> dict[str, Any]:
    return {
        "backbone": "vit_nano_patch4_32",
        "size": 8,
        "val": "none",
        "data": DataConfig(channels=1, normalise="data"),
        "loop": LoopConfig(device="cpu"),
    }
