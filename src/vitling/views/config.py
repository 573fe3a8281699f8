"""Which views an objective wants. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Filter = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class Policy:
    """How one view is made of one image."""

    scale: tuple[float, float] = (0.08, 1.0)
    """Share of the image's area that the random crop keeps, smallest and largest."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width over height of the crop, smallest and largest."""
    flip: float = 0.5
    """Chance of a mirror image; 0 where mirroring changes the class (digits, text, left and right hands)."""
    erase: float = 0.0
    """Chance that a rectangle (2 % to 33 % of the view) is replaced by noise."""
    filter: Filter = "bicubic"
    """Interpolation of the crop."""


@dataclass(frozen=True)
class Mix:
    """Mixup and CutMix. Each is the parameter of its Beta distribution; 0 switches it off."""

    mixup: float = 0.0
    cutmix: float = 0.0
    prob: float = 1.0
    """Chance that a view is mixed at all."""
    switch: float = 0.5
    """Chance of CutMix where both are on."""
    per: Literal["image", "batch"] = "image"
    """One draw for each image, or one for the whole batch as timm's default has it."""
    fold: bool = False
    """lambda := max(lambda, 1 - lambda), so that the first image always dominates (IDMM)."""

    @property
    def on(self) -> bool:
        return self.prob > 0 and (self.mixup > 0 or self.cutmix > 0)


@dataclass(frozen=True)
class Group:
    """`count` views of `size` x `size` pixels under one policy; mixed among each other, or not at all."""

    size: int
    count: int = 1
    policy: Policy = Policy()
    mix: Mix = Mix()


@dataclass(frozen=True)
class Plan:
    groups: tuple[Group, ...]

    @property
    def largest(self) -> int:
        return max(group.size for group in self.groups)

    @property
    def crops(self) -> int:
        return sum(group.count for group in self.groups)


@dataclass
class ViewsConfig:
    """What the network sees of an image."""

    scale: tuple[float, float] = Policy.scale
    """Share of the image's area that the random crop keeps, smallest and largest."""
    flip: float = Policy.flip
    """Chance of a mirror image; 0 where mirroring changes the class (digits, text, left and right hands)."""
    erase: float = 0.25
    """Chance that a rectangle of the view is replaced by noise."""
    mixup: float = 0.8
    """Mixup: parameter of the Beta distribution; 0 is off."""
    cutmix: float = 1.0
    """CutMix: parameter of the Beta distribution; 0 is off."""
    mix_prob: float = 1.0
    """Chance that an image is mixed with another."""
    mix_per: Literal["image", "batch"] = "image"
    """One draw of the mixing for each image, or one for the batch."""
    filter: Filter = "bicubic"
    """Interpolation of the crop."""
    crop_fraction: float = 0.875
    """Evaluation: the shorter side is resized to size / crop-fraction, then the centre is cut out."""

    def plan(self, size: int) -> Plan:
        policy = Policy(scale=self.scale, flip=self.flip, erase=self.erase, filter=self.filter)
        mix = Mix(mixup=self.mixup, cutmix=self.cutmix, prob=self.mix_prob, per=self.mix_per)
        return Plan((Group(size, policy=policy, mix=mix),))
