"""Settings of the objectives. Plain data, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from vitling.errors import UserError
from vitling.views.config import Mix, Plan
from vitling.views.policies import dino, idmm_pretrain

Variant = Literal["l1", "signed", "ce", "reg", "all", "exhaustive"]
Target = Literal["offset/k", "offset/(k-1)", "offset"]
Pooling = Literal["adaptive", "released"]
SmoothingForm = Literal["others", "all"]
Projection = Literal["none", "mlp"]
Classifier = Literal["full", "sampled", "sharded"]
Match = Literal["argmax", "sinkhorn", "place"]
RegionLoss = Literal["softmax", "mse"]


@dataclass
class SupervisedConfig:
    """Classification."""

    smoothing: float = 0.1
    """Label smoothing: this much of the target is spread over all classes."""
    drop_path: float = 0.1
    """Stochastic depth of the last block; earlier blocks less."""
    class_weights: Literal["none", "inverse"] = "none"
    """inverse: rare classes weigh more in the loss."""


@dataclass
class DRLocConfig:
    """Dense relative localisation: guess from two tokens how far apart they lie. With --aux drloc."""

    variant: Variant = "l1"
    """l1: distances; signed: with direction; ce, reg: as classes; all: in every block; exhaustive: from every token."""
    weight: float | None = None
    """Of the term in the loss. By default the paper's for the backbone: 0.5 for Swin, 0.1 or 0.01 for others."""
    schedule: Literal["constant", "released"] = "constant"
    """constant (paper), or up over 20 epochs, then down to nothing at the end, if the run is longer (released code)."""
    pairs: int = 64
    """Pairs of tokens drawn for each image; exhaustive has one for each token."""
    hidden: int = 512
    """Width of the MLP's two hidden layers."""
    grid: int = 7
    """A grid with a longer side than this is averaged down to it; all takes every grid as it is."""
    pooling: Pooling = "adaptive"
    """adaptive: equal shares, 2 x 2 from 14 to 7 (paper); released: 3 x 3 with stride 2 (released code)."""
    target: Target = "offset/k"
    """What is predicted, ce and reg aside: offsets over the grid's side k (paper), or as they are (released code)."""

    norm: Literal["published", "before", "after"] = "published"
    """Whether the grid is taken before or after the network's last norm: as the released code has it, or by name."""

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        for name, value, choices in (
            ("variant", self.variant, Variant),
            ("target", self.target, Target),
            ("pooling", self.pooling, Pooling),
            ("schedule", self.schedule, Literal["constant", "released"]),
            ("norm", self.norm, Literal["published", "before", "after"]),
        ):
            if value not in get_args(choices):
                raise UserError(f"DRLoc has no {name} {value!r}: {', '.join(get_args(choices))}.")
        for name, number in (("pairs", self.pairs), ("hidden", self.hidden)):
            if number < 1:
                raise UserError(f"DRLoc needs {name} of at least 1, not {number}.")
        if self.grid < 2:
            raise UserError(f"DRLoc needs a grid of at least 2 tokens a side, not {self.grid}: one has no offset.")
        if self.weight is not None and not 0 <= self.weight < math.inf:
            raise UserError(f"The weight of DRLoc must not be negative, and a number, but is {self.weight}.")


_WEIGHTS = (  # the first prefix that fits
    ("swin", 0.5),  # DRLoc, Sec. 4
    ("t2t", 0.1),  # Sec. 4
    ("cvt", 0.1),  # Sec. 4
    ("vit_base", 0.01),  # supplement Sec. 3
    ("deit_base", 0.01),  # the same network
    # Not published. A plain ViT of the size of T2T's trunk has T2T's weight.
    ("vit", 0.1),
    ("deit", 0.1),
    # ResNet-50 was trained with it too, but its weight is nowhere. It and PVTv2 know where they are by convolutions
    # and zero padding, as CvT does, and of the published weights the smaller one harms less where the task is easy.
    ("resnet", 0.1),
    ("pvt", 0.1),
)


