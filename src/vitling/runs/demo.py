"""`vitling demo`: the gain from pre-training without labels, on scikit-learn's 1,797 scanned digits of 8 x 8 pixels.

100 of the 1,498 training digits have labels, ten per class; the rest is an unlabelled pool. A small network learns the
100 labels twice, with the same settings and steps: from a random initialisation, and after IDMM pre-training on all
1,498 images. A last run uses all labels. Each run opens the 299 test digits once, at its end.

The settings were chosen for these digits on a fifth of the training digits, on which neither longer training nor other
learning rates improved the random initialisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitling.console import Log, brief_output
from vitling.data.config import DataConfig
from vitling.methods.supervised.settings import SupervisedConfig
from vitling.runs.pretrain import pretrain
from vitling.runs.report import FILE, report_finished
from vitling.runs.train import train
from vitling.settings.config import PretrainConfig, TrainConfig
from vitling.training.config import LoopConfig, OptimConfig
from vitling.views.config import ViewChanges, ViewsConfig

DIGITS = "embedded:digits"
REPORT_SECONDS = 30.0  # most of it for a busy CPU; a free one takes five
RUNS = ("random", "pretrain", "idmm", "all-labels")
_SHARED: dict[str, Any] = {
    "backbone": "vit_nano_patch4_32",
    "size": 8,
    "val": "none",
    "data": DataConfig(channels=1, normalise="data"),
    "loop": LoopConfig(device="cpu"),
    "report": False,  # one report shows all runs
}
_LABELLED = TrainConfig(
    method="supervised",
    batch=50,
    # Digits must not be mirrored, and small crops of 8 x 8 pixels show nothing.
    views=ViewsConfig(scale=(0.7, 1.0), flip=0.0, rotate=10.0, erase=0.0, mixup=0.0, cutmix=0.0, crop_fraction=1.0),
    objective=SupervisedConfig(drop_path=0.0),
    optim=OptimConfig(lr=1e-3),
    explicit=("optim.name", "init"),  # AdamW and the network's own weights, as in the pre-training
    **_SHARED,
)
# IDMM follows the paper except for its views and, because it has few epochs, smaller batches with a higher learning
# rate and the longer warm-up that this needs.
_PRETRAINING = PretrainConfig(
    batch=64,
    drop_path=0.0,
    views=ViewChanges(scale=(0.5, 1.0), local_scale=(0.3, 0.7), flip=0.0, rotate=15.0, colour=False, blur=0.0),
    **_SHARED,
)


def demo(
    out: str, epochs: int, pretrain_epochs: int, seed: int, resume: bool, overwrite: bool
) -> dict[str, dict[str, Any]]:
    """Train all of RUNS in folders of `out` and return the result.json of each.

    It takes about three minutes on two free CPU cores.
    """
    few = f"{DIGITS}?labels=100&seed={seed}"
    start: dict[str, Any] = {"seed": seed, "resume": resume, "overwrite": overwrite}
    labelled, pretraining = replace(_LABELLED, epochs=epochs, **start), replace(_PRETRAINING, **start)
    optim = OptimConfig(lr=1.5e-3, warmup_epochs=pretrain_epochs / 10)
    random, pre, idmm, all_labels = (str(Path(out) / name) for name in RUNS)
    log, results = Log(), {}
    with _use_one_thread(), brief_output():
        log.info("1 of 4: 100 labels, from a random initialisation.")
        results["random"] = train(replace(labelled, source=few, out=random))
        log.info("2 of 4: IDMM on 1,498 digits, without labels.")
        results["pretrain"] = pretrain(replace(pretraining, source=few, out=pre, epochs=pretrain_epochs, optim=optim))
        log.info("3 of 4: the same 100 labels, after IDMM.")
        results["idmm"] = train(replace(labelled, source=few, out=idmm, from_=pre))
        log.info("4 of 4: all 1,498 labels, from a random initialisation.")
        # With fifteen times as many images, a fifth of the epochs is still three times as many steps.
        results["all-labels"] = train(replace(labelled, source=DIGITS, out=all_labels, epochs=-(-epochs // 5)))
        report_finished([Path(idmm), Path(random), Path(all_labels)], Path(out) / FILE, REPORT_SECONDS, log)
    return results


@contextmanager
def _use_one_thread() -> Iterator[None]:
    """Use one thread: so small a network gains little from a second one, and loses much if the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
