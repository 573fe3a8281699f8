"""Settings of fine-tuning: IDMM's second stage. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from vitling.methods.idmm.settings import finetune_recipe
from vitling.settings.config import FINETUNE_POLICY, FinetuneConfig
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft
from vitling.settings.plan import VIEW, default_size


def resolve_finetuning(draft: Draft[FinetuneConfig], facts: Facts) -> list[str]:
    """Fill in backbone, size, length and optimiser of fine-tuning; return notes for the log."""
    start = facts.start
    draft.fill("backbone", start.backbone, "method", f"the network of {draft.config.from_}")
    notes = [*_resolve_views(draft), *_resolve_size(draft, facts)]
    epochs = None if draft.layer("epochs") == "default" else draft.config.epochs
    recipe = finetune_recipe(draft.config.backbone or "", draft.config.preset, epochs, draft.config.size or VIEW)
    reason = f"IDMM's fine-tuning, preset {draft.config.preset}"
    changed = [name for name in ("epochs", "batch") if draft.get(name) != getattr(recipe, name)]
    set_ = [name for name in changed if draft.set(name, getattr(recipe, name), "method", reason)]
    draft.set_group("optim", recipe.optim, "method", reason)
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