def drloc_weight(backbone: str) -> float:
    """The paper's weight (lambda) for a backbone, or one chosen for it; 0.1, the most frequent, for a stranger."""
    return next((weight for prefix, weight in _WEIGHTS if backbone.startswith(prefix)), 0.1)


@dataclass
class IDMMConfig:
    """Instance discrimination with multi-crop and CutMix: every image is a class of its own."""

    smoothing: float = 0.1
    """Label smoothing: this much of the target is spread over other images; 0 is off."""
    smoothing_form: SmoothingForm = "others"
    """others: none of it for the image itself (paper); all: spread over all images alike (released code)."""
    multi_crop: bool = True
    """Two global and four local crops of an image; or a single one."""
    cutmix: bool = True
    """Each crop has a rectangle of another; or not."""
    projection: Projection = "none"
    """mlp: two layers between the features and the classifier, as contrastive methods have them."""
    classifier: Classifier = "full"
    """For millions of images: sampled (some classes are drawn at each step), or sharded (each process holds a part)."""
    negatives: int = 8192
    """Classes that the sampled classifier draws at each step."""

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        for name, value, choices in (
            ("smoothing form", self.smoothing_form, SmoothingForm),
            ("projection", self.projection, Projection),
            ("classifier", self.classifier, Classifier),
        ):
            if value not in get_args(choices):
                raise UserError(f"IDMM has no {name} {value!r}: {', '.join(get_args(choices))}.")
        if not 0 <= self.smoothing < 1:
            raise UserError(f"IDMM's smoothing must be at least 0 and below 1, not {self.smoothing}.")
        if self.negatives < 1:
            raise UserError(f"IDMM needs negatives of at least 1, not {self.negatives}.")


@dataclass
class SimCLRConfig:
    """SimCLR: of all views in the batch, find the other one of the same image."""

    projection: Projection = "mlp"
    """mlp: two layers between the features and the loss; none: the features themselves are compared."""
    dim: int = 256
    """Width behind the MLP."""
    temperature: float = 0.1
    """Of the softmax over similarities; the lower, the more the nearest images count."""

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        if self.projection not in get_args(Projection):
            raise UserError(f"SimCLR has no projection {self.projection!r}: {', '.join(get_args(Projection))}.")
        check_contrast("SimCLR", self.dim, self.temperature)


@dataclass
class SupConConfig:
    """SupCon: of all views in the batch, find those of images of the same class."""

    dim: int = 256
    """Width behind the MLP."""
    temperature: float = 0.1
    """Of the softmax over similarities; the lower, the more the nearest images count."""

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        check_contrast("SupCon", self.dim, self.temperature)


def check_contrast(name: str, dim: int, temperature: float) -> None:
    if dim < 1:
        raise UserError(f"{name} needs a dim of at least 1, not {dim}.")
    if not 0 < temperature < math.inf:
        raise UserError(f"{name}'s temperature must be more than 0, and a number, but is {temperature}.")


def idmm_plan(config: IDMMConfig, size: int = 112) -> Plan:
    """The crops. Without multi-crop there is one, cut as the global ones: the loss of Eq. 1 has one view an image, and
    Sec. 4.4 reads Table 8 as what several views add."""
    groups = idmm_pretrain(size).groups
    if not config.multi_crop:
        groups = (replace(groups[0], count=1),)
    if not config.cutmix:
        groups = tuple(replace(group, mix=Mix()) for group in groups)
    return Plan(groups)


@dataclass
class MoCoV2Config:
    """Tell the other view of an image from a queue of earlier ones."""

    dim: int = 256
    """Width of queries and keys."""
    temperature: float = 0.2
    """Of the softmax: smaller is sharper."""
    queue: int = 2048
    """Keys that are remembered."""
    mask_own: bool = False
    """An image's own earlier keys are no wrong answers for it; they are many where the queue outlasts an epoch."""
    momentum: float = 0.999
    """Of the copy of the network that makes the keys."""

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        _check_numbers("MoCo v2", whole={"dim": self.dim, "queue": self.queue}, shares={"momentum": self.momentum})
        _check_temperatures("MoCo v2", self.temperature)


