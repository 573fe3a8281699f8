"""The steps of a policy, applied in their order to images in 0..255."""

from __future__ import annotations

import torch
from torch import Tensor

from vitling.views import colour
from vitling.views.blur import blur
from vitling.views.config import Blur, Flip, Grey, Jitter, RandAugment, Rotate, Solarise, Step
from vitling.views.draws import Draws
from vitling.views.randaugment import rand_augment
from vitling.views.warp import rotation, warp


def apply_steps(images: Tensor, draws: Draws, steps: tuple[Step, ...]) -> Tensor:
    for step in steps:
        images = apply_step(images, draws, step)
    return images


def apply_step(images: Tensor, draws: Draws, step: Step) -> Tensor:
    match step:
        case Flip(prob):
            return torch.where(draws.chance("flip", prob)[:, None, None, None], images.flip(-1), images)
        case Rotate(degrees):
            angle = degrees * (2 * draws.uniform("rotate")[:, 0] - 1)
            return warp(images, rotation(angle), fill=None)
        case Jitter(brightness, contrast, saturation, hue, prob):
            return colour.jitter(images, draws, (brightness, contrast, saturation, hue), prob)
        case Grey(prob):
            return colour.to_grey(images, draws.chance("grey", prob))
        case Blur(prob, radius):
            return blur(images, draws, radius, prob)
        case Solarise(prob, threshold):
            return colour.solarise(images, draws.chance("solarise", prob), threshold)
        case RandAugment():
            return rand_augment(images, draws, step)
    raise TypeError(f"unknown step {step}")
