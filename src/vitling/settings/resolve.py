"""The one place where settings are decided: defaults < method < plan < pace < explicit.

`resolve` takes what the user passed and the facts, and returns a complete config with the origin of every value. Code
that runs afterwards reads settings and changes none. A resumed run uses its saved settings instead (`saved.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Generic

from vitling.backbones.names import native_size
from vitling.errors import UserError
from vitling.methods import METHODS
from vitling.methods.drloc import default_weight
from vitling.methods.idmm import recipe_finetune
from vitling.methods.method import Method, MethodPreset, default_preset
from vitling.settings.checks import check
from vitling.settings.config import (
    FINETUNE_POLICY,
    Config,
    FinetuneConfig,
    LabelledConfig,
    PretrainConfig,
    RunConfig,
    TrainConfig,
)
from vitling.settings.continuing import check_continues, inherit_method_settings, inherit_settings
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft, Source
from vitling.settings.names import flag_name, format_value
from vitling.settings.plan import CPU_BACKBONE, PRETRAIN_VIEW, TINY, TINY_BACKBONE, VIEW, plan_run, smaller_view
from vitling.settings.views import training_views


@dataclass(frozen=True)
class Resolved(Generic[Config]):
    """Complete settings of a run, and where each of them comes from."""

    config: Config
    sources: dict[str, Source]
    notes: tuple[str, ...] = ()

    def flags_from(self, *origins: str, names: tuple[str, ...] = ()) -> str:
        """Write the settings of these origins as flags."""
        named = [n for n in names or self.sources if n in self.sources and self.sources[n].origin in origins]
        draft = Draft(self.config)
        return " ".join(f"--{flag_name(name)} {format_value(draft.get(name))}" for name in named)


def resolve(request: Config | Draft[Config], facts: Facts) -> Resolved[Config]:
    """Decide every setting of a run, or of one stage of it."""
    draft: Draft[Any] = request if isinstance(request, Draft) else Draft(request)
    notes: list[str] = []
    if isinstance(draft.config, PretrainConfig):
        notes = _resolve_pretraining(draft, facts)
    elif isinstance(draft.config, FinetuneConfig):
        notes = _resolve_finetuning(draft, facts)
    elif isinstance(draft.config, TrainConfig):
        plan_run(draft, facts)
    if isinstance(draft.config, LabelledConfig):
        notes += _resolve_network(draft, facts, VIEW)
        _resolve_length(draft, facts)
        looks = 50 if draft.config.minutes is None else 10
        draft.fill("eval_every", max(1, round(draft.config.epochs / looks)), "method", f"about {looks} evaluations")
    check(draft.config)
    return Resolved(draft.config, dict(draft.sources), tuple(notes))
