"""Configs of the DRLoc paper's runs: train(replace(scratch(), source="flowers/", out="runs/flowers")).

"paper" follows the paper and its supplement, "released" the released code; docs/drloc.md compares them. Both train on
all images and report the last epoch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from vitling.errors import UserError
from vitling.methods.drloc.settings import DRLocConfig, Init
from vitling.methods.supervised.settings import SupervisedConfig
from vitling.settings.config import TrainConfig
from vitling.training.config import LoopConfig, OptimConfig
from vitling.views.config import ViewsConfig

Preset = Literal["paper", "released"]

RELEASED_EPOCHS, RELEASED_SCHEDULE = 101, 300  # epochs 0 to 100 of a schedule for 300


def scratch(
    backbone: str = "swin_tiny_patch4_window7_224",
    preset: Preset = "paper",
    aux: bool = True,
    epochs: int | None = None,
    batch: int = 1024,
) -> TrainConfig:
    """Make the config of Sec. 5.2: from scratch, with DRLoc or without (`aux=False`, the paper's baseline).

    The paper's top-1 on Flowers-102 after 100 epochs, without and with: Swin-T 34.51 and 39.37, T2T-ViT-14 31.73 and
    34.35, CvT-13 54.29 and 56.29.
    """
    base = replace(_make_config(backbone, preset, aux, batch), optim=_make_optim(5e-4 * batch / 512, warmup=20))
    if preset == "released":
        epochs = epochs or RELEASED_EPOCHS
        optim = replace(
            base.optim,
            min_lr=5e-6 * batch / 512,  # the release scales all three learning rates
            warmup_lr=5e-7 * batch / 512,
            schedule_epochs=max(epochs, RELEASED_SCHEDULE),
            cosine_from="start",
        )
        return replace(base, epochs=epochs, optim=optim, loop=LoopConfig(drop_last=True))
    return _scale_warmup(replace(base, epochs=epochs or 100))


def finetune(
    backbone: str,
    weights: str,
    aux: bool = True,
    epochs: int | None = None,
    batch: int = 1024,
) -> TrainConfig:
    """Make the config of Sec. 5.3: from a run, a checkpoint or a weights file, whose head is dropped.

    It follows the paper; the released code has no fine-tuning.

    The paper's top-1 on Flowers-102, from ImageNet-1K, without and with: Swin-T 98.03 and 98.21.
    """
    base = _make_config(backbone, "paper", aux, batch)
    optim = _make_optim(5e-4 * batch / 1024, warmup=10)
    return _scale_warmup(replace(base, from_=weights, epochs=epochs or 100, optim=optim))


def _make_config(backbone: str, preset: Preset, aux: bool, batch: int) -> TrainConfig:
    if preset not in ("paper", "released"):
        raise UserError(f"There is no preset {preset!r} of DRLoc: paper, released.")
    return TrainConfig(
        method="supervised",
        backbone=backbone,
        size=224,
        batch=batch,
        val="none",
        aux="drloc" if aux else "none",
        drloc=_make_loss(backbone, preset) if aux else DRLocConfig(),
        views=ViewsConfig(augment="timm", mix_per="batch"),
        objective=SupervisedConfig(smoothing=0.1, drop_path=_choose_drop_path(backbone, preset)),
        explicit=("optim.name", "init"),  # AdamW and the network's own weights, not what `train` would plan
    )


def _make_loss(backbone: str, preset: Preset) -> DRLocConfig:
    if preset == "paper":
        return DRLocConfig()
    grid = 14 if backbone.startswith("vit") else 7  # supplement: ViT's is pooled to 7 too; its code does not
    init: Init = "trunc_normal" if backbone.startswith(("swin", "t2t")) else "torch"
    return DRLocConfig(schedule="released", target="offset", pooling="released", grid=grid, init=init)


def _choose_drop_path(backbone: str, preset: Preset) -> float:
    """Return the rate of each network's authors, as the paper says; the released code passes it to Swin alone."""
    if backbone.startswith("swin"):
        return 0.2
    return 0.1 if backbone.startswith("t2t") and preset == "paper" else 0.0


def _make_optim(lr: float, warmup: int) -> OptimConfig:
    return OptimConfig(lr=lr, min_lr=1e-5, warmup_epochs=warmup, warmup_lr=1e-6, weight_decay=0.05, clip=5.0)


def _scale_warmup(config: TrainConfig) -> TrainConfig:
    """Scale the warm-up of runs that are shorter than the paper's."""
    warmup = config.optim.warmup_epochs or 0
    return replace(config, optim=replace(config.optim, warmup_epochs=warmup * min(1.0, config.epochs / 100)))
