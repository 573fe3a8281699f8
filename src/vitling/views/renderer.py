"""The device's part of view_batch: from whole numbers and stored pixels to views. It asks nothing of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from vitling.views.colour import per_channel
from vitling.views.config import Filter, Group, Policy
from vitling.views.draws import Draws, Noting, Tabled, columns, keys_of, tabulate
from vitling.views.erasing import draw_erasing, erase, noise_bank
from vitling.views.geometry import centre_boxes, crop, random_boxes
from vitling.views.mixing import Recipe, draw_mix, mix_images, quantiles_of
from vitling.views.steps import apply_steps, draw_step
from vitling.views.threads import in_threads

Array = TypeVar("Array", np.ndarray, Tensor)
Indices = tuple[Array, ...]
Drawn = TypeVar("Drawn")
Source = Tensor | Tabled


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


class Renderer:
    """The device's part of view_batch. `functions` may compile its functions; `dtype` is that of the views."""

    def __init__(
        self, normalise: Normaliser, functions: FunctionCache | None = None, dtype: torch.dtype = torch.float32
    ):
        self.normalise, self.functions, self.dtype = normalise, functions or FunctionCache(), dtype
        self.operations: dict[tuple[Group, ...], tuple[str, ...]] = {}

    def render(
        self, groups: Sequence[Group], order: Sequence[Indices[Tensor]], pixels: Tensor, aspect: Tensor
    ) -> list[Views]:
        sources = self._sources(tuple(groups), order, aspect)
        by_look: dict[tuple, list[int]] = {}
        for g, group in enumerate(groups):
            by_look.setdefault(self._look(group), []).append(g)
        views: dict[int, Views] = {}
        for alike in by_look.values():
            some, theirs = [groups[g] for g in alike], [sources[g][0] for g in alike]
            for g, images in zip(alike, self._images(some, theirs, pixels, aspect)):
                views[g] = self._views(groups[g], order[g], sources[g][1:], images)
                if groups[g].return_boxes:
                    views[g].boxes = self._boxes(groups[g], order[g], sources[g][0], aspect)
        return [views[g] for g in range(len(groups))]

    def _look(self, group: Group) -> tuple:
        """Groups that differ in where their crops lie, and in nothing else, are rendered together."""
        return replace(group.policy, scale=(0, 0), ratio=(0, 0)), group.size, self._normalise_last(group)

    def _sources(
        self, groups: tuple[Group, ...], order: Sequence[Indices[Tensor]], aspect: Tensor
    ) -> Sequence[Sequence[Source]]:
        """What the views of each group are drawn from, and its mixing if it is mixed: seeds; where that is compiled,
        the numbers themselves. A compiler that sees the hash puts it into every kernel that uses a number."""
        seeds = [[parts[0], parts[-1]] if group.mix.on else [parts[0]] for group, parts in zip(groups, order)]
        if not self.functions.compiles:
            return seeds
        if groups not in self.operations:
            asked = [name for group, some in zip(groups, seeds) for name in _operations(group, some, aspect)]
            self.operations[groups] = tuple(dict.fromkeys(asked))
        operations, flat = self.operations[groups], [some for parts in seeds for some in parts]
        constants = columns(aspect.device), keys_of(operations, aspect.device)
        table = self.functions(tabulate)(torch.cat(flat), *constants)
        parts = iter(table.split([len(some) for some in flat], dim=1))
        return [[Tabled(next(parts), operations) for _ in some] for some in seeds]

    def _views(self, group: Group, order: Indices[Tensor], mixing: Sequence[Source], images: Tensor) -> Views:
        if not group.mix.on:
            return Views(images if len(order) == 1 else images[order[1]], group.count)
        _, own, partner, mixed_in, _ = order
        quantiles = quantiles_of(group.mix, images.device)
        recipe = self.functions.draw(draw_mix, mixing[0], quantiles, mix=group.mix, size=group.size)
        mix = self.functions(mix_rows, normalise=self._normalise_last(group), dtype=self.dtype)
        return Views(mix(images, own, partner, recipe), group.count, mixed_in, recipe.lam)

    def _boxes(self, group: Group, order: Indices[Tensor], source: Source, aspect: Tensor) -> Tensor:
        places = self.functions.draw(draw_places, source, aspect, policy=group.policy)
        return places if len(order) == 1 else places[order[1]]

    def _normalise_last(self, group: Group) -> Normaliser | None:
        """Mixing and normalising can change places, unless noise that is normal already comes between them. After
        mixing it costs nothing."""
        return self.normalise if group.mix.on and not group.policy.erase else None

    def _images(
        self, groups: list[Group], sources: Sequence[Source], pixels: Tensor, aspect: Tensor
    ) -> tuple[Tensor, ...]:
        size, last = groups[0].size, self._normalise_last(groups[0])
        normalise = None if last else self.normalise
        make = self.functions(render, policy=groups[0].policy, size=size, normalise=normalise, dtype=self.dtype)
        noise = noise_bank(pixels.device)
        counts = [group.count for group in groups]

        def paint(sources: Sequence[Source], pixels: Tensor, aspect: Tensor) -> Tensor:
            numbers = [
                self.functions.draw(draw_numbers, source, aspect, policy=group.policy, size=size)
                for group, source in zip(groups, sources)
            ]
            return make(_joined(numbers), pixels, noise)

        def from_seeds(seeds: Tensor, pixels: Tensor, aspect: Tensor) -> Tensor:
            return paint(seeds.split([count * len(pixels) for count in counts]), pixels, aspect)

        if pixels.device.type == "cpu" and not self.functions.compiles:
            together = in_threads(from_seeds, torch.cat(cast(list[Tensor], sources)), pixels, aspect)
        else:
            together = paint(sources, pixels, aspect)
        return together.split([count * len(pixels) for count in counts])


