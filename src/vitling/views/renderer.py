"""Rendering on the device: from integers and stored pixels to views, without synchronising with the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from vitling.views.colour import per_channel
from vitling.views.draws import Draws, RecordingDraws, TabulatedDraws, columns, operation_keys, tabulate
from vitling.views.erasing import draw_erasing, erase, noise_bank
from vitling.views.geometry import centre_boxes, crop, find_inside, random_boxes, rescale_boxes
from vitling.views.mixing import MixNumbers, draw_mix, mix_images, mix_quantiles
from vitling.views.plan import Group, Policy
from vitling.views.steps import apply_steps, draw_step
from vitling.views.threads import render_in_threads

Array = TypeVar("Array", np.ndarray, Tensor)
Indices = tuple[Array, ...]  # of one group, see `ViewBatch.indices`
Drawn = TypeVar("Drawn")
Source = Tensor | TabulatedDraws  # seeds, or the numbers drawn from them


@dataclass
class Views:
    """The views of one group, view by view: the first B rows are each image's first view."""

    pixels: Tensor  # [count * B, C, size, size], normalised
    count: int
    partner: Tensor | None = None  # [count * B] instance ids of the images mixed in
    lam: Tensor | None = None  # [count * B] weight of the image itself; its partner has 1 - lam
    boxes: Tensor | None = None  # [count * B, 4] left, top, width, height; mirrored: right, top, -width, height


