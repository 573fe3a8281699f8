"""The plan of `vitling detect` and `vitling segment`: what it chooses from the images and the machine, and why.

The presets 1x, 3x and 160k are those of the DRLoc paper (appendix B, supplement Sec. 4), which follows Swin. Up to
5,000 images the plan is vitling's own: longer in epochs, shorter in steps. Imports no torch.
"""

from __future__ import annotations

import math
from typing import Any

from vitling.settings.dense import MULTI_SCALE, DenseConfig, DetectConfig
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft
from vitling.settings.network import resolve_length, spread_over_run
from vitling.settings.plan import CPU_MINUTES, TIMED_FACTOR, default_backbone, describe_plan
from vitling.training.config import OptimConfig

SMALL = 5_000  # images; with more the papers' presets are planned
BATCH = 16  # images a step in all presets
MIN_STEPS = 8  # optimiser steps per epoch
FEW_TO_FREEZE = 500  # images; with more the whole backbone learns
LONGEST, AT_MOST = 300, 100  # epochs, for up to this many images
STEPS_160K, WARMUP_160K, WARMUP_COCO = 160_000, 1_500, 500  # optimiser steps; the last is Swin's
SHORTER, LONGER = (480, 800), 1_333  # px
DETECT_WIDTH, SEGMENT_WIDTH, CPU_WIDTH = 256, 512, 128  # channels of the heads
DETECT_SIZE, SEGMENT_SIZE, CPU_SIZE = 640, 512, 224  # px; the largest that are planned for few images


def resolve_dense(draft: Draft[Any], facts: Facts) -> list[str]:
    """Fill in every setting that is still open; return the plan as lines for the log."""
    config = draft.config
    draft.plan("preset", *_choose_preset(config, facts))
    if facts.start.backbone:
        draft.fill("backbone", facts.start.backbone, "method", f"the network of {config.from_}")
    if draft.config.preset == "small":
        _plan_small(draft, facts)
    elif isinstance(config, DetectConfig):
        _fill_coco(draft, facts)
    else:
        _fill_160k(draft, facts)
    _fill_views(draft, facts)
    draft.plan("backbone", *default_backbone(draft.config.size, facts.gpu))
    resolve_length(draft, facts)
    spread_over_run(draft, facts, "eval_every", 10)
    return describe_plan(draft) if facts.fit is None else []


def _choose_preset(config: DenseConfig, facts: Facts) -> tuple[str, str]:
    if facts.images <= SMALL:
        return "small", f"for small datasets ({facts.images:,} images)"
    return "1x" if isinstance(config, DetectConfig) else "160k", f"the paper's, for {facts.images:,} images"


def _plan_small(draft: Draft[Any], facts: Facts) -> None:
    detect, n = isinstance(draft.config, DetectConfig), facts.images
    draft.plan("size", *_choose_size(DETECT_SIZE if detect else SEGMENT_SIZE, facts))
    batch = min(BATCH, max(2, 2 ** int(math.log2(max(n / MIN_STEPS, 1)))))
    reason = "the papers'" if batch == BATCH else f"at least {MIN_STEPS} steps per epoch of {n:,} images"
    draft.plan("batch", batch, reason)
    if not facts.gpu and draft.is_open("epochs"):
        draft.plan("minutes", CPU_MINUTES, "no GPU; epochs are an upper limit")
    draft.plan("epochs", *_choose_epochs(n, draft.config.minutes is not None))
    draft.plan("freeze", *_choose_freeze(draft.config.from_, n))
    draft.plan("drop_path", 0.1, "half the papers' value, because the run is shorter")
    peak = (1e-4 if detect else 6e-5) * (2 if draft.config.from_ else 4) * math.sqrt(draft.config.batch / BATCH)
    start = "pre-trained weights" if draft.config.from_ else "random weights"
    draft.set("optim.lr", float(f"{peak:.2g}"), "plan", f"above the paper's: a shorter run from {start}")
    draft.set("optim.weight_decay", 0.05 if detect else 0.01, "method", "the paper's")


