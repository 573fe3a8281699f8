"""The plan of `vitling train`: what it chooses from the images and the machine, and why. Imports no torch.

Sizes, lengths and batches are the IDMM paper's for its smallest dataset (2,040 images: 800 and 200 epochs, batches of
256); the rules for other numbers of images are vitling's own.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

from vitling.backbones.names import find_entry, get_native_size
from vitling.data.splits import parse_fraction
from vitling.errors import UserError
from vitling.methods import METHODS
from vitling.methods.idmm.settings import default_preset as default_idmm_preset
from vitling.methods.idmm.settings import finetune_recipe
from vitling.methods.method import SIZE, Recipe, is_plain_vit
from vitling.settings import cpu
from vitling.settings.config import MethodsConfig, TrainConfig
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft
from vitling.settings.names import flag_name, format_flag

TINY = 64  # px; images up to this size get small views and a small network
VIEW, PRETRAIN_VIEW = 224, SIZE  # px; the paper's two stages
CPU_VIEW = 96  # px; chosen here, for speed
TEST_VIEW = 288  # px, for networks trained at VIEW: results/finetuning-choices-h200.json
PAPER_IMAGES = 2_040  # Flowers-102's training images
MOST_FOR_IDMM = 20_000  # labelled images; the paper's datasets have up to 8,144
SMALL = 5_000  # images; no hold-out below this if there is a test split
MIN_STEPS = 7  # optimiser steps per epoch; 2,040 images in batches of 256 give 8
MIN_BATCH = 32
MUON_DECAY = 0.05  # weight decay, docs/recipe.md
CNNS = ("resnet", "convnext")  # with which Muon has not been tried
CPU_MINUTES = 60.0
PRETRAIN_SHARE = 0.6  # of the minutes of a two-stage run
MIN_PRETRAIN_SHARE = 1 / 8  # of a first stage's default length; if less fits, the second stage gets all the time
TIMED_FACTOR = 6  # times its default length that a run may have if --minutes allows
STAGE_SETTINGS = (
    *("pretrain_epochs", "pretrain_size", "pretrain_optim", "pretrain_views", "pretrain_preset"),
    *("on_collapse", "preset"),
)


def plan_run(draft: Draft[TrainConfig], facts: Facts) -> None:
    """Fill in every setting of `train` that is still open."""
    on_cpu = cpu.is_planned(draft, facts) and is_pretraining_optional(draft, method=True)
    if on_cpu:
        draft.plan("method", "supervised", "no GPU: there is no time for a first stage")
    draft.plan("method", *_method(draft.config, facts))
    two_stages = draft.config.method != "supervised"
    if not two_stages:
        _check_one_stage(draft)
    if facts.classes and not facts.own_val and not draft.config.data.folds:
        draft.plan("val", *_val(facts))
        if draft.layer("val") == "plan" and draft.config.val == "none" and _has_time_for_twin(draft.config, facts):
            draft.plan("calibrate", "on", "no images are held out: a short twin run calibrates the probabilities")
    facts = replace(facts, images=_count_trained(draft.config, facts), own_val=0)
    if on_cpu:
        cpu.choose_network(draft, facts)
    draft.plan("size", *choose_size(draft.config.backbone, facts))
    draft.plan("backbone", *default_backbone(draft.config.size or 0, facts.gpu))
    if facts.classes and _gains_from_larger_views(draft, facts):
        draft.plan("test_size", TEST_VIEW, f"9/7 of {VIEW}: random crops show objects larger than they are")
    if two_stages:
        draft.plan("preset", *_preset(draft.config.backbone or ""))
        if draft.config.method != "idmm":
            draft.plan("pretrain_preset", *_pretrain_preset(draft.config))
        draft.plan("pretrain_size", *_pretrain_size(draft.config.size or 0))
    draft.plan("batch", *_batch(facts))
    open_length = (two_stages and draft.is_open("pretrain_epochs")) or (facts.classes > 0 and draft.is_open("epochs"))
    if not facts.gpu and open_length:
        draft.plan("minutes", CPU_MINUTES, "no GPU: the paper's length would take days; epochs are an upper limit")
    timed = draft.config.minutes is not None
    if two_stages:
        draft.plan("pretrain_epochs", *_epochs(800, 50, facts.images + facts.pool, timed))
    if facts.classes:
        draft.plan("epochs", *_epochs(200 if two_stages else 300, 30, facts.images, timed))
    else:
        if draft.is_explicit("epochs") and not draft.is_explicit("pretrain_epochs"):
            raise UserError(
                "--epochs is the length of the stage on labels, and there are no labels. Pass --pretrain-epochs "
                f"{draft.config.epochs}."
            )
        draft.override("epochs", 1, "plan", "no labels: there is no second stage")
    if on_cpu:
        cpu.choose_training(draft, facts)
    _choose_optimisers_and_start(draft, has_labels=facts.classes > 0)
    _scale_learning_rates(draft, facts)


def describe_plan(draft: Draft[Any], before: Draft[Any] | None = None) -> list[str]:
    """Write the plan's choices with their reasons; of a plan that replaces another, only the new ones."""
    known = {} if before is None else {name: (before.get(name), origin) for name, origin in before.origins.items()}
    chosen = [
        (format_flag(name, draft.get(name)), origin.reason)
        for name, origin in draft.origins.items()
        if origin.layer == "plan" and origin.reason and known.get(name) != (draft.get(name), origin)
    ]
    width = max((len(flag) for flag, _ in chosen), default=0)
    lines = [f"  {flag:<{width}}  {reason}" for flag, reason in chosen]
    return ["Plan (pass a flag to change a choice):", *lines] if lines else []


