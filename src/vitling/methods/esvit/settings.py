"""EsViT (Li et al., ICLR 2022): settings, the paper's recipe for ImageNet, and its adaptation to few images. No torch.

The paper gives its settings in C.3 and Table 13. What it leaves open follows the released code, which does not
contradict it: weight decay from 0.04 to 0.4, gradients clipped at 3 per tensor, temperatures, crops, stochastic depth.
Two differences: the released code also decays relative-position tables, which are exempt here as everywhere in vitling,
and it trains the lengths of the prototypes, which are fixed at 1 here.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from vitling.errors import UserError
from vitling.methods.dino.settings import SHAPES, DINOConfig, dino_plan
from vitling.methods.method import Method, MethodPreset, Recipe, Remark, check_preset
from vitling.ranges import AT_LEAST_1, MORE_CROPS, NOT_NEGATIVE, POSITIVE
from vitling.training.config import OptimConfig
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone

Match = Literal["argmax", "sinkhorn", "place"]
RegionLoss = Literal["softmax", "mse"]

IMAGENET = 1_281_167  # training images of ImageNet-1K
MANY = 100_000  # images from which temperature and matching are the paper's; chosen here
SLOW_HIDDEN = 256  # head width above which a CPU is slow


@dataclass(frozen=True)
class EsViTConfig(DINOConfig):
    """EsViT: predict a momentum teacher's output for a different global view, for whole views and for their regions."""

    method: ClassVar[str] = "EsViT"
    local_crops: Annotated[int, MORE_CROPS] = 8
    """Local crops per image, which only the student sees; 0 turns them off."""
    teacher_temperature: Annotated[float, POSITIVE] = 0.04
    """Temperature of the teacher's softmax after its warm-up; 0.07 from 100,000 images on."""
    view_weight: Annotated[float, NOT_NEGATIVE] = 0.5
    """Weight of the loss between whole views; 0 turns it off."""
    region_weight: Annotated[float, NOT_NEGATIVE] = 0.5
    """Weight of the loss between regions; 0 turns it off, which leaves DINO."""
    region_from: Annotated[int, NOT_NEGATIVE] = 0
    """Epoch, counted from 0, in which the region loss starts; until then the view loss has its weight."""
    match: Match = "place"
    """The teacher's regions that a region is compared with: those at the same place of the image (place), the most
    similar one (argmax, as in the paper; from 100,000 images on), or several by optimal transport (sinkhorn)."""
    region_loss: RegionLoss = "softmax"
    """softmax: cross-entropy over the prototypes; mse: squared distance of the vectors before them."""
    region_stride: Annotated[int, AT_LEAST_1] = 1
    """Use every n-th region down and across; 2 for a ViT, whose grid is twice as fine as Swin's."""

    @property
    def needs_boxes(self) -> bool:
        return bool(self.region_weight) and self.match == "place"

    def check(self) -> None:
        """Raise UserError for too few crops, and for losses that are turned off but needed."""
        super().check()
        if not (self.view_weight or self.region_weight):
            raise UserError("--esvit.view-weight and --esvit.region-weight are both 0; set one of them above 0.")
        if self.region_from and not (self.view_weight and self.region_weight):
            raise UserError(
                f"--esvit.region-from {self.region_from} needs both losses; set --esvit.view-weight and "
                "--esvit.region-weight above 0."
            )


def recipe(
    backbone: str = "swin_tiny_patch4_window7_224", preset: MethodPreset = "paper", epochs: int = 300, size: int = 224
) -> Recipe[EsViTConfig]:
    """Return the settings of C.3: AdamW, batches of 512, a learning rate of 5e-4 per 256 images, 10 of 300 epochs of
    warm-up, a cosine; two global and eight local crops. `vitling pretrain --method esvit` passes them through `adapt`.

    The paper's top-1 on ImageNet-1K, linear and k-NN, after 300 epochs of Swin-T: 78.1 and 75.7, with the view loss
    alone 77.0 and 74.2.
    """
    check_preset("EsViT", preset)
    config = EsViTConfig(prototypes=65_536, teacher_temperature=0.07, teacher_warmup_per="epoch", match="argmax")
    return Recipe(backbone, epochs, 512, size, make_optim(512, epochs), config, _drop_path(backbone))


def _drop_path(backbone: str) -> float:
    """Return 0.2 for the larger Swins, 0.1 for other transformers, 0 for ResNets (torchvision's, in the release)."""
    if backbone.startswith("resnet"):
        return 0.0
    return 0.2 if backbone.startswith(("swin_small", "swin_base")) else 0.1


def make_optim(batch: int, epochs: int, warmup: float | None = None) -> OptimConfig:
    return OptimConfig(
        lr=None if batch <= 512 else 5e-4 * batch / 256,  # the default follows the paper's rule, up to 1e-3
        min_lr=1e-6,
        warmup_epochs=epochs / 30 if warmup is None else warmup,
        weight_decay=0.04,
        final_weight_decay=0.4,
        clip=3.0,
        clip_per="tensor",
    )


