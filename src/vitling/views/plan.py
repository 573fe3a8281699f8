"""The views an objective asks for: steps, policies, groups and plans, as plain data. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from vitling.errors import UserError

Filter = Literal["bilinear", "bicubic"]
MAX_ENLARGED = 0.283  # fraction of crops with fewer pixels than the view; gives 12/7 of the view for scales 0.08 to 1
MAX_STORE_BYTES = 8e9  # of decoded images, above which the store does not grow for small crops


@dataclass(frozen=True)
class Flip:
    """Horizontal flip."""

    prob: float = 0.5


@dataclass(frozen=True)
class Jitter:
    """torchvision's ColorJitter, drawn per image: brightness, contrast, saturation and hue in random order."""

    brightness: float
    contrast: float
    saturation: float
    hue: float
    prob: float = 1.0


@dataclass(frozen=True)
class Grey:
    """Conversion to greyscale."""

    prob: float


@dataclass(frozen=True)
class Blur:
    """Gaussian blur; `radius` is the range of its standard deviation in pixels."""

    prob: float
    radius: tuple[float, float] = (0.1, 2.0)


@dataclass(frozen=True)
class Solarise:
    """Inversion of all values from `threshold` up."""

    prob: float
    threshold: float = 128.0


@dataclass(frozen=True)
class Rotate:
    """Rotation by up to `degrees` either way; the border is replicated outwards."""

    degrees: float


@dataclass(frozen=True)
class RandAugment:
    """Two of fifteen operations, as in timm's rand-m9-mstd0.5-inc1 or as in IDMM's fine-tuning ("uda")."""

    style: Literal["timm", "uda"]
    filter: Filter = "bicubic"


@dataclass(frozen=True)
class Rescale:
    """Resize of the whole image onto a square canvas at a random size, for detection and segmentation.

    An image that is larger than the canvas is cropped; a smaller one lies in the corner at the top left, and the rest
    of the canvas is 0 after normalisation.
    """

    shorter: tuple[float, float]
    """Range of the image's shorter side in pixels."""
    longest: float = math.inf
    """Most pixels of the longer side; a longer image is made smaller."""
    factor: tuple[float, float] = (1.0, 1.0)
    """Range of a random factor that multiplies the sides that result."""
    random_crop: bool = False
    """Crop a larger image anywhere, not at the top left."""


Step = Flip | Rotate | Jitter | Grey | Blur | Solarise | RandAugment
COLOUR_STEPS = (Jitter, Grey, Solarise, RandAugment)  # defined for RGB and grey images only


@dataclass(frozen=True)
class Policy:
    """Recipe for a view: a random resized crop, the steps in order, normalisation, random erasing."""

    scale: tuple[float, float] = (0.08, 1.0)
    """Fraction of the image's area that the crop keeps, smallest and largest."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Aspect ratio (width / height) of the crop, smallest and largest."""
    filter: Filter = "bicubic"
    """Interpolation of the crop."""
    centre: float = 0.0
    """If set, crop the central square with this fraction of the shorter side instead of a random box."""
    rescale: Rescale | None = None
    """If set, resize the whole image onto the view instead of a random box."""
    steps: tuple[Step, ...] = (Flip(),)
    erase: float = 0.0
    """Probability that a rectangle (2 % to 33 % of the view) is replaced by noise."""

    @property
    def keeps_boxes(self) -> bool:
        """Return whether a view shows exactly its crop box, possibly mirrored: no later step moves its content."""
        return not any(isinstance(step, Flip | Rotate | RandAugment) for step in self.split_flip()[1])

    def split_flip(self) -> tuple[Flip | None, tuple[Step, ...]]:
        """Separate a flip that comes first, if there is one, from the remaining steps."""
        first = self.steps[0] if self.steps else None
        return (first, self.steps[1:]) if isinstance(first, Flip) else (None, self.steps)


@dataclass(frozen=True)
class Mix:
    """Mixup and CutMix. Each value is the alpha of Beta(alpha, alpha); 0 switches it off."""

    mixup: float = 0.0
    cutmix: float = 0.0
    prob: float = 1.0
    """Probability that a view is mixed at all."""
    per: Literal["image", "batch"] = "image"
    """One draw per image, or one per batch (timm's default)."""
    parts: int = 1
    """Parts of a batch that are mixed separately, as on that many GPUs that each mix their own images."""
    fold: bool = False
    """Use max(lam, 1 - lam), so that the first image always dominates (IDMM)."""
    turns: Literal["random", "epochs"] = "random"
    """If both are on: choose one at random, or mixup in even and CutMix in odd epochs (IDMM's fine-tuning)."""

    @property
    def on(self) -> bool:
        return self.prob > 0 and (self.mixup > 0 or self.cutmix > 0)

    def at_epoch(self, epoch: int) -> Mix:
        """Switch off what this epoch does not use."""
        if self.turns == "random" or not (self.mixup and self.cutmix):
            return self
        return replace(self, mixup=0.0) if epoch % 2 else replace(self, cutmix=0.0)


@dataclass(frozen=True)
class Group:
    """`count` views of `size` x `size` pixels that share one policy and are mixed only with each other."""

    size: int
    count: int = 1
    policy: Policy = Policy()
    mix: Mix = Mix()
    return_boxes: bool = False  # fill `Views.boxes`

    @property
    def store_side(self) -> int:
        """Side of the decoded images, a multiple of 32 px, at which few crops have to be enlarged."""
        if self.policy.rescale:
            return math.ceil(self.size * self.policy.rescale.factor[1] / 32) * 32
        low, high = self.policy.scale
        side = self.size / (self.policy.centre or math.sqrt(low + MAX_ENLARGED * (high - low)))
        return math.ceil(int(side) / 32) * 32


@dataclass(frozen=True)
class Plan:
    """All views that an objective asks for."""

    groups: tuple[Group, ...]

    @property
    def largest(self) -> int:
        """Side of the largest view in pixels."""
        return max(group.size for group in self.groups)

    @property
    def crops(self) -> int:
        """Number of views per image."""
        return sum(group.count for group in self.groups)

    @property
    def changes_colour(self) -> bool:
        return any(isinstance(step, COLOUR_STEPS) for group in self.groups for step in group.policy.steps)

    @property
    def loses_boxes(self) -> bool:
        """Return whether a group asks for crop boxes that its policy does not keep, for example because it rotates."""
        return any(group.return_boxes and not group.policy.keeps_boxes for group in self.groups)

    def store_side(self, images: int) -> int:
        """Choose the side of the decoded images.

        It is at least 12/7 of the largest view, or the largest view if images are resized as a whole. Small local crops
        and random factors ask for more, unless `images` of that size would take more than MAX_STORE_BYTES.
        """
        rescales = any(group.policy.rescale for group in self.groups)
        usual = self.largest if rescales else Group(self.largest).store_side
        useful = max(usual, *(group.store_side for group in self.groups))
        return useful if 3 * images * useful**2 <= MAX_STORE_BYTES else usual

    def check_channels(self, channels: int) -> None:
        """Raise UserError if colour steps are applied to images that are neither RGB nor grey."""
        if self.changes_colour and channels not in (1, 3):
            raise UserError(
                f"--data.channels {channels}: these views change colours, which needs 1 or 3 channels. "
                "Pre-train with --views.no-colour, or train without RandAugment or with a different policy."
            )
