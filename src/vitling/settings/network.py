"""Settings that every stage derives from its images: network, sizes, auxiliary weight, length. Imports no torch."""

from __future__ import annotations

import math

from vitling.methods.drloc.settings import drloc_weight
from vitling.settings.config import LabelledConfig, RunConfig
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft
from vitling.settings.plan import default_backbone, default_size


def resolve_network(draft: Draft, facts: Facts, view: int) -> list[str]:
    """Fill in size, backbone, store size and the auxiliary weight; return a note on what was chosen."""
    opened = [name for name in ("backbone", "size") if draft.is_open(name)]
    draft.plan("size", default_size(draft.config.backbone, facts.side, view), "from the images' size")
    size = draft.config.size
    draft.plan("backbone", *default_backbone(size, facts.gpu))
    in_training = draft.config.make_views(size).store_side(facts.images)
    useful = max(in_training, _test_side(draft.config), draft.config.store_least)
    draft.fill("store_size", min(useful, facts.side or useful), "method", "the pixels that the views can use")
    if draft.config.aux == "drloc":
        draft.fill("drloc.weight", drloc_weight(draft.config.backbone), "method", "DRLoc's weight for this backbone")
    chosen = " ".join(f"--{name} {draft.get(name)}" for name in opened)
    return [f"Chosen: {chosen}."] if chosen else []


def resolve_length(draft: Draft, facts: Facts) -> None:
    """Shorten the run to what fits into --minutes, once the pace is known."""
    if facts.fit is None:
        return
    epochs = min(draft.config.epochs, facts.fit.epochs)
    warmup = draft.config.optim.warmup(epochs)
    reason = "what fits into --minutes at the measured pace"
    draft.override("epochs", epochs, "pace", reason)
    draft.override("optim.warmup_epochs", min(warmup, epochs / 10), "pace", "at most a tenth of the run")
    draft.override("loop.compile", facts.fit.compile, "pace", "the same as when the pace was measured")
    if facts.fit.epoch_part != draft.config.loop.epoch_part:
        draft.override("loop.epoch_part", facts.fit.epoch_part, "pace", reason)


def spread_over_run(draft: Draft, facts: Facts, name: str, times: int) -> None:
    """Set the epochs between two evaluations to get about this many per run; fewer with --minutes."""
    if draft.config.minutes is not None:
        times = 10 if facts.fit is None else facts.fit.evaluations
    every, reason = max(1, round(draft.config.epochs / times)), f"about {times} times per run"
    draft.fill(name, every, "method", reason)  # an explicit "auto" too
    draft.set(name, every, "method", reason)


def _test_side(config: RunConfig) -> int:
    """Return the pixels that test views are cut from, if they have a separate size."""
    if not isinstance(config, LabelledConfig) or config.test_size is None:
        return 0
    return math.ceil(config.test_size / config.views.crop_fraction)
