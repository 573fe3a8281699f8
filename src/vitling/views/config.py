"""Which views an objective wants. Plain data, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from vitling.errors import UserError

Filter = Literal["bilinear", "bicubic"]
ENLARGED = 0.283  # share of the crops that may have fewer pixels than the view: a scale of 0.08 to 1 wants 12/7 of it
MOST_BYTES = 8e9  # of decoded images for the sake of small crops


@dataclass(frozen=True)
class Flip:
    """Mirror image."""

    prob: float = 0.5


@dataclass(frozen=True)
class Jitter:
    """Brightness, contrast, saturation and hue in a random order: torchvision's ColorJitter, drawn per image."""

    brightness: float
    contrast: float
    saturation: float
    hue: float
    prob: float = 1.0


@dataclass(frozen=True)
class Grey:
    prob: float


@dataclass(frozen=True)
class Blur:
    """Gaussian; the radius is its deviation in pixels."""

    prob: float
    radius: tuple[float, float] = (0.1, 2.0)


@dataclass(frozen=True)
class Solarise:
    prob: float
    threshold: float = 128.0


@dataclass(frozen=True)
class Rotate:
    """By an angle up to so many degrees, either way; what comes from outside continues the border."""

    degrees: float


@dataclass(frozen=True)
class RandAugment:
    """Two operations of fifteen. timm: rand-m9-mstd0.5-inc1; uda: the form of IDMM's fine-tuning."""

    style: Literal["timm", "uda"]
    filter: Filter = "bicubic"


Step = Flip | Rotate | Jitter | Grey | Blur | Solarise | RandAugment
OF_COLOUR = (Jitter, Grey, Solarise, RandAugment)  # they know red, green and blue, or grey, and nothing else


@dataclass(frozen=True)
class Policy:
    """How one view is made of one image: a random resized crop, the steps in their order, normalisation, erasing."""

    scale: tuple[float, float] = (0.08, 1.0)
    """Share of the image's area that the crop keeps, smallest and largest."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width over height of the crop, smallest and largest."""
    filter: Filter = "bicubic"
    """Interpolation of the crop."""
    centre: float = 0.0
    """Instead of a random crop the middle square, with this share of the shorter side as its side."""
    steps: tuple[Step, ...] = (Flip(),)
    erase: float = 0.0
    """Chance that a rectangle (2 % to 33 % of the view) is replaced by noise."""

    @property
    def stays_put(self) -> bool:
        """Whether a view shows what its crop does, or the mirror image of that: nothing is moved within it."""
        return not any(isinstance(step, Flip | Rotate | RandAugment) for step in self.flip_first[1])

    @property
    def flip_first(self) -> tuple[Flip | None, tuple[Step, ...]]:
        """The flip that comes first, if one does, and the other steps."""
        first = self.steps[0] if self.steps else None
        return (first, self.steps[1:]) if isinstance(first, Flip) else (None, self.steps)


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
    parts: int = 1
    """Of a batch, each mixed by itself: what each of so many cards has where every card draws for its own images."""
    fold: bool = False
    """lambda := max(lambda, 1 - lambda), so that the first image always dominates (IDMM)."""
    turns: Literal["random", "epochs"] = "random"
    """Where both are on: `switch` decides, or even epochs have mixup and odd ones CutMix (IDMM's fine-tuning)."""

    @property
    def on(self) -> bool:
        return self.prob > 0 and (self.mixup > 0 or self.cutmix > 0)

    def in_epoch(self, epoch: int) -> Mix:
        """What is left of it in this epoch."""
        if self.turns == "random" or not (self.mixup and self.cutmix):
            return self
        return replace(self, mixup=0.0) if epoch % 2 else replace(self, cutmix=0.0)


@dataclass(frozen=True)
class Group:
    """`count` views of `size` x `size` pixels under one policy; mixed among each other, or not at all."""

    size: int
    count: int = 1
    policy: Policy = Policy()
    mix: Mix = Mix()
    return_boxes: bool = False  # fill `Views.boxes`

    @property
    def store_side(self) -> int:
        """Of a decoded image, in steps of 32 px, of which these are cut with few of them enlarged."""
        low, high = self.policy.scale
        side = self.size / (self.policy.centre or math.sqrt(low + ENLARGED * (high - low)))
        return math.ceil(int(side) / 32) * 32


@dataclass(frozen=True)
class Plan:
    groups: tuple[Group, ...]

    @property
    def largest(self) -> int:
        return max(group.size for group in self.groups)

    def store_side(self, images: int) -> int:
        """Of the decoded images: what these views can use, at least 12/7 of the largest. Local crops can use more, for
        which many images would not have the memory."""
        usual = Group(self.largest).store_side
        useful = max(usual, *(group.store_side for group in self.groups))
        return useful if 3 * images * useful**2 <= MOST_BYTES else usual

    @property
    def has_colour(self) -> bool:
        return any(isinstance(step, OF_COLOUR) for group in self.groups for step in group.policy.steps)

    def check_channels(self, channels: int) -> None:
        if self.has_colour and channels not in (1, 3):
            raise UserError(
                f"--data.channels {channels}: these views change colours, which images of 1 or 3 channels have. "
                "Leave out RandAugment or take another policy; where you pre-train, pass --views.no-colour."
            )

    @property
    def loses_boxes(self) -> bool:
        """Views are to come with their places and have none: they are turned."""
        return any(group.return_boxes and not group.policy.stays_put for group in self.groups)

    @property
    def crops(self) -> int:
        return sum(group.count for group in self.groups)