def min_pretrain_epochs(config: TrainConfig) -> int:
    """Return the epochs that must fit into the time for a planned first stage to be worth it."""
    return max(1, round(MIN_PRETRAIN_SHARE * (config.pretrain_epochs or 0) / TIMED_FACTOR))


def is_pretraining_optional(draft: Draft[TrainConfig], method: bool = False) -> bool:
    """Return whether the user set nothing of a first stage; unless `method`, not even the method."""
    return (method or not draft.is_explicit("method")) and not any(map(_is_of_first_stage, draft.list_explicit()))


def drop_pretraining(plan: Draft[TrainConfig]) -> Draft[TrainConfig]:
    """Return what the user passed, as a request for one stage on the labels."""
    alone = Draft(TrainConfig())
    alone.override("method", "supervised", "plan", "the time is too short for a first stage")
    for name in plan.list_explicit():
        if not _is_of_first_stage(name):
            alone.override(name, plan.get(name), "explicit", plan.origins[name].reason)
    return alone


def default_backbone(size: int, gpu: bool) -> tuple[str, str]:
    if size <= TINY // 2 and not gpu:
        return "vit_nano_patch4_32", "0.2 M parameters: larger networks are too slow without a GPU"
    if size <= TINY and gpu:
        return "vit_micro_patch4_32", f"1.2 M parameters, 4 px patches for {size} px views"
    return "pvt_v2_b0", "3.4 M parameters; learns best from few images among the paper's small networks"


def default_size(backbone: str | None, side: int | None, view: int) -> int:
    """Return the size of a view for images with this longer side: smaller images and networks get a smaller view.

    Networks with 4 px patches are made for 32 px; at 224 px they would see 3,136 tokens.
    """
    view = min(view, get_native_size(backbone) or view)
    return view if side is None or side >= view * 5 // 7 else smaller_view(side)