@dataclass
class DenseCLConfig(MoCoV2Config):
    """MoCo v2, and tell the region that looks alike from a queue of other images' regions."""

    dense_weight: float = 0.5
    """Of the loss between regions; that between whole views has the rest."""

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        super().check()
        _check_numbers("DenseCL", whole={}, shares={"dense weight": self.dense_weight})


@dataclass
class MoCoV3Config:
    """Tell the other view of an image from the other images of the batch."""

    dim: int = 256
    """Width of queries and keys."""
    hidden: int = 4096
    """Width of the heads' hidden layers."""
    temperature: float = 0.2
    """Of the softmax: smaller is sharper."""
    momentum: float = 0.99
    """Of the copy of the network that makes the keys, at the start; it rises to 1."""
    frozen_patches: bool = True
    """The patch projection of a plain ViT is not trained: it stays random (more stable)."""

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        _check_numbers("MoCo v3", whole={"dim": self.dim, "hidden": self.hidden}, shares={"momentum": self.momentum})
        _check_temperatures("MoCo v3", self.temperature)


@dataclass
class BYOLConfig:
    """Predict what a slower copy of the network says of the other view."""

    dim: int = 256
    """Width of what is predicted."""
    hidden: int = 4096
    """Width of the heads' hidden layers."""
    momentum: float = 0.996
    """Of the copy of the network, at the start; it rises to 1."""
    regions: Literal["none", "mse", "softmax"] = "none"
    """The same for each region and the one that looks alike: by the distance of vectors, or by a softmax over them."""
    region_weight: float = 1.0
    """Of the loss between regions, where there is one."""

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        if self.regions not in ("none", "mse", "softmax"):
            raise UserError(f"BYOL has no regions {self.regions!r}: none, mse, softmax.")
        if not 0 < self.region_weight < math.inf:
            raise UserError(f"BYOL's region weight must be more than 0, and a number, but is {self.region_weight}.")
        _check_numbers("BYOL", whole={"dim": self.dim, "hidden": self.hidden}, shares={"momentum": self.momentum})


@dataclass
class DINOConfig:
    """Say of every view what a slower teacher says of another, global one."""

    method: ClassVar[str] = "DINO"
    global_crops: int = 2
    """Large crops of an image, which the teacher sees too."""
    local_crops: int = 8
    """Small crops of an image beside the global ones, for the student alone; 0 is none."""
    local_size: int | None = None
    """Pixels of a local crop. By default 3/7 of a global one (96 of 224, 48 of 112), in whole patches of 16 or 4."""
    prototypes: int = 4096
    """Answers that a view may have (K)."""
    hidden: int = 2048
    """Width of the head's hidden layers."""
    bottleneck: int = 256
    """Width of what is compared with the prototypes."""
    temperature: float = 0.1
    """Of the student's softmax."""
    teacher_start: float = 0.04
    """Temperature of the teacher's softmax at the start. A lower one is sharper."""
    teacher_temperature: float = 0.07
    """Temperature of the teacher's softmax after its warm-up."""
    teacher_warmup: float = 0.1
    """Share of the run in which the teacher's temperature rises."""
    momentum: float = 0.996
    """Of the teacher, at the start; it rises to 1."""
    centre: float = 0.9
    """Momentum of the teacher's centre; 1 switches centring off."""
    freeze_epochs: float = 1.0
    """Epochs in which the prototypes are held still."""

    @property
    def located(self) -> bool:
        """Whether views must come with their places."""
        return False

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        whole = {"prototypes": self.prototypes, "hidden": self.hidden, "bottleneck": self.bottleneck}
        whole["global crops"] = self.global_crops
        if self.local_size is not None:
            whole["local size"] = self.local_size
        shares = {"momentum": self.momentum, "centre": self.centre, "teacher warm-up": self.teacher_warmup}
        _check_numbers(self.method, whole, shares)
        _check_temperatures(self.method, self.temperature, self.teacher_start, self.teacher_temperature)
        for name, value in (("local crops", self.local_crops), ("freeze epochs", self.freeze_epochs)):
            if value < 0:
                raise UserError(f"{self.method}'s {name} must not be negative, but are {value}.")
        if self.global_crops + self.local_crops < 2:
            raise UserError(f"{self.method} compares the crops of an image with each other: one is not enough.")


