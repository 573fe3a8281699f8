"""Draws the views of a plan for the part of a batch that this process holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitling.keys import host_generator, make_key
from vitling.views.colour import per_channel
from vitling.views.config import Filter, Flip, Group, Plan, Policy
from vitling.views.draws import Draws
from vitling.views.erasing import erase, noise_bank
from vitling.views.geometry import centre_boxes, crop, random_boxes
from vitling.views.mixing import draw_mix, mix_images
from vitling.views.steps import apply_steps


@dataclass
class Views:
    """The views of one group, view by view: the first B rows are each image's first view."""

    pixels: Tensor  # [count * B, C, size, size], normalised
    count: int
    partner: Tensor | None = None  # [count * B] instance ids of the images mixed in
    share: Tensor | None = None  # [count * B] how much of the first image is there (lambda)


@dataclass(frozen=True)
class Place:
    """Where a batch stands in the run. `ids` are draw ids over the GLOBAL batch: instance id + N * repetition, so
    that an image that a balanced sampler takes twice in an epoch looks different each time."""

    seed: int
    epoch: int
    step: int  # of the epoch
    ids: np.ndarray
    instances: int  # N


@dataclass(frozen=True)
class Normaliser:
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, pixels: Tensor) -> Tensor:
        """0..255 -> float32 with mean 0 and deviation 1."""
        mean, std = per_channel(self.mean, pixels.device), per_channel(self.std, pixels.device)
        return (pixels.float() - 255 * mean) / (255 * std)


def eval_view(
    pixels: Tensor,
    aspect: Tensor,
    size: int,
    crop_fraction: float,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    filter: Filter = "bicubic",
) -> Tensor:
    """Resize the shorter side to size / crop_fraction, cut out the centre, normalise."""
    boxes = centre_boxes(aspect.float(), crop_fraction)
    return Normaliser(tuple(mean), tuple(std))(crop(pixels, boxes, size, filter))


class Drawing:
    """The views of the positions `local` of a global batch: first ask for `instances`, then `draw` from their pixels.

    Mixing partners are drawn over the whole batch. A partner that another process (or another slice of an
    accumulated batch) holds is simply drawn here too: stateless draws make it the same picture.
    """

    def __init__(self, plan: Plan, place: Place, local: np.ndarray):
        self.plan, self.place, self.local = plan, place, local
        self._partners = [self._partner_elements(g, group) for g, group in enumerate(plan.groups)]
        mixed_in = [partner % len(place.ids) for partner in self._partners if partner is not None]
        self._needed = np.unique(np.concatenate([local, *mixed_in]))

    @property
    def instances(self) -> np.ndarray:
        """Ids of the images whose pixels `draw` wants, in this order."""
        return self.place.ids[self._needed] % self.place.instances

    @property
    def own_instances(self) -> np.ndarray:
        return self.place.ids[self.local] % self.place.instances

    def draw(self, pixels: Tensor, aspect: Tensor, normalise: Normaliser, brush: Brush | None = None) -> list[Views]:
        """One `Views` a group. `pixels` is uint8 [len(instances), C, S, S]."""
        brush = brush or Brush()
        views, first_view = [], 0
        for group, partner in zip(self.plan.groups, self._partners):
            draws = self._draws(group, first_view, pixels.device)
            make = brush(render, policy=group.policy, size=group.size, normalise=normalise)
            images = _joined([make(d.state, pixels, aspect, noise_bank(pixels.device)) for d in draws])
            views.append(self._arrange(group, first_view, images, draws, partner, brush))
            first_view += group.count
        return views

    def boxes(self, aspect: Tensor) -> list[Tensor]:
        """[count * B, 4] a group: where the views of `instances` are cut from, in fractions of the image."""
        cut, first_view = [], 0
        for group in self.plan.groups:
            draws = self._draws(group, first_view, aspect.device)
            cut.append(torch.cat([_boxes(d, group.policy, aspect) for d in draws]))
            first_view += group.count
        return cut

    def _partner_elements(self, index: int, group: Group) -> np.ndarray | None:
        """For each local element (view-major over the global batch) the element that is mixed in."""
        if not group.mix.on:
            return None
        generator = host_generator("partner", self.place.seed, self.place.epoch, self.place.step, index)
        return generator.permutation(group.count * len(self.place.ids))[self._elements(group)]

    def _elements(self, group: Group) -> np.ndarray:
        return (np.arange(group.count)[:, None] * len(self.place.ids) + self.local[None]).ravel()

    def _draws(self, group: Group, first_view: int, device: torch.device) -> list[Draws]:
        ids = _to(self.place.ids[self._needed], device)
        keys = [make_key("view", self.place.seed, self.place.epoch, first_view + v) for v in range(group.count)]
        return [Draws.of(key, ids) for key in keys]

    def _arrange(
        self,
        group: Group,
        first_view: int,
        images: Tensor,
        draws: list[Draws],
        partner: np.ndarray | None,
        brush: Brush,
    ) -> Views:
        rows = self._rows(self._elements(group))
        own = _pick(images, rows)
        if partner is None:
            return Views(own, group.count)
        if group.mix.per == "batch":
            key = make_key("mix", self.place.seed, self.place.epoch, self.place.step, first_view)
            mixing = Draws.of(key, torch.zeros(len(rows), dtype=torch.int64, device=images.device))
        else:
            mixing = Draws(_pick(_joined([draw.state for draw in draws]), rows))
        recipe = draw_mix(mixing, group.mix.in_epoch(self.place.epoch))
        mixed, share = brush(mix_images)(own, images[_to(self._rows(partner), images.device)], *recipe)
        mixed_in = self.place.ids[partner % len(self.place.ids)] % self.place.instances
        return Views(mixed, group.count, _to(mixed_in, images.device), share)

    def _rows(self, elements: np.ndarray) -> np.ndarray:
        """Where an element lies among the drawn images."""
        view, position = np.divmod(elements, len(self.place.ids))
        return view * len(self._needed) + np.searchsorted(self._needed, position)


class Brush:
    """Functions with their settings filled in, each made once; `wrap` may compile them."""

    def __init__(self, wrap: Callable[[Callable], Callable] = lambda function: function):
        self.wrap = wrap
        self.made: dict[tuple, Callable] = {}

    def __call__(self, function: Callable, **settings: Any) -> Callable:
        key = (function, *settings.items())
        if key not in self.made:
            self.made[key] = self.wrap(partial(function, **settings))
        return self.made[key]


def render(
    state: Tensor, pixels: Tensor, aspect: Tensor, noise: Tensor, *, policy: Policy, size: int, normalise: Normaliser
) -> Tensor:
    """One view of every image. A flip that comes first costs nothing: the crop turns its matrix round."""
    draws = Draws(state)
    boxes = _boxes(draws, policy, aspect)
    steps, flip = policy.steps, None
    if steps and isinstance(steps[0], Flip):
        flip, steps = draws.chance("flip", steps[0].prob), steps[1:]
    images = apply_steps(crop(pixels, boxes, size, policy.filter, flip), draws, steps)
    images = normalise(images)
    return erase(images, draws, policy.erase, noise) if policy.erase > 0 else images


def _boxes(draws: Draws, policy: Policy, aspect: Tensor) -> Tensor:
    if policy.centre:
        return centre_boxes(aspect, policy.centre)
    return random_boxes(draws, aspect, policy.scale, policy.ratio)


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _pick(tensor: Tensor, rows: np.ndarray) -> Tensor:
    whole = len(rows) == len(tensor) and bool((rows == np.arange(len(rows))).all())
    return tensor if whole else tensor[_to(rows, tensor.device)]


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
