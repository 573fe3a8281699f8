"""Settings as a command would resolve them, without data: the images exist in number only."""

from __future__ import annotations

from typing import Any

from vitling.settings.config import Config, TrainConfig
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft
from vitling.settings.plan import plan_run
from vitling.settings.resolve import resolve


def resolve_for(config: Config, images: int = 2_040, **facts: Any) -> Config:
    """Resolve the settings of `pretrain` or `finetune`, or of one stage of `train`."""
    return resolve(config, Facts(images, **facts)).config


def plan_for(config: TrainConfig, facts: Facts) -> Draft[TrainConfig]:
    """Plan a run of `train`."""
    draft = Draft(config)
    plan_run(draft, facts)
    return draft
