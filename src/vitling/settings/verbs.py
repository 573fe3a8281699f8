"""The settings of each training command. Imports no torch."""

from __future__ import annotations

from vitling.settings.config import ComparisonConfig, FinetuneConfig, PretrainConfig, RunConfig, TrainConfig
from vitling.settings.dense import DetectConfig, SegmentConfig

CONFIGS: dict[str, type[RunConfig]] = {
    "train": TrainConfig,
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "compare-methods": ComparisonConfig,
    "detect": DetectConfig,
    "segment": SegmentConfig,
}


def verb_of(config: RunConfig) -> str:
    """Return the command that these settings belong to."""
    return next(verb for verb, kind in CONFIGS.items() if kind is type(config))
