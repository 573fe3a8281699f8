"""Settings of pre-training: the method's recipe for this backbone and these images. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from vitling.errors import UserError
from vitling.methods import METHODS, default_preset
from vitling.methods.method import Method, MethodPreset, Recipe, epochs_for_views
from vitling.settings.checks import check_batch
from vitling.settings.config import PretrainConfig
from vitling.settings.continuing import check_continues, inherit_method_settings, inherit_settings
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft
from vitling.settings.names import format_flag, leaves
from vitling.settings.network import resolve_length, resolve_network, spread_over_run
from vitling.settings.plan import PRETRAIN_VIEW


def resolve_pretraining(draft: Draft[PretrainConfig], facts: Facts) -> list[str]:
    """Fill in all settings of a pre-training run; return notes for the log."""
    method = METHODS[draft.config.method]
    inherit_settings(draft, facts.previous)
    notes = resolve_network(draft, facts, PRETRAIN_VIEW)
    _resolve_epochs(draft, method, facts.images)
    preset = resolve_preset(draft.config)
    batch = None if draft.is_open("batch") else draft.config.batch
    recipe = _recipe(draft.config, method, preset, draft.config.epochs, facts.images, batch)
    reason = f"{method.name}, preset {preset}" + (f", for {facts.images:,} images" if method.adapt else "")
    draft.fill("preset", preset, "method", f"the default of {method.name}")
    draft.fill("batch", recipe.batch, "method", reason)
    draft.set("drop_path", recipe.drop_path, "method", reason)
    draft.set_group("optim", recipe.optim, reason)
    if draft.config.optim.name in ("sgd", "muon"):
        draft.set("optim.final_weight_decay", None, "method", "only AdamW's weight decay has a schedule")
    resolve_length(draft, facts)
    spread_over_run(draft, facts, "watch_every", 40)
    if method.field:
        if facts.fit is not None:  # a rule for few images may depend on the length of the run
            recipe = _recipe(draft.config, method, preset, draft.config.epochs, facts.images, batch)
        draft.set_group(method.field, recipe.objective, reason)
        inherit_method_settings(draft, method, facts.previous)
        notes += _complete(draft, method)
    check_continues(draft.config, facts.previous)
    check_batch(draft.config, facts.images)
    return [*notes, *_describe_adaptation(draft, method, facts)]


def resolve_preset(config: PretrainConfig) -> MethodPreset:
    if config.preset == "adamw" and config.optim.name == "sgd":
        raise UserError("--preset adamw uses AdamW, but --optim.name is sgd. Leave out one of the two.")
    return default_preset(config.method, config.optim.name) if config.preset == "auto" else config.preset


def default_epochs(method: Method, images: int) -> int:
    return method.default_epochs(images) if method.default_epochs else PretrainConfig.epochs


def _resolve_epochs(draft: Draft[PretrainConfig], method: Method, images: int) -> None:
    if (views := draft.config.views_budget) is not None:
        crops = draft.config.make_views(draft.config.size or PRETRAIN_VIEW).crops
        draft.override("epochs", epochs_for_views(views, images, crops), "method", "from --views-budget")
    else:
        draft.set("epochs", default_epochs(method, images), "method", f"{method.name} on {images:,} images")


def _recipe(
    config: PretrainConfig, method: Method, preset: MethodPreset, epochs: int, images: int, batch: int | None
) -> Recipe:
    recipe = method.recipe(config.backbone or "", preset, epochs, config.size or PRETRAIN_VIEW)
    return method.adapt(recipe, images, batch) if method.adapt else recipe


def _complete(draft: Draft[PretrainConfig], method: Method) -> list[str]:
    """Let the method settle what follows from its other settings and from the views; return its notes."""
    prefix = f"{method.field}."
    explicit = {name.removeprefix(prefix) for name in draft.list_explicit() if name.startswith(prefix)}
    config = method.config_of(draft.config)
    notes: list[str] = []
    if method.complete is not None:
        config = method.complete(config, explicit)
    if method.fit_views is not None:
        plan = replace(draft.config, **{str(method.field): config}).make_views(PRETRAIN_VIEW)
        config, notes = method.fit_views(config, plan, explicit)
    for name, value in leaves(config):
        if value != draft.get(f"{method.field}.{name}"):
            draft.override(f"{method.field}.{name}", value, "method", "follows from other settings")
    return notes


def _describe_adaptation(draft: Draft[PretrainConfig], method: Method, facts: Facts) -> list[str]:
    """Write which settings the number of images decided."""
    if method.adapt is None:
        return []
    names = ["batch", *(f"{method.field}.{name}" for name in method.adapted)]
    if draft.config.minutes is None:
        names.append("epochs")
    else:
        names = [name for name in names if name.partition(".")[2] not in method.adapted_to_epochs]
    chosen = [name for name in names if draft.layer(name) == "method"]
    flags = " ".join(format_flag(name, draft.get(name)) for name in chosen)
    return [f"For {facts.images:,} images: {flags} (docs/{method.name}.md)."] if chosen else []