def _operations(group: Group, seeds: list[Tensor], aspect: Tensor) -> list[str]:
    """Of which the group draws numbers."""
    device = aspect.device
    views = Noting.from_seeds(seeds[0], columns(device))
    draw_numbers(views, aspect, policy=group.policy, size=group.size)
    if not group.mix.on:
        return views.operations
    mixing = Noting.from_seeds(seeds[1], columns(device))
    draw_mix(mixing, quantiles_of(group.mix, device), mix=group.mix, size=group.size)
    return views.operations + mixing.operations


def _joined(numbers: list[Numbers]) -> Numbers:
    """Of several groups that have the same steps."""
    if len(numbers) == 1:
        return numbers[0]
    boxes, flips, steps, erasing = zip(*numbers)
    return Numbers(
        torch.cat(boxes),
        None if flips[0] is None else torch.cat(flips),
        tuple(tuple(map(torch.cat, zip(*drawn))) for drawn in zip(*steps)),
        tuple(map(torch.cat, zip(*erasing))),
    )


class FunctionCache:
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

    def draw(self, function: Callable[..., Drawn], source: Source, *others: Any, **settings: Any) -> Drawn:
        """`function(draws, *others)`."""
        if isinstance(source, Tensor):
            return function(Draws.from_seeds(source, columns(source.device)), *others, **settings)
        return self(_draw_tabled, draw=function, operations=source.operations, **settings)(source.state, *others)


def _draw_tabled(
    table: Tensor, *others: Any, draw: Callable[..., Drawn], operations: tuple[str, ...], **settings: Any
) -> Drawn:
    return draw(Tabled(table, operations), *others, **settings)


class Numbers(NamedTuple):
    """All that is drawn for the views of a group, [V * B, ...] each."""

    boxes: Tensor
    flip: Tensor | None  # of a flip that comes first
    steps: tuple[tuple[Tensor, ...], ...]  # of the others
    erasing: tuple[Tensor, ...]


def draw_numbers(draws: Draws, aspect: Tensor, *, policy: Policy, size: int) -> Numbers:
    """For as many views of every image as there are draws for it, view by view."""
    boxes = boxes_of(draws, policy, aspect.repeat(draws.images // len(aspect)))
    first, others = policy.flip_first
    flip = draw_step(draws, first)[0] if first else None
    erasing = draw_erasing(draws, policy.erase, size) if policy.erase > 0 else ()
    return Numbers(boxes, flip, tuple(draw_step(draws, step) for step in others), erasing)


def draw_places(draws: Draws, aspect: Tensor, *, policy: Policy) -> Tensor:
    """Where these views are cut from (`Views.boxes`)."""
    if not policy.stays_put:
        raise ValueError("these views are moved after they are cut: their places are not known")
    first, _ = policy.flip_first
    boxes = boxes_of(draws, policy, aspect.repeat(draws.images // len(aspect)))
    if first is None:
        return boxes
    (left, top, width, height), mirrored = boxes.unbind(1), draw_step(draws, first)[0]
    return torch.stack(
        [torch.where(mirrored, left + width, left), top, torch.where(mirrored, -width, width), height], dim=1
    )


def render(
    numbers: Numbers,
    pixels: Tensor,
    noise: Tensor,
    *,
    policy: Policy,
    size: int,
    normalise: Normaliser | None,
    dtype: torch.dtype,
) -> Tensor:
    """The views; without a normaliser, in 0..255. A flip that comes first is free: the crop turns its matrix round."""
    images = crop(pixels, numbers.boxes, size, policy.filter, numbers.flip)
    images = apply_steps(images, policy.flip_first[1], numbers.steps)
    if normalise is None:
        return images
    images = normalise(images)
    if numbers.erasing:
        images = erase(images, numbers.erasing, noise)
    return images.to(dtype, memory_format=torch.contiguous_format)


def mix_rows(
    images: Tensor,
    own: Tensor,
    partner: Tensor,
    recipe: Recipe,
    *,
    normalise: Normaliser | None,
    dtype: torch.dtype,
) -> Tensor:
    """The rows `own` of `images`, each mixed with its row of `partner`."""
    mixed = mix_images(images[own], images[partner], recipe)
    return (normalise(mixed) if normalise else mixed).to(dtype)


def boxes_of(draws: Draws, policy: Policy, aspect: Tensor) -> Tensor:
    if policy.centre:
        return centre_boxes(aspect, policy.centre)
    return random_boxes(draws, aspect, policy.scale, policy.ratio)