@dataclass(frozen=True)
class Normaliser:
    """Conversion from 0..255 to float32 with mean 0 and std 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, pixels: Tensor) -> Tensor:
        mean, std = per_channel(self.mean, pixels.device), per_channel(self.std, pixels.device)
        return (pixels.float() - 255 * mean) / (255 * std)


def eval_view(
    pixels: Tensor, aspect: Tensor, size: int, crop_fraction: float, mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    """Resize the shorter side to size / crop_fraction, crop the centre, normalise."""
    boxes = centre_boxes(aspect.float(), crop_fraction)
    return Normaliser(tuple(mean), tuple(std))(crop(pixels, boxes, size, "bicubic"))


class FunctionCache:
    """Functions with their settings bound, each made once and compiled if there is a compiler."""

    def __init__(self, compiler: Callable[[Callable], Callable] | None = None):
        self.compiler = compiler
        self.cache: dict[tuple, Callable] = {}

    @property
    def compiles(self) -> bool:
        return self.compiler is not None

    def get(self, function: Callable, **settings: Any) -> Callable:
        key = (function, *settings.items())
        if key not in self.cache:
            bound = partial(function, **settings)
            self.cache[key] = self.compiler(bound) if self.compiler else bound
        return self.cache[key]

    def draw(self, function: Callable[..., Drawn], source: Source, *others: Any, **settings: Any) -> Drawn:
        """Call `function(draws, *others)` with the draws of `source`."""
        if isinstance(source, Tensor):
            return function(Draws.from_seeds(source, columns(source.device)), *others, **settings)
        bound = self.get(_draw_from_table, draw=function, operations=source.operations, **settings)
        return bound(source.state, *others)


def _draw_from_table(
    table: Tensor, *others: Any, draw: Callable[..., Drawn], operations: tuple[str, ...], **settings: Any
) -> Drawn:
    return draw(TabulatedDraws(table, operations), *others, **settings)


class Renderer:
    """Renders views of `dtype`, with `functions` that may be compiled."""

    def __init__(
        self, normalise: Normaliser, functions: FunctionCache | None = None, dtype: torch.dtype = torch.float32
    ):
        self.normalise, self.functions, self.dtype = normalise, functions or FunctionCache(), dtype
        self.operations: dict[tuple[Group, ...], tuple[str, ...]] = {}

    def render(
        self, groups: Sequence[Group], indices: Sequence[Indices[Tensor]], pixels: Tensor, aspect: Tensor
    ) -> list[Views]:
        """Render one `Views` per group."""
        sources = self._make_sources(tuple(groups), indices, aspect)
        batches: dict[tuple, list[int]] = {}
        for g, group in enumerate(groups):
            batches.setdefault(self._batch_key(group), []).append(g)
        views: dict[int, Views] = {}
        for members in batches.values():
            images = self._render_images([groups[g] for g in members], [sources[g][0] for g in members], pixels, aspect)
            for g, own in zip(members, images):
                views[g] = self._finish(groups[g], indices[g], sources[g][1:], own)
                if groups[g].return_boxes:
                    views[g].boxes = self._draw_boxes(groups[g], indices[g], sources[g][0], aspect)
        return [views[g] for g in range(len(groups))]

    def _batch_key(self, group: Group) -> tuple:
        """Make equal keys for groups that differ only in where their crops lie: they are rendered together."""
        return replace(group.policy, scale=(0, 0), ratio=(0, 0)), group.size, self._normalise_after_mixing(group)

    def _make_sources(
        self, groups: tuple[Group, ...], indices: Sequence[Indices[Tensor]], aspect: Tensor
    ) -> Sequence[Sequence[Source]]:
        """Make the sources of random numbers for each group's views and, if the group is mixed, for its mixing.

        These are the seeds or, for compiled functions, the drawn numbers: a compiler that sees the hash repeats it in
        every kernel that uses a number.
        """
        seeds = [[arrays[0], arrays[-1]] if group.mix.on else [arrays[0]] for group, arrays in zip(groups, indices)]
        if not self.functions.compiles:
            return seeds
        if groups not in self.operations:
            names = [name for group, some in zip(groups, seeds) for name in _list_operations(group, some, aspect)]
            self.operations[groups] = tuple(dict.fromkeys(names))
        operations, flat = self.operations[groups], [some for both in seeds for some in both]
        constants = columns(aspect.device), operation_keys(operations, aspect.device)
        table = self.functions.get(tabulate)(torch.cat(flat), *constants)
        tables = iter(table.split([len(some) for some in flat], dim=1))
        return [[TabulatedDraws(next(tables), operations) for _ in some] for some in seeds]

    def _finish(self, group: Group, indices: Indices[Tensor], mixing: Sequence[Source], images: Tensor) -> Views:
        """Select the batch's own images and mix them with their partners."""
        if not group.mix.on:
            return Views(images if len(indices) == 1 else images[indices[1]], group.count)
        _, own, partner, mixed_in, _ = indices
        quantiles = mix_quantiles(group.mix, images.device)
        numbers = self.functions.draw(draw_mix, mixing[0], quantiles, mix=group.mix, size=group.size)
        mix = self.functions.get(mix_rows, normalise=self._normalise_after_mixing(group), dtype=self.dtype)
        return Views(mix(images, own, partner, numbers), group.count, mixed_in, numbers.lam)

    def _draw_boxes(self, group: Group, indices: Indices[Tensor], source: Source, aspect: Tensor) -> Tensor:
        boxes = self.functions.draw(draw_view_boxes, source, aspect, policy=group.policy, size=group.size)
        return boxes if len(indices) == 1 else boxes[indices[1]]

    def _normalise_after_mixing(self, group: Group) -> Normaliser | None:
        """Return the normaliser if it runs after mixing, where it costs nothing.

        The two commute, unless erasing or the outside of a rescaled image puts normalised values between them.
        """
        between = group.policy.erase or group.policy.rescale
        return self.normalise if group.mix.on and not between else None

    def _render_images(
        self, groups: list[Group], sources: Sequence[Source], pixels: Tensor, aspect: Tensor
    ) -> tuple[Tensor, ...]:
        size, policy = groups[0].size, groups[0].policy
        normalise = None if self._normalise_after_mixing(groups[0]) else self.normalise
        make = self.functions.get(render_views, policy=policy, size=size, normalise=normalise, dtype=self.dtype)
        noise = noise_bank(pixels.device)
        counts = [group.count for group in groups]

        def render(sources: Sequence[Source], pixels: Tensor, aspect: Tensor) -> Tensor:
            numbers = [
                self.functions.draw(draw_numbers, source, aspect, policy=group.policy, size=size)
                for group, source in zip(groups, sources)
            ]
            return make(_concatenate(numbers), pixels, noise)

        def render_from_seeds(seeds: Tensor, pixels: Tensor, aspect: Tensor) -> Tensor:
            return render(seeds.split([count * len(pixels) for count in counts]), pixels, aspect)

        if pixels.device.type == "cpu" and not self.functions.compiles:
            images = render_in_threads(render_from_seeds, torch.cat(cast(list[Tensor], sources)), pixels, aspect)
        else:
            images = render(sources, pixels, aspect)
        return images.split([count * len(pixels) for count in counts])


