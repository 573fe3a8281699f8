"""Draws the views of a plan for the part of a batch that this process holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitling.keys import host_generator, make_key
from vitling.views.colour import per_channel
from vitling.views.config import Filter, Flip, Group, Plan, Policy, Step
from vitling.views.draws import Draws
from vitling.views.erasing import draw_erasing, erase, noise_bank
from vitling.views.geometry import centre_boxes, crop, random_boxes
from vitling.views.mixing import draw_mix, mix_rows
from vitling.views.steps import apply_steps, draw_step
from vitling.views.threads import in_threads


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

    def draw(
        self,
        pixels: Tensor,
        aspect: Tensor,
        normalise: Normaliser,
        brush: Brush | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> list[Views]:
        """One `Views` a group. `pixels` is uint8 [len(instances), C, S, S]."""
        brush = brush or Brush()
        views, first_view = [], 0
        for group, partner, draws in zip(self.plan.groups, self._partners, self._draws(pixels.device)):
            images = self._images(group, draws, pixels, aspect, normalise, brush, dtype)
            views.append(self._arrange(group, first_view, images, draws, partner, brush))
            first_view += group.count
        return views

    def boxes(self, aspect: Tensor) -> list[Tensor]:
        """[count * B, 4] a group: where the views of `instances` are cut from, in fractions of the image."""
        draws = self._draws(aspect.device)
        return [_boxes(d, group.policy, aspect.repeat(group.count)) for d, group in zip(draws, self.plan.groups)]

    def _partner_elements(self, index: int, group: Group) -> np.ndarray | None:
        """For each local element (view-major over the global batch) the element that is mixed in."""
        if not group.mix.on:
            return None
        generator = host_generator("partner", self.place.seed, self.place.epoch, self.place.step, index)
        return generator.permutation(group.count * len(self.place.ids))[self._elements(group)]

    def _elements(self, group: Group) -> np.ndarray:
        return (np.arange(group.count)[:, None] * len(self.place.ids) + self.local[None]).ravel()

    def _draws(self, device: torch.device) -> list[Draws]:
        """Of each group, for its views of all needed images; hashed together, which costs one group's time."""
        keys = [make_key("view", self.place.seed, self.place.epoch, view) for view in range(self.plan.crops)]
        draws = Draws.of(keys, _to(self.place.ids[self._needed], device))
        counts = [group.count * len(self._needed) for group in self.plan.groups]
        return [Draws(state) for state in draws.state.split(counts)]

    def _images(
        self,
        group: Group,
        draws: Draws,
        pixels: Tensor,
        aspect: Tensor,
        normalise: Normaliser,
        brush: Brush,
        dtype: torch.dtype,
    ) -> Tensor:
        draw = brush(draw_numbers, policy=group.policy, size=group.size)
        make = brush(render, policy=group.policy, size=group.size, normalise=normalise, dtype=dtype)
        noise = noise_bank(pixels.device)

        def paint(state: Tensor, pixels: Tensor, aspect: Tensor) -> Tensor:
            return make(draw(state, aspect), pixels, noise)

        by_threads = pixels.device.type == "cpu" and not brush.compiles
        return (partial(in_threads, paint) if by_threads else paint)(draws.state, pixels, aspect)

    def _arrange(
        self,
        group: Group,
        first_view: int,
        images: Tensor,
        draws: Draws,
        partner: np.ndarray | None,
        brush: Brush,
    ) -> Views:
        rows = self._rows(self._elements(group))
        if partner is None:
            return Views(_pick(images, rows), group.count)
        own = _to(rows, images.device)
        if group.mix.per == "batch":
            key = make_key("mix", self.place.seed, self.place.epoch, self.place.step, first_view)
            mixing = Draws.of([key], torch.zeros_like(own))
        else:
            mixing = Draws(draws.state[own])
        recipe = draw_mix(mixing, group.mix.in_epoch(self.place.epoch))
        mixed, share = brush(mix_rows)(images, own, _to(self._rows(partner), images.device), *recipe)
        mixed_in = self.place.ids[partner % len(self.place.ids)] % self.place.instances
        return Views(mixed, group.count, _to(mixed_in, images.device), share)

    def _rows(self, elements: np.ndarray) -> np.ndarray:
        """Where an element lies among the drawn images."""
        view, position = np.divmod(elements, len(self.place.ids))
        return view * len(self._needed) + np.searchsorted(self._needed, position)


class Brush:
    """Functions with their settings filled in, each made once, and compiled where a compiler is given."""

    def __init__(self, compiler: Callable[[Callable], Callable] | None = None):
        self.compiler = compiler
        self.made: dict[tuple, Callable] = {}

    @property
    def compiles(self) -> bool:
        return self.compiler is not None

    def __call__(self, function: Callable, **settings: Any) -> Callable:
        key = (function, *settings.items())
        if key not in self.made:
            filled = partial(function, **settings)
            self.made[key] = self.compiler(filled) if self.compiler else filled
        return self.made[key]


class Numbers(NamedTuple):
    """All that is drawn for the views of a group, [V * B, ...] each."""

    boxes: Tensor
    flip: Tensor | None  # of a flip that comes first
    steps: tuple[tuple[Tensor, ...], ...]  # of the others
    erasing: tuple[Tensor, ...]


def draw_numbers(state: Tensor, aspect: Tensor, *, policy: Policy, size: int) -> Numbers:
    """For as many views of every image as `state` has rows for it, view by view."""
    draws = Draws(state)
    boxes = _boxes(draws, policy, aspect.repeat(len(state) // len(aspect)))
    first, others = _flip_first(policy)
    flip = draw_step(draws, first)[0] if first else None
    erasing = draw_erasing(draws, policy.erase, size) if policy.erase > 0 else ()
    return Numbers(boxes, flip, tuple(draw_step(draws, step) for step in others), erasing)


def render(
    numbers: Numbers,
    pixels: Tensor,
    noise: Tensor,
    *,
    policy: Policy,
    size: int,
    normalise: Normaliser,
    dtype: torch.dtype,
) -> Tensor:
    """The views. A flip that comes first costs nothing: the crop turns its matrix round."""
    images = crop(pixels, numbers.boxes, size, policy.filter, numbers.flip)
    images = apply_steps(images, _flip_first(policy)[1], numbers.steps)
    images = normalise(images)
    if numbers.erasing:
        images = erase(images, numbers.erasing, noise)
    return images.to(dtype, memory_format=torch.contiguous_format)


def _flip_first(policy: Policy) -> tuple[Flip | None, tuple[Step, ...]]:
    first = policy.steps[0] if policy.steps else None
    return (first, policy.steps[1:]) if isinstance(first, Flip) else (None, policy.steps)


def _boxes(draws: Draws, policy: Policy, aspect: Tensor) -> Tensor:
    if policy.centre:
        return centre_boxes(aspect, policy.centre)
    return random_boxes(draws, aspect, policy.scale, policy.ratio)


def _pick(tensor: Tensor, rows: np.ndarray) -> Tensor:
    whole = len(rows) == len(tensor) and bool((rows == np.arange(len(rows))).all())
    return tensor if whole else tensor[_to(rows, tensor.device)]


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
