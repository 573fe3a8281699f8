"""The settings of `vitling detect` and `vitling segment`. Plain data without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from vitling.data.annotations.config import AnnotationConfig
from vitling.methods.drloc.settings import DRLocConfig
from vitling.ranges import AT_LEAST_1, FRACTION, SIDE, TEST_SCALE, Range
from vitling.settings.config import OPEN_NUMBER, PLANNED, RunConfig, show_as
from vitling.views.plan import Flip, Group, Plan, Policy, Rescale, Step
from vitling.views.policies import DISTORTION, LARGE_JITTER

WIDTH = Range(8, 4096)  # channels
_SIDES = Range(1, SIDE.high, ordered=True)  # px
_FACTORS = Range(0, 8, low_excluded=True, ordered=True)
MULTI_SCALE = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)  # of the training resolution: DRLoc, appendix B.2


@dataclass(frozen=True)
class DenseConfig(RunConfig):
    """Settings that detection and segmentation share."""

    source: Annotated[str, tyro.conf.Positional, show_as("DATA", "(required, unless with --resume)")] = ""
    """Annotated images: COCO JSON, Pascal VOC, YOLO, Label Studio, or folders of images and masks; a folder or a tar
    (docs/dense.md)."""
    backbone: Annotated[str | None, show_as("NAME")] = None
    """The network; `vitling list backbones` shows tested ones. Default: that of --from, else pvt_v2_b0."""
    from_: Annotated[str | None, show_as("PATH", name="from")] = None
    """Start from the weights of a run, model folder, checkpoint or timm file, without its head."""
    size: Annotated[int | None, SIDE, show_as("INT", "(default: planned)")] = None
    """Side in pixels of the square that each image is placed on."""
    epochs: Annotated[int, OPEN_NUMBER, show_as("INT", "(default: planned)")] = PLANNED
    """Passes over the training images."""
    batch: Annotated[int, OPEN_NUMBER, show_as("INT", "(default: planned)")] = PLANNED
    """Images per optimiser step, over all processes."""
    freeze: Annotated[int | None, Range(0, 3), show_as("INT", "(default: planned)")] = None
    """Quarters of the backbone to freeze, from its input on: 0 trains all of it."""
    drop_path: Annotated[float | None, FRACTION, show_as("FLOAT", "(default: planned)")] = None
    """Stochastic depth of the backbone's last block; it decreases linearly towards the first."""
    width: Annotated[int | None, WIDTH, show_as("INT", "(default: planned)")] = None
    """Channels of the layers on top of the backbone. Default: 256 to detect, 512 to segment; 128 without a GPU."""
    flip: Annotated[float, FRACTION] = 0.5
    """Probability of a horizontal flip; use 0 where it changes the meaning (text, left and right)."""
    eval_every: Annotated[int | None, AT_LEAST_1, show_as("INT")] = None
    """Epochs between evaluations on the validation split. Default: about 10 evaluations per run."""
    test: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Evaluate on the test split at the end; use --no-test for runs that you choose between."""
    val: Annotated[str | None, show_as("none|FRACTION")] = None
    """Images to hold out for validation: none, or a fraction such as 0.2.
    Default: the data's own val split, else 0.1."""
    annotations: AnnotationConfig = field(default_factory=AnnotationConfig)
    # no flags here: DRLoc is for pre-training, and there are no labels to correct
    aux: Annotated[Literal["none", "drloc"], tyro.conf.Suppress] = "none"
    drloc: Annotated[DRLocConfig, tyro.conf.Suppress] = field(default_factory=DRLocConfig)
    labels: Annotated[str | None, tyro.conf.Suppress] = None

    def make_views(self, size: int) -> Plan:
        flip: tuple[Step, ...] = (Flip(self.flip),)
        policy = Policy(rescale=self.make_rescale(size), filter="bilinear", steps=(*flip, *self.colour_steps))
        return Plan((Group(size, policy=policy, return_boxes=True),))

    def make_rescale(self, size: int) -> Rescale:
        """Return how images are placed on a square of this size in training."""
        raise NotImplementedError

    @property
    def colour_steps(self) -> tuple[Step, ...]:
        return ()

    @property
    def test_passes(self) -> float:
        """Return the work of predicting an image, in predictions at --size."""
        return 1.0


@dataclass(frozen=True)
class DetectConfig(DenseConfig):
    """Settings of `vitling detect`."""

    model: Literal["mask-rcnn", "cascade"] = "mask-rcnn"
    """Mask R-CNN, or Cascade Mask R-CNN with three box heads."""
    masks: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Also learn masks, if the data has them; --no-masks trains boxes only."""
    preset: Annotated[Literal["auto", "small", "1x", "3x"], show_as("{small,1x,3x}", "(default: planned)")] = "auto"
    """small: planned from the images. 1x, 3x: the DRLoc paper's 12 or 36 epochs for COCO."""
    shorter: Annotated[tuple[int, int] | None, _SIDES, show_as("INT INT", "(default: planned)")] = None
    """Range of the shorter side in pixels that images are resized to."""
    longest: Annotated[int | None, SIDE, show_as("INT", "(default: --size)")] = None
    """Limit of the longer side in pixels; longer images are resized to it."""
    jitter: Literal["none", "large"] = "none"
    """large: large-scale jitter, which resizes images to 0.1 to 2.0 times --size instead of --shorter."""
    copy_paste: Annotated[float, FRACTION] = 0.0
    """Probability that objects of another image of the batch are pasted onto an image; needs masks."""

    def make_rescale(self, size: int) -> Rescale:
        if self.jitter == "large":
            return Rescale((size, size), size, LARGE_JITTER, random_crop=True)
        return Rescale(self.shorter or (size, size), self.longest or size)


@dataclass(frozen=True)
class SegmentConfig(DenseConfig):
    """Settings of `vitling segment`."""

    preset: Annotated[Literal["auto", "small", "160k"], show_as("{small,160k}", "(default: planned)")] = "auto"
    """small: planned from the images. 160k: the DRLoc paper's 160,000 steps for ADE20K."""
    scale: Annotated[tuple[float, float], _FACTORS] = (0.5, 2.0)
    """Range of the factor that images are rescaled by, relative to a shorter side of --size; then a random crop."""
    colour: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Photometric distortion: brightness, contrast, saturation and hue."""
    test_scales: Annotated[tuple[float, ...] | None, TEST_SCALE, show_as("FLOAT ...", "(default: planned)")] = None
    """Scales to predict at and average, relative to --size: 0.5 0.75 1 1.25 1.5 1.75 in the paper."""
    test_flip: bool = False
    """Also predict the mirrored image and average."""

    def make_rescale(self, size: int) -> Rescale:
        return Rescale((size, size), 4 * size, self.scale, random_crop=True)

    @property
    def colour_steps(self) -> tuple[Step, ...]:
        return (DISTORTION,) if self.colour and self.has_colours else ()

    @property
    def test_passes(self) -> float:
        return sum(scale**2 for scale in self.test_scales or (1.0,)) * (2 if self.test_flip else 1)
