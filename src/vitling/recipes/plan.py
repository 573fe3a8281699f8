"""A plan from the data: what `vitling train` chooses from the images and the machine, and why. Plain data, no torch.

The figures that rules hang on are the IDMM paper's (2,040 to 8,144 images, 800 and 200 epochs, batches of 256) and
the sizes of common cards; between and beyond them the rules are this project's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from vitling.recipes import idmm
from vitling.recipes.config import PLANNED, TrainConfig

TINY = 64  # pixels; images up to here get small views and the small network
VIEW, FIRST_VIEW, CPU_VIEW = 224, 112, 96
PAPER_IMAGES = 2_040
MOST_FOR_IDMM = 20_000  # labelled images
SMALL = 5_000
STEPS = 7  # of an epoch, at least
CPU_MINUTES = 60.0
FIRST_SHARE = 0.55  # of the time of a run with two stages


@dataclass(frozen=True)
class Sight:
    """What the plan is made from."""

    images: int  # of the training split
    pool: int = 0
    classes: int = 0  # 0: no labels
    own_val: bool = False
    test: bool = False
    longer: int = 512  # median of the images' longer sides, px
    gpu_gb: float | None = None  # None: no GPU
    cores: int = 2

    @property
    def all_images(self) -> int:
        return self.images + self.pool


class Choice(NamedTuple):
    name: str
    value: Any
    why: str

    @property
    def flag(self) -> str:
        return self.name.replace("_", "-")

    @property
    def shown(self) -> str:
        return f"{self.value:g}" if isinstance(self.value, float) else str(self.value)


@dataclass(frozen=True)
class Plan:
    config: TrainConfig  # with everything filled in
    choices: tuple[Choice, ...]

    def in_words(self) -> list[str]:
        width = max((len(f"--{choice.flag} {choice.shown}") for choice in self.choices), default=0)
        lines = [f"  {f'--{choice.flag} {choice.shown}':<{width}}  {choice.why}" for choice in self.choices]
        return ["The plan; each of these can be set:", *lines] if lines else []


def make_plan(config: TrainConfig, sight: Sight) -> Plan:
    """What was set stays as it is, and other choices follow from it."""
    choices: list[Choice] = []

    def choose(name: str, value: Any, why: str) -> None:
        nonlocal config
        if getattr(config, name) in (None, PLANNED, "auto"):
            config = replace(config, **{name: value})
            choices.append(Choice(name, value, why))

    choose("method", *_method(config, sight))
    if sight.classes and config.val is None and not sight.own_val and not config.data.folds:
        value, why = _val(sight)
        config = replace(config, val=value)
        choices.append(Choice("val", value, why))
    choose("size", *_size(sight))
    choose("backbone", *_backbone(config.size or 0, sight))
    if config.method == "idmm":
        choose("pretrain_size", *_first_size(config.size or 0))
    choose("batch", *_batch(sight))
    open_ended = (sight.classes and config.epochs == PLANNED) or (
        config.method == "idmm" and not config.pretrain_epochs
    )
    if sight.gpu_gb is None and open_ended:
        choose("minutes", CPU_MINUTES, "there is no GPU, and the paper's length would take days")
    timed = config.minutes is not None
    if config.method == "idmm":
        choose("pretrain_epochs", *_epochs(800, 50, sight.all_images, timed))
    if not sight.classes:
        config = replace(config, epochs=1)  # there is no such stage
    else:
        base = 200 if config.method == "idmm" else 300
        choose("epochs", *_epochs(base, 30, sight.images, timed))
    return Plan(_with_rates(config), tuple(choices))


def _with_rates(config: TrainConfig) -> TrainConfig:
    """The preset's learning rates are for batches of 256; others have theirs in proportion. (For one stage the
    optimiser's own default has the same rule.)"""
    if config.method != "idmm" or config.batch == 256:
        return config
    stages = idmm.pretrain(config.backbone or "", config.preset), idmm.finetune(config.backbone or "", config.preset)
    first, second = (stage.optim.peak_lr(256) * config.batch / 256 for stage in stages)
    return replace(
        config,
        pretrain_optim=replace(config.pretrain_optim, lr=config.pretrain_optim.lr or first),
        optim=replace(config.optim, lr=config.optim.lr or second),
    )


def _method(config: TrainConfig, sight: Sight) -> tuple[str, str]:
    if config.from_ and sight.classes:
        return "supervised", "the start is given (--from)"
    if not sight.classes:
        return "idmm", "there are no labels: the images themselves teach, and there is no second stage"
    if sight.pool:
        return "idmm", f"{sight.pool:,} images without labels teach the first stage"
    if sight.images <= MOST_FOR_IDMM:
        return "idmm", f"with {sight.images:,} images a first stage without labels gains most"
    return "supervised", f"IDMM was shown on a few thousand images; these are {sight.images:,}"


def _val(sight: Sight) -> tuple[str, str]:
    if sight.test and sight.images <= SMALL:
        return "none", "few images, and a test split to judge by: all are trained on, the last epoch counts"
    return "0.1", "held out, to judge by"


def _size(sight: Sight) -> tuple[int, str]:
    usual = VIEW if sight.gpu_gb is not None else CPU_VIEW
    if sight.longer >= usual * 5 // 7:
        return usual, "the usual size of a view" if usual == VIEW else "without a GPU, larger views take too long"
    return smaller_view(sight.longer), f"the images have {sight.longer} px"


def smaller_view(longer: int) -> int:
    """For images that have too little for the usual view."""
    return 16 if longer <= 16 else -(-longer // 32) * 32


def _first_size(size: int) -> tuple[int, str]:
    if size <= TINY:
        return size, "the same: such views have nothing to spare"
    return max(32, size // 2 // 32 * 32 if size != VIEW else FIRST_VIEW), "half: crops for the first stage are small"


def _backbone(size: int, sight: Sight) -> tuple[str, str]:
    if size <= TINY and sight.gpu_gb is None:
        return "vit_nano_patch4_32", "0.2 M parameters: without a GPU, larger networks take too long"
    if size <= TINY:
        return "vit_micro_patch4_32", f"1.2 M parameters, patches of 4 px for views of {size} px"
    return "pvt_v2_b0", "3.4 M parameters; of the small networks the one that learns best from few images"


def _batch(sight: Sight) -> tuple[int, str]:
    """The paper's 256, unless an epoch would have fewer than some steps."""
    fitting = 2 ** int(math.log2(max(sight.images / STEPS, 1)))
    batch = max(min(256, fitting), min(32, max(sight.images, 1)))
    if batch == 256:
        return 256, "the paper's"
    return batch, f"at least {STEPS} steps in each pass over {sight.images:,} images"


def _epochs(base: int, least: int, images: int, timed: bool) -> tuple[int, str]:
    """More images want fewer passes, but not so few that the steps stay the same."""
    epochs = max(least, min(base, round(base * math.sqrt(PAPER_IMAGES / max(images, 1)))))
    if timed:
        return 4 * epochs, "at most; as many as fit into the time are set when the pace is known"
    return epochs, "the paper's" if epochs == base else f"fewer than the paper's {base}: there are more images"