def _fill_coco(draft: Draft[Any], facts: Facts) -> None:
    """Fill in DRLoc's settings for COCO, which are Swin's."""
    times, reason = (1 if draft.config.preset == "1x" else 3), f"preset {draft.config.preset}"
    epochs, drops = (12, (8, 11)) if times == 1 else (36, (27, 33))
    draft.fill("size", -(-LONGER // 32) * 32, "method", f"{LONGER} px, in steps of 32")
    draft.fill("longest", LONGER, "method", reason)
    draft.fill("shorter", SHORTER, "method", reason)
    _fill_shared(draft, epochs, reason)
    warmup = WARMUP_COCO * draft.config.batch / max(facts.images, 1)
    fractions = tuple(drop / epochs for drop in drops)
    optim = OptimConfig(
        lr=1e-4, weight_decay=0.05, schedule="steps", drops=fractions, warmup_epochs=min(warmup, epochs / 10), clip=0.0
    )
    draft.set_group("optim", optim, reason)


def _fill_160k(draft: Draft[Any], facts: Facts) -> None:
    """Fill in DRLoc's settings for ADE20K, which are Swin's."""
    reason = "preset 160k"
    draft.fill("size", SEGMENT_SIZE, "method", reason)
    draft.fill("batch", BATCH, "method", reason)
    per_epoch = max(facts.images, 1) / draft.config.batch
    epochs = max(1, round(STEPS_160K / per_epoch))
    _fill_shared(draft, epochs, f"{STEPS_160K:,} steps")
    draft.fill("test_scales", MULTI_SCALE, "method", reason)
    warmup = min(WARMUP_160K / per_epoch, epochs / 10)
    optim = OptimConfig(lr=6e-5, weight_decay=0.01, schedule="linear", min_lr=0.0, warmup_epochs=warmup, clip=0.0)
    draft.set_group("optim", optim, reason)


def _fill_shared(draft: Draft[Any], epochs: int, reason: str) -> None:
    draft.fill("epochs", epochs, "method", reason)
    draft.fill("batch", BATCH, "method", reason)
    draft.fill("freeze", 0, "method", reason)
    draft.fill("drop_path", 0.2, "method", "Swin-T's")


def _fill_views(draft: Draft[Any], facts: Facts) -> None:
    """Fill in what follows from the size: the range of scales, and the pixels that views can use."""
    size = draft.config.size
    if isinstance(draft.config, DetectConfig):
        draft.plan("longest", size, "the longest side that fits into --size")
        longest = min(draft.config.longest, size)
        draft.plan("shorter", (longest * 3 // 5, longest), f"what fits into {longest} px")
        useful = 2 * size if draft.config.jitter == "large" else longest
    else:
        draft.plan("test_scales", (1.0,), "one scale: several take as many times as long")
        useful = math.ceil(size * max(draft.config.scale[1], *draft.config.test_scales))
    usual = DETECT_WIDTH if isinstance(draft.config, DetectConfig) else SEGMENT_WIDTH
    width, reason = (usual, "the papers'") if facts.gpu else (CPU_WIDTH, "wider heads are too slow without a GPU")
    draft.plan("width", width, reason)
    draft.fill("store_size", min(useful, facts.side or useful), "method", "the pixels that the views can use")


def _choose_size(usual: int, facts: Facts) -> tuple[int, str]:
    usual, reason = (usual, "the usual size") if facts.gpu else (CPU_SIZE, "larger is too slow without a GPU")
    side = facts.side or usual
    if side >= usual:
        return usual, reason
    return max(64, -(-side // 32) * 32), f"the images are only {side} px"


def _choose_epochs(images: int, timed: bool) -> tuple[int, str]:
    """Return fewer epochs for more images, but not so few that the number of steps stays the same."""
    epochs = min(LONGEST, round(LONGEST * math.sqrt(AT_MOST / max(images, 1))))
    if timed:
        return TIMED_FACTOR * epochs, "upper limit; the measured pace decides how many fit into the time"
    return epochs, f"{LONGEST} for up to {AT_MOST} images, fewer for more"


def _choose_freeze(start: str | None, images: int) -> tuple[int, str]:
    if start and images < FEW_TO_FREEZE:
        return 1, f"fewer than {FEW_TO_FREEZE} images: the first quarter stays as it was pre-trained"
    return (0, "enough images to train all of it" if start else "nothing: the backbone starts from random weights")