@dataclass
class EsViTConfig(DINOConfig):
    """Say of every view, and of every region of it, what a slower teacher says of another, global view."""

    method: ClassVar[str] = "EsViT"
    teacher_temperature: float = 0.04
    """Temperature of the teacher's softmax after its warm-up. From 100,000 images on 0.07."""
    view_weight: float = 0.5
    """Of the loss between whole views; 0 leaves it out."""
    region_weight: float = 0.5
    """Of the loss between regions; 0 leaves it out, and what is left is DINO."""
    region_from: int = 0
    """The epoch, counted from 0, in which the loss between regions is switched on; until then views have its weight."""
    match: Match = "place"
    """Which of the teacher's regions a region is compared with: those that show the same place of the image (place),
    the most alike (argmax, as the paper does; from 100,000 images on), or several by optimal transport (sinkhorn)."""
    region_loss: RegionLoss = "softmax"
    """softmax: cross-entropy of what the prototypes say; mse: squared distance of the vectors before them."""
    region_stride: int = 1
    """Every so many-th region down and across takes part; 2 for a ViT, whose grid is twice as fine as Swin's."""

    @property
    def located(self) -> bool:
        return bool(self.region_weight) and self.match == "place"

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        super().check()
        for name, value, choices in (("match", self.match, Match), ("region loss", self.region_loss, RegionLoss)):
            if value not in get_args(choices):
                raise UserError(f"EsViT has no {name} {value!r}: {', '.join(get_args(choices))}.")
        for name, weight in (("view", self.view_weight), ("region", self.region_weight)):
            if not 0 <= weight < math.inf:
                raise UserError(f"EsViT's {name} weight must not be negative, and a number, but is {weight}.")
        if not self.view_weight + self.region_weight:
            raise UserError("EsViT needs a view weight or a region weight that is more than 0.")
        _check_numbers(self.method, whole={"a region stride": self.region_stride}, shares={})
        if self.region_from < 0:
            raise UserError(f"EsViT's region from must not be negative, but is {self.region_from}.")
        if self.region_from and not (self.view_weight and self.region_weight):
            raise UserError("EsViT's region from is for the view loss with the region loss later: both need a weight.")


def dino_plan(config: DINOConfig, size: int = 112) -> Plan:
    """The crops: global ones and, unless there are none, local ones."""
    plan = dino(size, config.local_size or local_size(size), config.local_crops, config.global_crops)
    if not config.located:
        return plan
    return replace(plan, groups=tuple(replace(group, return_boxes=True) for group in plan.groups))


def local_size(size: int) -> int:
    """3/7 of a global crop in whole patches, which have 16 px, or 4 px where images are tiny."""
    patch = 16 if size >= 64 else 4
    return max(patch, round(size * 3 / 7 / patch) * patch)


def _check_numbers(method: str, whole: dict[str, int], shares: dict[str, float]) -> None:
    for name, number in whole.items():
        if number < 1:
            raise UserError(f"{method} needs {name} of at least 1, not {number}.")
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise UserError(f"{method}'s {name} must lie in 0..1, not {share}.")


def _check_temperatures(method: str, *temperatures: float) -> None:
    for temperature in temperatures:
        if not 0 < temperature < math.inf:
            raise UserError(f"{method}'s temperatures must be more than 0, not {temperature}.")
