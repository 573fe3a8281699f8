"""The whole pipeline on scikit-learn's 1,797 digits: real scans, 8 x 8 pixels, embedded. Two CPU cores, under three
minutes; at least 95 % on the 299 digits that are held out as test."""

from __future__ import annotations

from typing import Any

from vitling.objectives.config import SupervisedConfig
from vitling.recipes.config import TrainConfig
from vitling.recipes.train import train
from vitling.training.config import OptimConfig
from vitling.views.config import ViewsConfig


def demo(out: str = "runs/demo", epochs: int = 120, overwrite: bool = False, seed: int = 0) -> dict[str, Any]:
    """Trains on the embedded digits. They must not be mirrored, and small crops of 8 x 8 pixels show nothing: hence the
    views."""
    config = TrainConfig(
        source="embedded:digits",
        method="supervised",
        val="0.1",
        out=out,
        epochs=epochs,
        backbone="vit_nano_patch4_32",
        size=16,
        batch=64,
        seed=seed,
        overwrite=overwrite,
        views=ViewsConfig(
            scale=(0.6, 1.0), flip=0.0, rotate=15.0, erase=0.0, mixup=0.2, cutmix=0.0, mix_prob=0.5, crop_fraction=1.0
        ),
        objective=SupervisedConfig(drop_path=0.0),
        optim=OptimConfig(lr=1e-3),
    )
    return train(config)