def adapt(recipe: Recipe[EsViTConfig], images: int, batch: int | None = None) -> Recipe[EsViTConfig]:
    """Fit the paper's recipe to a number of images, and to a batch size if one is given.

    At ImageNet's size it stays the paper's. At 2,000 images it has

    - batches of 64, for at least about thirty steps per epoch; with 512 the centre would move four times per epoch;
    - 4,096 prototypes: about two per image, as a power of two. Most of 65,536 would never be used, and the loss would
      stay near ln K for long;
    - a teacher temperature of 0.04 throughout. A warmer teacher comes close to uniform answers (DINO, App. D), which a
      small batch does not leave; the paper's 0.07 starts at 100,000 images;
    - regions matched by place. To a network that has seen so few images the most similar regions are mostly unrelated,
      and the loss makes them more alike (docs/esvit.md). Measured at 2,040 images; where the paper's matching becomes
      the better one is unknown and assumed to be at 100,000;
    - 800 epochs as in IDMM, falling to the paper's 300 as N^-0.15: fewer images need more epochs, but not as many as
      would keep the number of steps (192,000);
    - a teacher whose memory, 1 / (1 - m) steps, is at most a twenty-fifth of the run: 250 steps at 0.996 are too many
      for a run of 1,000. So 1 - m is 25 / steps, from 0.004 to 0.03.

    The learning rate follows the batch (5e-4 per 256 images), the warm-up the epochs (`default_epochs`).
    """
    if batch is None:
        batch = min(recipe.batch, max(64, _power_of_two(images / 31)))
    steps = recipe.epochs * math.ceil(images / batch)
    config = replace(
        recipe.objective,
        prototypes=min(65_536, max(1024, _power_of_two(images * 2))),
        teacher_temperature=0.07 if images >= MANY else 0.04,
        match="argmax" if images >= MANY else "place",
        momentum=1 - min(0.03, max(0.004, 25 / steps)),
    )
    return replace(recipe, batch=batch, objective=config)


def _power_of_two(about: float) -> int:
    return 2 ** round(math.log2(about))


def default_epochs(images: int) -> int:
    """Return 800 at 2,000 images and the paper's 300 at ImageNet's; see `adapt`."""
    return round(800 * (2_000 / images) ** (math.log(800 / 300) / math.log(IMAGENET / 2_000)))


def complete_weights(config: EsViTConfig, explicit: Collection[str]) -> EsViTConfig:
    """Give the remaining loss the weight of both if the other one is turned off, unless its own weight is explicit."""
    if config.view_weight and config.region_weight:
        return config
    default = {name: getattr(EsViTConfig, name) for name in ("view_weight", "region_weight")}
    free = [name for name, weight in default.items() if name not in explicit and getattr(config, name) == weight]
    return replace(config, **dict.fromkeys(free, sum(default.values())))


def fit_views(config: EsViTConfig, plan: Plan, explicit: Collection[str]) -> tuple[EsViTConfig, list[str]]:
    """Match regions by similarity if the views are rotated: then their regions have no known place."""
    if not plan.loses_boxes:
        return config, []
    if "match" in explicit:
        raise UserError(
            "--esvit.match place: rotated views have no places. Leave out --views.rotate, or use --esvit.match argmax."
        )
    note = (
        "Rotated views have no places, so EsViT matches regions by similarity. With few images the view loss alone may "
        "be better: --esvit.region-weight 0 (docs/esvit.md)."
    )
    return replace(config, match="argmax"), [note]


def check_run(config: EsViTConfig, backbone: Backbone, epochs: int) -> None:
    """Raise UserError if the region loss would never start, or if the stride leaves a single region."""
    if config.region_from >= epochs:
        raise UserError(
            f"--esvit.region-from {config.region_from}: the run has {epochs} epochs, so the region loss would never "
            "start."
        )
    side = min(backbone.grid_size())
    if config.region_weight and config.region_stride > side:
        raise UserError(
            f"--esvit.region-stride {config.region_stride}: a view has {side} regions per side, so only one would be "
            "left."
        )


def remark_on_cpu(config: EsViTConfig, backbone: Backbone, device: str) -> list[Remark]:
    """Name settings that make a trial on a CPU bearable."""
    if device != "cpu" or config.hidden <= SLOW_HIDDEN:
        return []
    text = f"EsViT is slow on a CPU; to try it out, use --esvit.hidden {SLOW_HIDDEN} --esvit.local-crops 2."
    return [Remark(text, is_warning=False)]


METHOD = Method(
    "esvit",
    "predicts a momentum teacher's output for a different view, for whole views and regions",
    recipe,
    dino_plan,
    EsViTConfig,
    default_epochs=default_epochs,
    adapt=adapt,
    adapted=("prototypes", "teacher_temperature", "match", "momentum"),
    adapted_to_epochs=("momentum",),
    shapes=SHAPES,
    continued=("match",),
    complete=complete_weights,
    fit_views=fit_views,
    check_run=check_run,
    remarks=remark_on_cpu,
)
