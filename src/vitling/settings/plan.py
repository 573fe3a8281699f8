"""A plan from the data: what `vitling train` chooses from the images and the machine, and why. Plain data, no torch.

Sizes, lengths and batches are the IDMM paper's for its smallest data set (2,040 images: 800 and 200 epochs, batches of
256); beyond it the rules are this project's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from vitling.backbones.names import get_native_size
from vitling.errors import UserError
from vitling.methods import METHODS, idmm
from vitling.methods.method import Recipe
from vitling.settings.config import PLANNED, MethodsConfig, TrainConfig
from vitling.training.config import OptimConfig

TINY = 64  # pixels; images up to here get small views and the small network
VIEW, FIRST_VIEW, CPU_VIEW = 224, 112, 96
TEST_VIEW = 288  # for networks that learned at VIEW: results/finetuning-choices-h200.json
PAPER_IMAGES = 2_040
MOST_FOR_IDMM = 20_000  # labelled images
SMALL = 5_000
STEPS = 7  # of an epoch, at least
SMALLEST_BATCH = 32
CPU_MINUTES = 60.0
FIRST_SHARE = 0.6  # of the time of a run with two stages
LEAST_SHARE = 1 / 8  # of a first stage's usual length; where less fits into the time, the second has all of it
TIMED = 6  # times its usual length that a run may have if the time allows
OF_TWO_STAGES = (
    *("pretrain_epochs", "pretrain_size", "pretrain_optim", "pretrain_views", "pretrain_preset"),
    *("on_collapse", "preset"),
)


@dataclass(frozen=True)
class Sight:
    """What the plan is made from."""

    images: int  # of the training split, with val
    pool: int = 0
    classes: int = 0  # 0: no labels
    own_val: bool = False
    test: bool = False
    longer: int = 512  # median of the images' longer sides, px
    gpu: bool = True


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

    def chose(self, name: str) -> bool:
        return any(choice.name == name for choice in self.choices)

    def in_words(self, before: Plan | None = None) -> list[str]:
        """Of a plan that takes the place of another, what is new."""
        choices = [choice for choice in self.choices if before is None or choice not in before.choices]
        width = max((len(f"--{choice.flag} {choice.shown}") for choice in choices), default=0)
        lines = [f"  {f'--{choice.flag} {choice.shown}':<{width}}  {choice.why}" for choice in choices]
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
    two = config.method != "supervised"
    if not two:
        _check_one_stage(config)
    if sight.classes and not sight.own_val and not config.data.folds:
        choose("val", *_val(sight))
    choose("size", *_size(config.backbone, sight))
    choose("backbone", *_backbone(config.size or 0, sight))
    if sight.classes and _sees_larger(config, sight):
        choose("test_size", TEST_VIEW, f"9/7 of {VIEW}: a network that learns from random crops sees things larger")
    if two:
        choose("preset", *_preset(config.backbone or ""))
        if config.method != "idmm":
            choose("pretrain_preset", *_first_preset(config))
        choose("pretrain_size", *_first_size(config.size or 0))
    choose("batch", *_batch(sight))
    unknown = (two and config.pretrain_epochs is None) or (sight.classes > 0 and config.epochs == PLANNED)
    if not sight.gpu and unknown:
        choose("minutes", CPU_MINUTES, "there is no GPU, and the paper's length would take days; epochs are the most")
    timed = config.minutes is not None
    if two:
        choose("pretrain_epochs", *_epochs(800, 50, sight.images + sight.pool, timed))
    if sight.classes:
        choose("epochs", *_epochs(200 if two else 300, 30, sight.images, timed))
    else:
        config = replace(config, epochs=1)  # there is no such stage
    return Plan(_with_rates(config), tuple(choices))


def least_of_first(config: TrainConfig) -> int:
    """Epochs of a planned first stage that must fit into the time."""
    return max(1, round(LEAST_SHARE * (config.pretrain_epochs or 0) / TIMED))


def first_stage_is_planned(asked: TrainConfig, plan: Plan) -> bool:
    """Nothing was said of it. Of a run that is resumed, what was said on its command line counts: its settings are
    filled in."""
    if plan.chose("method"):
        return all(getattr(asked, name) == getattr(TrainConfig(), name) for name in _of_a_first_stage())
    said = {name.partition(".")[0] for name in asked.said}
    return asked.resume and bool(said) and said.isdisjoint({"method", *_of_a_first_stage()})


def one_stage(asked: TrainConfig) -> TrainConfig:
    """The same request, for the labels alone."""
    usual = TrainConfig()
    return replace(asked, method="supervised", **{name: getattr(usual, name) for name in _of_a_first_stage()})


def _of_a_first_stage() -> list[str]:
    return [*OF_TWO_STAGES, *(f.name for f in fields(MethodsConfig))]


def _check_one_stage(config: TrainConfig) -> None:
    """A UserError for what was said of a stage that there is not."""
    usual = TrainConfig()
    said = [name for name in _of_a_first_stage() if getattr(config, name) != getattr(usual, name)]
    if said:
        raise UserError(
            f"--{said[0].replace('_', '-')} belongs to the two stages of other methods, and this run has one stage, "
            "supervised. Leave it out, or pass --method idmm."
        )


def _with_rates(config: TrainConfig) -> TrainConfig:
    """The preset's learning rates are for its own batches (IDMM's have 256 images) and networks. One stage has the rate
    of the second, but with SGD, for which that is none."""
    second = idmm.finetune_recipe(config.backbone or "", config.second_preset)
    one = config.method == "supervised"
    if one and config.optim.name == "sgd":
        return config
    config = replace(config, optim=_with_rate(config.optim, second, config))
    if one:
        return config
    first = METHODS[config.method].recipe(config.backbone or "", config.first_preset)
    return replace(config, pretrain_optim=_with_rate(config.pretrain_optim, first, config))


def _with_rate(optim: OptimConfig, stage: Recipe, config: TrainConfig) -> OptimConfig:
    lr = stage.lr_for(config.batch, optim.name)
    unsaid = optim if config.method == "supervised" else stage.optim  # which has the rate, if none is filled in
    batch = config.batch if config.method == "supervised" else stage.batch
    return optim if optim.lr is not None or lr == unsaid.peak_lr(batch) else replace(optim, lr=lr)


def _method(config: TrainConfig, sight: Sight) -> tuple[str, str]:
    if config.from_ and sight.classes:
        return "supervised", "the start is given (--from)"
    if not sight.classes:
        return "idmm", "there are no labels: the images themselves teach, and there is no second stage"
    if sight.pool:
        return "idmm", f"{sight.pool:,} images without labels teach the first stage"
    if sight.images <= MOST_FOR_IDMM:
        return "idmm", f"{sight.images:,} images: a first stage without labels helps where there are few"
    return "supervised", f"IDMM was shown on a few thousand images; these are {sight.images:,}"


def _val(sight: Sight) -> tuple[str, str]:
    if sight.test and sight.images <= SMALL:
        return "none", "few images, and a test split to judge by: all are trained on, the last epoch counts"
    return "0.1", "held out, to judge by"


def _size(backbone: str | None, sight: Sight) -> tuple[int, str]:
    usual = VIEW if sight.gpu else CPU_VIEW
    own = get_native_size(backbone)
    if own is not None and own < min(usual, sight.longer):
        return own, f"{backbone} is made for it"
    if sight.longer >= usual * 5 // 7:
        return usual, "the usual size of a view" if sight.gpu else "without a GPU, larger views take too long"
    return smaller_view(sight.longer), f"the images have {sight.longer} px"


def smaller_view(longer: int) -> int:
    """For images that have too little for the usual view."""
    return 16 if longer <= 16 else -(-longer // 32) * 32


def _sees_larger(config: TrainConfig, sight: Sight) -> bool:
    """A network that takes any size as it is; others have positions that would have to be resized, untrained."""
    takes_any = (config.backbone or "").startswith("pvt_v2")
    return takes_any and config.size == VIEW <= sight.longer and "test_size" not in config.said


def _preset(backbone: str) -> tuple[str, str]:
    if idmm.default_preset(backbone) == "released":
        return "released", "the authors' code, which trains such networks with twice the paper's learning rate"
    return "paper", "IDMM's rates, as they are written"


def _first_preset(config: TrainConfig) -> tuple[str, str]:
    preset = config.first_preset
    return preset, "the optimiser of IDMM, with which it does better" if preset == "adamw" else "its paper's settings"


def _first_size(size: int) -> tuple[int, str]:
    if size <= TINY:
        return size, "the same: such views have nothing to spare"
    half = FIRST_VIEW if size == VIEW else -(-size // 64) * 32
    return half, f"half of {size}{'' if half * 2 == size else ', in steps of 32'}: several crops an image, small ones"


def _backbone(size: int, sight: Sight) -> tuple[str, str]:
    if size <= TINY and not sight.gpu:
        return "vit_nano_patch4_32", "0.2 M parameters: without a GPU, larger networks take too long"
    if size <= TINY:
        return "vit_micro_patch4_32", f"1.2 M parameters, patches of 4 px for views of {size} px"
    return "pvt_v2_b0", "3.4 M parameters; of the paper's small networks the one that learns best from few images"


def _batch(sight: Sight) -> tuple[int, str]:
    fitting = 2 ** int(math.log2(max(sight.images / STEPS, 1)))
    batch = min(256, max(fitting, SMALLEST_BATCH))
    if batch == 256:
        return 256, "the paper's"
    if batch > fitting:
        return batch, "the smallest that is planned"
    return batch, f"at least {STEPS} steps in each pass over {sight.images:,} images"


def _epochs(base: int, least: int, images: int, timed: bool) -> tuple[int, str]:
    """More images want fewer passes, but not so few that the steps stay the same."""
    epochs = max(least, min(base, round(base * math.sqrt(PAPER_IMAGES / max(images, 1)))))
    if timed:
        return TIMED * epochs, "at most; as many as fit into the time are set when the pace is known"
    if epochs < base:
        return epochs, f"{base} for {PAPER_IMAGES:,} images, fewer for more"
    return epochs, "the paper's" if base != 300 else f"for {PAPER_IMAGES:,} images and fewer"
