"""The one place where settings are decided: defaults < method < plan < pace < explicit.

`resolve` takes what the user passed and the facts, and returns a complete config with the origin of every value. Code
that runs afterwards reads settings and changes none. A resumed run has its settings from config.json (`saved.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic

from vitling.methods.idmm.settings import finetune_recipe
from vitling.settings import cpu
from vitling.settings.checks import check
from vitling.settings.config import FINETUNE_POLICY, Config, FinetuneConfig, LabelledConfig, PretrainConfig, TrainConfig
from vitling.settings.dense import DenseConfig
from vitling.settings.dense_plan import resolve_dense
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft, Origin
from vitling.settings.network import resolve_length, resolve_network, spread_over_run
from vitling.settings.plan import VIEW, default_size
from vitling.settings.pretraining import resolve_pretraining


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
        notes = _resolve_finetuning(draft, facts)
    elif isinstance(draft.config, DenseConfig):
        notes = resolve_dense(draft, facts)
    elif isinstance(draft.config, TrainConfig) and draft.config.method != "supervised":
        _resolve_second_stage(draft)
    if isinstance(draft.config, LabelledConfig):
        notes += resolve_network(draft, facts, VIEW)
        resolve_length(draft, facts)
        cpu.follow_pace(draft, facts)
        spread_over_run(draft, facts, "eval_every", 50)
    check(draft.config)
    return Resolved(draft.config, dict(draft.origins), tuple(notes))


def _resolve_second_stage(draft: Draft[TrainConfig]) -> None:
    """Fine-tune as IDMM does; views that the user changes are vitling's own instead."""
    config = draft.config
    recipe = finetune_recipe(config.backbone or "", config.second_preset, config.epochs)
    reason = f"IDMM's fine-tuning, preset {config.second_preset}"
    draft.set_group("optim", recipe.optim, reason)
    if config.has_colours and config.views.is_default_augmentation:
        draft.set("views.policy", FINETUNE_POLICY, "method", reason)


def _resolve_finetuning(draft: Draft[FinetuneConfig], facts: Facts) -> list[str]:
    """Fill in backbone, size, length and optimiser of `finetune`, IDMM's second stage; return notes for the log."""
    start = facts.start
    draft.fill("backbone", start.backbone, "method", f"the network of {draft.config.from_}")
    notes = [*_resolve_views(draft), *_resolve_size(draft, facts)]
    epochs = None if draft.layer("epochs") == "default" else draft.config.epochs
    recipe = finetune_recipe(draft.config.backbone or "", draft.config.preset, epochs, draft.config.size or VIEW)
    reason = f"IDMM's fine-tuning, preset {draft.config.preset}"
    changed = [name for name in ("epochs", "batch") if draft.get(name) != getattr(recipe, name)]
    set_ = [name for name in changed if draft.set(name, getattr(recipe, name), "method", reason)]
    draft.set_group("optim", recipe.optim, reason)
    if set_:
        flags = " ".join(f"--{name} {draft.get(name)}" for name in set_)
        notes.append(f"Chosen for {draft.config.size} px: {flags}.")
    return notes


def _resolve_views(draft: Draft[FinetuneConfig]) -> list[str]:
    """Use vitling's own views if the user changes them: IDMM's policy takes no changes."""
    own = replace(draft.config.views, policy="")
    if draft.config.views.policy != FINETUNE_POLICY or draft.is_explicit("views.policy") or own.is_default_augmentation:
        return []
    draft.set("views.policy", "", "method", f"{FINETUNE_POLICY} takes no changes")
    return [f"Views: vitling's own with your changes; IDMM's ({FINETUNE_POLICY}) take none."]


def _resolve_size(draft: Draft[FinetuneConfig], facts: Facts) -> list[str]:
    """Fine-tune at no less than the size of pre-training."""
    before, source = facts.start.size, draft.config.from_
    if not draft.is_open("size") or before is None:
        return []
    usual = default_size(draft.config.backbone, facts.side, VIEW)
    if usual < before:
        draft.fill("size", before, "method", f"the size {source} was trained at")
        return [f"Chosen: --size {before}, the size {source} was trained at."]
    return [f"{source} was trained at {before} px; this run uses --size {usual}."] if usual > before else []