def smaller_view(side: int) -> int:
    """Return the size of a view for images that are too small for the usual one."""
    return 16 if side <= 16 else -(-side // 32) * 32


def _is_of_first_stage(name: str) -> bool:
    return name.partition(".")[0] in (*STAGE_SETTINGS, *(f.name for f in fields(MethodsConfig)))


def _check_one_stage(draft: Draft[TrainConfig]) -> None:
    """Raise UserError for settings of a first stage that does not exist."""
    if wrong := next(filter(_is_of_first_stage, draft.list_explicit()), None):
        raise UserError(
            f"--{flag_name(wrong)} is for two-stage runs, but --method supervised has one stage. Leave it out, or pass "
            "--method idmm."
        )


def _count_trained(config: TrainConfig, facts: Facts) -> int:
    """Count the images that both stages train on: those that are not held out."""
    if config.data.folds:
        return facts.images - round(facts.images / config.data.folds)
    if config.val is None:
        return facts.images - facts.own_val
    return facts.images - round(facts.images * parse_fraction(str(config.val)))


def _choose_optimisers_and_start(draft: Draft[TrainConfig], has_labels: bool) -> None:
    """Choose Muon for learning the labels and for IDMM before it, and mimetic initial weights for plain ViTs.

    Runs with --from keep AdamW. An explicit --preset keeps its own optimiser and the network's own initial weights.
    With AdamW, IDMM collapsed from mimetic weights in two of three runs (docs/recipe.md), so they are for Muon alone.
    """
    config, backbone = draft.config, draft.config.backbone or ""
    if config.from_ is not None or draft.is_explicit("preset"):
        return
    groups = ["optim"] * has_labels + ["pretrain_optim"] * (config.method != "supervised")
    for group in groups:
        if group == "optim" or (config.method == "idmm" and not draft.is_explicit("pretrain_preset")):
            _choose_optimiser(draft, group, backbone)
    if _is_listed_plain_vit(backbone) and all(draft.get(f"{group}.name") == "muon" for group in groups):
        draft.set("init", "mimetic", "plan", "plain ViTs learn faster from it")


def _choose_optimiser(draft: Draft[TrainConfig], group: str, backbone: str) -> None:
    """Choose Muon unless AdamW or one of its settings was passed; set its weight decay even if Muon was passed."""
    name, optim = f"{group}.name", draft.get(group)
    for_adamw = draft.is_explicit(name) or optim.final_weight_decay is not None or backbone.startswith(CNNS)
    if draft.is_open(name) and not for_adamw:
        draft.plan(name, "muon", f"ahead of AdamW in our trials; with a weight decay of {MUON_DECAY:g}")
    if draft.get(name) == "muon":
        reason = "" if draft.layer(name) == "plan" else "chosen for Muon"  # the reason for Muon names it
        draft.set(f"{group}.weight_decay", MUON_DECAY, "plan", reason)


def _is_listed_plain_vit(backbone: str) -> bool:
    """Return whether a network is a plain ViT that is tested; DRLoc's variant has an initialisation of its own."""
    return is_plain_vit(backbone) and find_entry(backbone) is not None and not backbone.endswith(".drloc")


def _scale_learning_rates(draft: Draft[TrainConfig], facts: Facts) -> None:
    """Scale the presets' learning rates, which are for their own batch and network, to those of the run.

    A batch has no more images than there are. A single stage has the rate of the second one, except with SGD, for which
    no rate is published.
    """
    config = draft.config
    one_stage = config.method == "supervised"
    if one_stage and config.optim.name == "sgd":
        return
    second = finetune_recipe(config.backbone or "", config.second_preset)
    _scale_learning_rate(draft, "optim", second, one_stage, facts.images)
    if not one_stage:
        first = METHODS[config.method].recipe(config.backbone or "", config.first_preset)
        _scale_learning_rate(draft, "pretrain_optim", first, one_stage, facts.images + facts.pool)


def _scale_learning_rate(draft: Draft[TrainConfig], group: str, recipe: Recipe, one_stage: bool, images: int) -> None:
    optim, batch = getattr(draft.config, group), draft.config.batch
    lr = recipe.lr_for(min(batch, images), optim.name)
    otherwise = optim.peak_lr(batch) if one_stage else recipe.optim.peak_lr(recipe.batch)
    if optim.lr is None and lr != otherwise:
        published = recipe.optim.peak_lr(recipe.batch)
        draft.set(f"{group}.lr", lr, "plan", f"the preset's {published:g}, scaled to this batch and network")


def _method(config: TrainConfig, facts: Facts) -> tuple[str, str]:
    if config.from_ and facts.classes:
        return "supervised", "--from gives the start"
    if not facts.classes:
        return "idmm", "no labels: the images alone, in one stage"
    if facts.pool:
        return "idmm", f"{facts.pool:,} unlabelled images for a first stage"
    if facts.images <= MOST_FOR_IDMM:
        return "idmm", f"a first stage without labels helps with few images ({facts.images:,})"
    return "supervised", f"IDMM was shown on a few thousand images; these are {facts.images:,}"


def _val(facts: Facts) -> tuple[str, str]:
    if facts.has_test and facts.images <= SMALL:
        return "none", "few images and a test split: train on all of them, report the last epoch"
    return "0.1", "held out to measure accuracy"


def _has_time_for_twin(config: TrainConfig, facts: Facts) -> bool:
    return facts.gpu or (config.minutes or cpu.TWIN_MINUTES) >= cpu.TWIN_MINUTES


def choose_size(backbone: str | None, facts: Facts) -> tuple[int, str]:
    usual, side = VIEW if facts.gpu else CPU_VIEW, facts.side or VIEW
    own = get_native_size(backbone)
    if own is not None and own < min(usual, side):
        return own, f"{backbone} is made for it"
    if side >= usual * 5 // 7:
        return usual, "the usual size of a view" if facts.gpu else "larger views are too slow without a GPU"
    return smaller_view(side), f"the images are only {side} px"


def _gains_from_larger_views(draft: Draft[TrainConfig], facts: Facts) -> bool:
    """Return whether to test on larger views: for networks without positions that would have to be resized."""
    takes_any_size = (draft.config.backbone or "").startswith("pvt_v2")
    return takes_any_size and draft.config.size == VIEW <= (facts.side or VIEW) and not draft.is_explicit("test_size")


def _preset(backbone: str) -> tuple[str, str]:
    if default_idmm_preset(backbone) == "released":
        return "released", "the released code trains such networks at twice the paper's learning rate"
    return "paper", "IDMM's learning rates as published"


def _pretrain_preset(config: TrainConfig) -> tuple[str, str]:
    preset = config.first_preset
    return preset, "IDMM's optimiser, with which it does better" if preset == "adamw" else "its paper's settings"


def _pretrain_size(size: int) -> tuple[int, str]:
    if size <= TINY:
        return size, "the same as --size: such views are small already"
    half = PRETRAIN_VIEW if size == VIEW else -(-size // 64) * 32
    return half, f"half of {size}{'' if half * 2 == size else ', in steps of 32'}: several small crops per image"


def _batch(facts: Facts) -> tuple[int, str]:
    fitting = 2 ** int(math.log2(max(facts.images / MIN_STEPS, 1)))
    batch = min(256, max(fitting, MIN_BATCH))
    if batch == 256:
        return 256, "the paper's"
    if batch > fitting:
        return batch, "few images: the smallest batch that is planned"
    return batch, f"at least {MIN_STEPS} steps per epoch of {facts.images:,} images"


def _epochs(base: int, least: int, images: int, timed: bool) -> tuple[int, str]:
    """Return fewer epochs for more images, but not so few that the number of steps stays the same."""
    epochs = max(least, min(base, round(base * math.sqrt(PAPER_IMAGES / max(images, 1)))))
    if timed:
        return TIMED_FACTOR * epochs, "upper limit; the measured pace decides how many fit into the time"
    if epochs < base:
        return epochs, f"{base} for {PAPER_IMAGES:,} images, fewer for more"
    return epochs, "the paper's" if base != 300 else f"for up to {PAPER_IMAGES:,} images"
