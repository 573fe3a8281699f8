"""The steps of a policy: draw their numbers for each image, then apply them in order to images in 0..255.

Drawing and applying are separate because they are compiled separately: a compiler that sees both repeats the hash for
every pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from vitling.views import colour, planes
from vitling.views.blur import blur, draw_blur
from vitling.views.draws import Draws
from vitling.views.masked import per_image, works_on_whole_batch
from vitling.views.plan import Blur, Flip, Grey, Jitter, RandAugment, Rotate, Solarise, Step
from vitling.views.randaugment import draw_rand_augment, rand_augment
from vitling.views.warp import rotation, warp

StepNumbers = tuple[Tensor, ...]  # drawn for one step, [B, ...] each


def draw_step(draws: Draws, step: Step) -> StepNumbers:
    match step:
        case Flip(prob):
            return (draws.chance("flip", prob),)
        case Rotate(degrees):
            return (degrees * (2 * draws.uniform("rotate")[:, 0] - 1),)
        case Jitter(brightness, contrast, saturation, hue, prob):
            factors, order = colour.draw_jitter(draws, (brightness, contrast, saturation, hue), prob)
            return planes.make_chain(factors, order) if works_on_whole_batch(draws.state) else (factors, order)
        case Grey(prob):
            return (draws.chance("grey", prob),)
        case Blur(prob, radius):
            return (draw_blur(draws, radius, prob),)
        case Solarise(prob):
            return (draws.chance("solarise", prob),)
        case RandAugment():
            return draw_rand_augment(draws, step)
    raise TypeError(f"unknown step {step}")


def apply_steps(images: Tensor, steps: Sequence[Step], numbers: Sequence[StepNumbers]) -> Tensor:
    """Apply the steps in order; on GPUs neighbouring colour steps are one kernel."""
    for is_colour, some in groupby(zip(steps, numbers), key=lambda pair: isinstance(pair[0], Jitter | Grey | Solarise)):
        if is_colour and works_on_whole_batch(images):
            images = _apply_to_planes(images, list(some))
            continue
        for step, drawn in some:
            images = apply_step(images, step, drawn)
    return images


def apply_step(images: Tensor, step: Step, numbers: StepNumbers) -> Tensor:
    match step:
        case Flip():
            return torch.where(per_image(numbers[0]), images.flip(-1), images)
        case Rotate():
            return warp(images, rotation(numbers[0]), fill=None)
        case Jitter():
            return colour.jitter(images, *numbers)
        case Grey():
            return colour.to_grey(images, numbers[0])
        case Blur():
            return blur(images, numbers[0], step.radius[1])
        case Solarise():
            return colour.solarise(images, numbers[0], step.threshold)
        case RandAugment():
            return rand_augment(images, step, numbers)
    raise TypeError(f"unknown step {step}")


def _apply_to_planes(images: Tensor, steps: list[tuple[Step, StepNumbers]]) -> Tensor:
    three = planes.split(images)
    for step, numbers in steps:
        match step:
            case Jitter():
                three = planes.jitter(three, *numbers)
            case Grey():
                three = planes.to_grey(three, numbers[0])
            case Solarise(_, threshold):
                three = planes.solarise(three, numbers[0], threshold)
    return planes.join(three, images.dtype)[:, : images.shape[1]]
