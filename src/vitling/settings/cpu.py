"""The plan of `vitling train` for labelled images without a GPU, where a run has few steps. Imports no torch.

Chosen after a screening on hold-outs of Flowers-102 and CIFAR-100 with one seed (results/cpu-plan-screening.json) and
short trials that are not recorded; docs/plan.md says which choice rests on what. `benchmarks/cpu_plan.py` checks them.
"""

from __future__ import annotations

from typing import Any

from vitling.settings.config import TrainConfig
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft
from vitling.views.config import ViewsConfig

BACKBONE, BACKBONE_REASON = "resnet10t", "4.9 M parameters, quick on a CPU: a ViT learns less in the same time"
VIEW = 64  # px
SMALLEST = 24  # px; smaller images get a small ViT, for which they need not be enlarged as much
SMALLEST_IN_BF16 = 32  # px; torch 2.15 computes wrong bf16 gradients of a ResNet's last convolutions on maps of 1x1
BATCH = 32
RATE = 1e-3
PACE = 35.0  # images per second and core of BACKBONE at VIEW in fp32, imports and evaluation included; twice in bf16
MIXED = 80  # epochs; a guess between 20, where CutMix lost, and 85, where it won, with one seed each
TWIN_MINUTES = 30.0  # a shorter run has no time for a twin
LIGHT_SCALE = (0.35, 1.0)  # of an image's area


def is_planned(draft: Draft[TrainConfig], facts: Facts) -> bool:
    """Return whether a run is planned here: in one stage, on labels, from scratch, on images that are not tiny."""
    config, side = draft.config, facts.side or VIEW
    from_scratch = facts.classes > 0 and not facts.pool and config.from_ is None
    return not facts.gpu and from_scratch and config.method in ("auto", "supervised") and side >= SMALLEST


def choose_network(draft: Draft[TrainConfig], facts: Facts) -> None:
    """Choose size, network and batch."""
    if draft.is_open("backbone"):
        small = facts.side is not None and facts.side < VIEW
        enlarged = f"the images of {facts.side} px are enlarged for the network"
        draft.plan("size", VIEW, enlarged if small else "larger views are too slow without a GPU")
    draft.plan("backbone", BACKBONE, BACKBONE_REASON)
    if _is_resnet(draft.config):
        draft.plan("batch", BATCH, "small batches: more steps in the same time")
    if facts.bf16 and (draft.config.size or VIEW) >= SMALLEST_IN_BF16:
        draft.plan("loop.precision", "bf16", "this CPU computes in bf16 about twice as fast")


def choose_training(draft: Draft[TrainConfig], facts: Facts) -> None:
    """Choose learning rate and views, once the length is known."""
    optim = draft.config.optim
    if optim.name != "sgd" and optim.lr is None and _is_resnet(draft.config):
        draft.set("optim.lr", RATE, "plan", "ResNets learn quickly with it, in small batches too")
    default, views = ViewsConfig(), draft.config.views
    if views.policy or not views.is_default_augmentation:
        return
    for name, value in {"scale": LIGHT_SCALE, "erase": 0.0, "mixup": 0.0}.items():
        draft.set(f"views.{name}", value, "plan", "weak views suit short runs")
    mixing, reason = _choose_mixing(expect_epochs(draft.config, facts))
    for name, value in mixing.items():
        if value != getattr(default, name):
            draft.set(f"views.{name}", value, "plan", reason)


def follow_pace(draft: Draft[Any], facts: Facts) -> None:
    """Mix images or not by the epochs that fit at the measured pace, if the plan chose the views."""
    planned = draft.layer("views.scale") == "plan" and draft.config.views.scale == LIGHT_SCALE
    if facts.fit is None or facts.gpu or not planned:
        return
    mixing, reason = _choose_mixing(draft.config.epochs * draft.config.loop.epoch_part)
    for name, value in mixing.items():
        if value != draft.get(f"views.{name}"):
            draft.set(f"views.{name}", value, "pace", reason)


def _choose_mixing(epochs: float) -> tuple[dict[str, float], str]:
    if epochs < MIXED:
        reason = f"about {epochs:.0f} epochs, too few to learn from mixed images"
        return {"cutmix": 0.0, "mix_prob": ViewsConfig.mix_prob}, reason
    return {"cutmix": ViewsConfig.cutmix, "mix_prob": 0.5}, f"about {epochs:.0f} epochs: every other image is mixed"


def expect_epochs(config: TrainConfig, facts: Facts) -> float:
    """Return the epochs of a run: those that fit into its time at the pace of an average core, at most --epochs."""
    if config.minutes is None:
        return config.epochs
    pace = PACE * facts.cores * (2 if facts.bf16 else 1)
    return min(config.epochs, 60 * config.minutes * pace / max(facts.images, 1))


def _is_resnet(config: TrainConfig) -> bool:
    return (config.backbone or "").startswith("resnet")
