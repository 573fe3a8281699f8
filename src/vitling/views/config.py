"""Settings of views: `--views.*` of the training commands. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from vitling.errors import UserError
from vitling.ranges import AT_LEAST_1, DEGREES, FRACTION, FRACTION_ABOVE_0, MIX_ALPHA, SCALE
from vitling.views.plan import COLOUR_STEPS, Blur, Filter, Flip, Group, Mix, Plan, Policy, RandAugment, Rotate, Step
from vitling.views.policies import make_plan


@dataclass(frozen=True)
class ViewsConfig:
    """Random views for training with labels, and the centre crop for evaluation."""

    policy: str = ""
    """A paper's views by name (`vitling list policies`), one view per image; replaces the settings below."""
    scale: Annotated[tuple[float, float], SCALE] = Policy.scale
    """Fraction of the image's area that the random crop keeps, smallest and largest."""
    flip: Annotated[float, FRACTION] = 0.5
    """Probability of a horizontal flip; use 0 where it changes the class (digits, text, left and right hands)."""
    rotate: Annotated[float, DEGREES] = 0.0
    """Largest random rotation in degrees, either way; use 180 for images with no canonical orientation."""
    augment: Literal["none", "timm", "uda"] = "none"
    """RandAugment after the crop: timm's rand-m9-mstd0.5-inc1, or the form of IDMM's fine-tuning (uda)."""
    erase: Annotated[float, FRACTION] = 0.25
    """Probability that a rectangle of the view is replaced by noise."""
    mixup: Annotated[float, MIX_ALPHA] = 0.8
    """Mixup: alpha of the Beta distribution; 0 is off."""
    cutmix: Annotated[float, MIX_ALPHA] = 1.0
    """CutMix: alpha of the Beta distribution; 0 is off."""
    mix_prob: Annotated[float, FRACTION] = 1.0
    """Probability that an image is mixed with another."""
    mix_per: Literal["image", "batch"] = "image"
    """Draw the mixing once per image or once per batch."""
    mix_parts: Annotated[int, AT_LEAST_1] = 1
    """Parts of a batch that are mixed separately, as on that many GPUs that each mix their own images."""
    filter: Filter = "bicubic"
    """Interpolation of the crop."""
    crop_fraction: Annotated[float, FRACTION_ABOVE_0] = 0.875
    """Evaluation: resize the shorter side to size / crop-fraction, then crop the centre."""

    def plan(self, size: int) -> Plan:
        """Build the plan for views of `size` px."""
        if self.policy:
            return self._plan_of_policy(size)
        steps: tuple[Step, ...] = (Flip(self.flip),)
        if self.rotate:
            steps = (*steps, Rotate(self.rotate))
        if self.augment != "none":
            steps = (*steps, RandAugment(self.augment, self.filter))
        policy = Policy(scale=self.scale, filter=self.filter, steps=steps, erase=self.erase)
        mix = Mix(mixup=self.mixup, cutmix=self.cutmix, prob=self.mix_prob, per=self.mix_per, parts=self.mix_parts)
        return Plan((Group(size, policy=policy, mix=mix),))

    def _plan_of_policy(self, size: int) -> Plan:
        plan = make_plan(self.policy, size)
        if plan.crops != 1:
            raise UserError(f"--views.policy {self.policy} makes {plan.crops} views of an image; training takes one.")
        if not replace(self, policy="").is_default_augmentation:
            raise UserError(f"--views.policy {self.policy} sets all views: leave out the other --views settings.")
        return _set_mix_parts(plan, self.mix_parts)

    @property
    def is_default_augmentation(self) -> bool:
        """Return whether all settings are at their default, apart from those that go with any policy."""
        default = ViewsConfig()
        return replace(self, crop_fraction=default.crop_fraction, mix_parts=default.mix_parts) == default


@dataclass(frozen=True)
class ViewChanges:
    """Changes to the views of a pre-training method."""

    scale: Annotated[tuple[float, float] | None, SCALE] = None
    """Fraction of the image's area that a crop keeps (a global crop, if there are local ones). By default the
    method's."""
    local_scale: Annotated[tuple[float, float] | None, SCALE] = None
    """The same for local crops, which never show the whole image. By default the method's."""
    flip: Annotated[float | None, FRACTION] = None
    """Probability of a horizontal flip; use 0 for digits, text, left and right hands. By default the method's."""
    rotate: Annotated[float, DEGREES] = 0.0
    """Largest random rotation in degrees, either way; use 180 for images with no canonical orientation."""
    colour: bool = True
    """Colour jitter, grey and solarise; use no-colour if colour must not change or the channels are not RGB."""
    blur: Annotated[float | None, FRACTION] = None
    """Probability of blur by up to two pixels; use 0 for very small images. By default the method's."""
    mix_parts: Annotated[int, AT_LEAST_1] = 1
    """Parts of a batch that are mixed separately, as on that many GPUs that each mix their own images."""

    def apply(self, plan: Plan) -> Plan:
        """Change the policies of all groups."""
        changed = Plan(tuple(replace(group, policy=self._change(group.policy)) for group in plan.groups))
        return _set_mix_parts(changed, self.mix_parts)

    def list_unused(self, plan: Plan) -> list[str]:
        """List the settings that have no effect on this plan, each with the reason."""
        steps = [step for group in plan.groups for step in group.policy.steps]
        settings = (
            ("local-scale: there are no local crops", self.local_scale, any(_is_local(g.policy) for g in plan.groups)),
            ("flip: nothing is flipped", self.flip, any(isinstance(step, Flip) for step in steps)),
            ("blur: nothing is blurred", self.blur, any(isinstance(step, Blur) for step in steps)),
            ("mix-parts: nothing is mixed", self.mix_parts > 1, any(group.mix.on for group in plan.groups)),
        )
        return [reason for reason, value, applies in settings if value and not applies]

    def _change(self, policy: Policy) -> Policy:
        scale = self.local_scale if _is_local(policy) else self.scale
        steps = [changed for step in policy.steps if (changed := self._change_step(step))]
        if self.rotate:
            steps.insert(0, Rotate(self.rotate))
        return replace(policy, scale=scale or policy.scale, steps=tuple(steps))

    def _change_step(self, step: Step) -> Step | None:
        """Return the changed step, or None to leave it out."""
        if isinstance(step, COLOUR_STEPS) and not self.colour:
            return None
        if isinstance(step, Flip | Blur):
            prob = self.flip if isinstance(step, Flip) else self.blur
            return step if prob is None else replace(step, prob=prob) if prob else None
        return step


def _is_local(policy: Policy) -> bool:
    """Return whether the crops never show the whole image."""
    return policy.scale[1] < 1


def _set_mix_parts(plan: Plan, parts: int) -> Plan:
    if parts == 1:
        return plan
    return Plan(tuple(replace(group, mix=replace(group.mix, parts=parts)) for group in plan.groups))