@dataclass
class ViewsConfig:
    """What the network sees of an image."""

    policy: str = ""
    """A paper's views by name (`vitling list policies`), one view an image, instead of the settings that follow."""
    scale: tuple[float, float] = Policy.scale
    """Share of the image's area that the random crop keeps, smallest and largest."""
    flip: float = 0.5
    """Chance of a mirror image; 0 where mirroring changes the class (digits, text, left and right hands)."""
    rotate: float = 0.0
    """Largest random rotation in degrees, either way: 180 where images have no up and down."""
    augment: Literal["none", "timm", "uda"] = "none"
    """RandAugment after the crop: timm's rand-m9-mstd0.5-inc1, or the form of IDMM's fine-tuning."""
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
    mix_parts: int = 1
    """Parts of a batch that are mixed each by itself, as on so many cards that draw each for itself."""
    filter: Filter = "bicubic"
    """Interpolation of the crop."""
    crop_fraction: float = 0.875
    """Evaluation: the shorter side is resized to size / crop-fraction, then the centre is cut out."""

    def plan(self, size: int) -> Plan:
        if self.policy:
            return self._named(size)
        steps: tuple[Step, ...] = (Flip(self.flip),)
        if self.rotate:
            steps = (*steps, Rotate(self.rotate))
        if self.augment != "none":
            steps = (*steps, RandAugment(self.augment, self.filter))
        policy = Policy(scale=self.scale, filter=self.filter, steps=steps, erase=self.erase)
        mix = Mix(mixup=self.mixup, cutmix=self.cutmix, prob=self.mix_prob, per=self.mix_per, parts=self.mix_parts)
        return Plan((Group(size, policy=policy, mix=mix),))

    def _named(self, size: int) -> Plan:
        from vitling.views.policies import make_plan

        plan = make_plan(self.policy, size)
        if plan.crops != 1:
            raise UserError(f"--views.policy {self.policy} has {plan.crops} views of an image; training takes one.")
        if not replace(self, policy="").is_default_augmentation:
            raise UserError(f"--views.policy {self.policy} says it all: leave out the other --views settings.")
        return in_parts(plan, self.mix_parts)

    @property
    def is_default_augmentation(self) -> bool:
        """Nothing was said but what goes with any policy: of evaluation, and of cards."""
        usual = ViewsConfig()
        return replace(self, crop_fraction=usual.crop_fraction, mix_parts=usual.mix_parts) == usual


@dataclass
class ViewChanges:
    """What is changed of the views that a method of pre-training has by itself."""

    scale: tuple[float, float] | None = None
    """Share of the image that a crop keeps (a global one, where there are local ones). By default the method's."""
    local_scale: tuple[float, float] | None = None
    """The same of local crops, which never show the whole image. By default the method's."""
    flip: float | None = None
    """Chance of a mirror image; 0 for digits, text, left and right hands. By default the method's."""
    rotate: float = 0.0
    """Largest random rotation in degrees, either way: 180 where images have no up and down."""
    colour: bool = True
    """Jitter, grey and solarise; or none of them, where colour must not change or is not red, green and blue."""
    blur: float | None = None
    """Chance of blur, by up to two pixels of the view; 0 for images of few pixels. By default the method's."""
    mix_parts: int = 1
    """Parts of a batch that are mixed each by itself, as on so many cards that draw each for itself."""

    def check(self) -> None:
        """A UserError for what cannot be meant."""
        for flag, scale in (("scale", self.scale), ("local-scale", self.local_scale)):
            if scale is not None:
                check_scale(flag, scale)

    def apply(self, plan: Plan) -> Plan:
        changed = Plan(tuple(replace(group, policy=self._changed(group.policy)) for group in plan.groups))
        return in_parts(changed, self.mix_parts)

    def list_unused(self, plan: Plan) -> list[str]:
        """What was asked for and these views have nothing of, in words."""
        steps = [step for group in plan.groups for step in group.policy.steps]
        asked = (
            ("local-scale: there are no local crops", self.local_scale, any(_is_local(g.policy) for g in plan.groups)),
            ("flip: nothing is mirrored", self.flip, any(isinstance(step, Flip) for step in steps)),
            ("blur: nothing is blurred", self.blur, any(isinstance(step, Blur) for step in steps)),
            ("mix-parts: nothing is mixed", self.mix_parts > 1, any(group.mix.on for group in plan.groups)),
        )
        return [words for words, wanted, there in asked if wanted and not there]

    def _changed(self, policy: Policy) -> Policy:
        scale = self.local_scale if _is_local(policy) else self.scale
        steps = [changed for step in policy.steps if (changed := self._step(step))]
        if self.rotate:
            steps.insert(0, Rotate(self.rotate))
        return replace(policy, scale=scale or policy.scale, steps=tuple(steps))

    def _step(self, step: Step) -> Step | None:
        """What becomes of it; None where it is left out."""
        if isinstance(step, OF_COLOUR) and not self.colour:
            return None
        if isinstance(step, Flip | Blur):
            prob = self.flip if isinstance(step, Flip) else self.blur
            return step if prob is None else replace(step, prob=prob) if prob else None
        return step


def _is_local(policy: Policy) -> bool:
    """Its crops never show the whole image."""
    return policy.scale[1] < 1


def in_parts(plan: Plan, parts: int) -> Plan:
    """The same, with parts of a batch that are mixed each by itself."""
    if parts == 1:
        return plan
    return Plan(tuple(replace(group, mix=replace(group.mix, parts=parts)) for group in plan.groups))


def check_scale(flag: str, scale: tuple[float, float]) -> None:
    if not 0 < scale[0] <= scale[1] <= 1:
        raise UserError(f"--views.{flag} {scale[0]} {scale[1]}: two shares of 0..1, the smaller one first.")
