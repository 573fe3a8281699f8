"""The steps of a policy: their numbers are drawn for each image, then they are applied in order to images in 0..255.

The two are kept apart because they are compiled apart: a compiler that sees both works the hash out again for every
pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from vitling.views import colour, planes
from vitling.views.blur import blur, draw_blur
from vitling.views.chosen import whole_batches
from vitling.views.config import Blur, Flip, Grey, Jitter, RandAugment, Rotate, Solarise, Step
from vitling.views.draws import Draws
from vitling.views.randaugment import draw_rand_augment, rand_augment
from vitling.views.warp import rotation, warp

Numbers = tuple[Tensor, ...]  # of one step, [B, ...] each


def draw_step(draws: Draws, step: Step) -> Numbers:
    match step:
        case Flip(prob):
            return (draws.chance("flip", prob),)
        case Rotate(degrees):
            return (degrees * (2 * draws.uniform("rotate")[:, 0] - 1),)
        case Jitter(brightness, contrast, saturation, hue, prob):
            factors, order = colour.draw_jitter(draws, (brightness, contrast, saturation, hue), prob)
            return planes.chain(factors, order) if whole_batches(draws.state) else (factors, order)
        case Grey(prob):
            return (draws.chance("grey", prob),)
        case Blur(prob, radius):
            return (draw_blur(draws, radius, prob),)
        case Solarise(prob):
            return (draws.chance("solarise", prob),)
        case RandAugment():
            return draw_rand_augment(draws, step)
    raise TypeError(f"unknown step {step}")


def apply_steps(images: Tensor, steps: Sequence[Step], numbers: Sequence[Numbers]) -> Tensor:
    """Neighbouring steps of colour are one kernel on GPUs."""
    for of_colour, some in groupby(zip(steps, numbers), key=lambda pair: isinstance(pair[0], Jitter | Grey | Solarise)):
        if of_colour and whole_batches(images):
            images = _apply_to_planes(images, list(some))
            continue
        for step, drawn in some:
            images = apply_step(images, step, drawn)
    return images


def apply_step(images: Tensor, step: Step, numbers: Numbers) -> Tensor:
    match step:
        case Flip():
            return torch.where(numbers[0][:, None, None, None], images.flip(-1), images)
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


def _apply_to_planes(images: Tensor, steps: list[tuple[Step, Numbers]]) -> Tensor:
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
