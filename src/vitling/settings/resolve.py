"""The one place where settings are decided: defaults < method < plan < pace < explicit.

`resolve` takes what the user passed and the facts, and returns a complete config with the origin of every value. Code
that runs afterwards reads settings and changes none. A resumed run has its settings from config.json (`saved.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from vitling.methods.idmm.settings import finetune_recipe
from vitling.settings.checks import check
from vitling.settings.config import (
    FINETUNE_POLICY,
    Config,
    FinetuneConfig,
    LabelledConfig,
    PretrainConfig,
    TrainConfig,
)
from vitling.settings.facts import Facts
from vitling.settings.finetuning import resolve_finetuning
from vitling.settings.layers import Draft, Origin
from vitling.settings.network import resolve_length, resolve_network, spread_over_run
from vitling.settings.plan import VIEW
from vitling.settings.pretraining import resolve_pretraining
from vitling.settings.views import has_colours


@dataclass(frozen=True)
class Resolved(Generic[Config]):
    """Complete settings of a run, and where each of them comes from."""

    config: Config
    origins: dict[str, Origin]
    notes: tuple[str, ...] = ()


def resolve(request: Config | Draft[Config], facts: Facts) -> Resolved[Config]:
    """Decide every setting of a run, or of one stage of it. The plan of `train` (`plan_run`) comes before."""
    draft: Draft[Any] = Draft(request.config, request.origins) if isinstance(request, Draft) else Draft(request)
    notes: list[str] = []
    if isinstance(draft.config, PretrainConfig):
        notes = resolve_pretraining(draft, facts)
    elif isinstance(draft.config, FinetuneConfig):
        notes = resolve_finetuning(draft, facts)
    elif isinstance(draft.config, TrainConfig) and draft.config.method != "supervised":
        _resolve_second_stage(draft)
    if isinstance(draft.config, LabelledConfig):
        notes += resolve_network(draft, facts, VIEW)
        resolve_length(draft, facts)
        spread_over_run(draft, "eval_every", 50)
    check(draft.config)
    return Resolved(draft.config, dict(draft.origins), tuple(notes))


def _resolve_second_stage(draft: Draft[TrainConfig]) -> None:
    """Fine-tune as IDMM does; views that the user changes are vitling's own instead."""
    config = draft.config
    recipe = finetune_recipe(config.backbone or "", config.second_preset, config.epochs)
    reason = f"IDMM's fine-tuning, preset {config.second_preset}"
    draft.set_group("optim", recipe.optim, "method", reason)
    if has_colours(config) and config.views.is_default_augmentation:
        draft.set("views.policy", FINETUNE_POLICY, "method", reason)