def _list_operations(group: Group, seeds: list[Tensor], aspect: Tensor) -> list[str]:
    """List the operations that the group draws numbers for."""
    device = aspect.device
    views = RecordingDraws.from_seeds(seeds[0], columns(device))
    draw_numbers(views, aspect, policy=group.policy, size=group.size)
    if not group.mix.on:
        return views.operations
    mixing = RecordingDraws.from_seeds(seeds[1], columns(device))
    draw_mix(mixing, mix_quantiles(group.mix, device), mix=group.mix, size=group.size)
    return views.operations + mixing.operations


class Numbers(NamedTuple):
    """All numbers that are drawn for the views of a group, [count * B, ...] each."""

    boxes: Tensor
    flip: Tensor | None  # of a flip that comes first
    steps: tuple[tuple[Tensor, ...], ...]  # of the remaining steps
    erasing: tuple[Tensor, ...]


def _concatenate(numbers: list[Numbers]) -> Numbers:
    """Concatenate the numbers of several groups with the same steps."""
    if len(numbers) == 1:
        return numbers[0]
    boxes, flips, steps, erasing = zip(*numbers)
    return Numbers(
        torch.cat(boxes),
        None if flips[0] is None else torch.cat(flips),
        tuple(tuple(map(torch.cat, zip(*drawn))) for drawn in zip(*steps)),
        tuple(map(torch.cat, zip(*erasing))),
    )


def draw_numbers(draws: Draws, aspect: Tensor, *, policy: Policy, size: int) -> Numbers:
    """Draw the numbers for all views, view by view; `draws` determines how many views each image has."""
    boxes = draw_boxes(draws, policy, aspect.repeat(draws.images // len(aspect)), size)
    flip_step, others = policy.split_flip()
    flip = draw_step(draws, flip_step)[0] if flip_step else None
    erasing = draw_erasing(draws, policy.erase, size) if policy.erase > 0 else ()
    return Numbers(boxes, flip, tuple(draw_step(draws, step) for step in others), erasing)


def draw_boxes(draws: Draws, policy: Policy, aspect: Tensor, size: int) -> Tensor:
    if policy.rescale:
        return rescale_boxes(draws, aspect, policy.rescale, size)
    if policy.centre:
        return centre_boxes(aspect, policy.centre)
    return random_boxes(draws, aspect, policy.scale, policy.ratio)


def draw_view_boxes(draws: Draws, aspect: Tensor, *, policy: Policy, size: int) -> Tensor:
    """Draw `Views.boxes`: the crop boxes, with the sides exchanged where a view is mirrored."""
    if not policy.keeps_boxes:
        raise ValueError("a step after the crop moves the content of these views, so their boxes are not known")
    flip_step, _ = policy.split_flip()
    boxes = draw_boxes(draws, policy, aspect.repeat(draws.images // len(aspect)), size)
    if flip_step is None:
        return boxes
    (left, top, width, height), mirrored = boxes.unbind(1), draw_step(draws, flip_step)[0]
    return torch.stack(
        [torch.where(mirrored, left + width, left), top, torch.where(mirrored, -width, width), height], dim=1
    )


def render_views(
    numbers: Numbers,
    pixels: Tensor,
    noise: Tensor,
    *,
    policy: Policy,
    size: int,
    normalise: Normaliser | None,
    dtype: torch.dtype,
) -> Tensor:
    """Render views, in 0..255 without a normaliser. A flip that comes first is free: the crop mirrors its matrix."""
    images = crop(pixels, numbers.boxes, size, policy.filter, numbers.flip, outside=policy.rescale is not None)
    images = apply_steps(images, policy.split_flip()[1], numbers.steps)
    if normalise is None:
        return images
    images = normalise(images)
    if policy.rescale:
        images = images * find_inside(numbers.boxes, size, numbers.flip)
    if numbers.erasing:
        images = erase(images, numbers.erasing, noise)
    return images.to(dtype, memory_format=torch.contiguous_format)


def mix_rows(
    images: Tensor,
    own: Tensor,
    partner: Tensor,
    numbers: MixNumbers,
    *,
    normalise: Normaliser | None,
    dtype: torch.dtype,
) -> Tensor:
    """Mix the rows `own` of `images` with the rows `partner`."""
    mixed = mix_images(images[own], images[partner], numbers)
    return (normalise(mixed) if normalise else mixed).to(dtype)
