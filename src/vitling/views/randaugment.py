"""RandAugment in the two forms of the papers. Every image has an operation and a strength of its own, yet a layer is
three batched passes, one warp, one blend, one table, each over the images that want it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitling.views import colour, tables, warp
from vitling.views.chosen import apply_to_few, few, whole_batches
from vitling.views.config import Filter, RandAugment
from vitling.views.draws import Draws
from vitling.views.erasing import rectangle

OPERATIONS = {
    # timm's rand-m9-mstd0.5-inc1: strength from N(9, 0.5), cut to 0..10
    "timm": (
        "autocontrast", "equalise", "invert", "rotate", "posterise", "solarise", "solarise_add", "saturation",
        "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y",
    ),
    # IDMM's fine-tuning: strength one of 1/9, ..., 9/9
    "uda": (
        "invert", "cutout", "sharpness", "autocontrast", "posterise", "shear_x", "shear_y", "translate_x",
        "translate_y", "rotate", "equalise", "contrast", "saturation", "solarise", "brightness",
    ),
}  # fmt: skip
LAYERS, PROBABILITY = 2, 0.5
FILL = {"timm": (124.0, 116.0, 104.0), "uda": (128.0, 128.0, 128.0)}
_ALL = tuple(dict.fromkeys(OPERATIONS["timm"] + OPERATIONS["uda"]))
NUMBER = {name: k for k, name in enumerate(_ALL)}
NOTHING = len(_ALL)
_WARPS = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
_BLENDS = ("brightness", "contrast", "saturation", "sharpness")
_TABLES = ("invert", "posterise", "solarise", "solarise_add", "autocontrast", "equalise")
_EACH = len(OPERATIONS["timm"]) / PROBABILITY  # one image in so many has a given operation


def draw_rand_augment(draws: Draws, step: RandAugment) -> tuple[Tensor, ...]:
    """For each layer: the operation [B], its amount, and where a cutout lies."""
    names, numbers = OPERATIONS[step.style], []
    for layer in range(LAYERS):
        u = draws.uniform(f"randaugment-{layer}", 6)
        operation = torch.where(u[:, 1] < PROBABILITY, _numbers(u[:, 0], names), NOTHING)
        fraction = _timm_strength(u) if step.style == "timm" else ((u[:, 2] * 9).floor() + 1) / 9
        sign = torch.where(u[:, 4] < 0.5, -1.0, 1.0)
        numbers += [operation, amounts(operation, fraction, sign, step.style), u[:, 5], u[:, 3]]
    return tuple(numbers)


def rand_augment(images: Tensor, step: RandAugment, numbers: tuple[Tensor, ...]) -> Tensor:
    for first in range(0, len(numbers), 4):
        operation, amount, across, down = numbers[first : first + 4]
        images = apply_layer(images, operation, amount, FILL[step.style], step.filter, across, down)
    return images


def _numbers(u: Tensor, names: tuple[str, ...]) -> Tensor:
    """One of the names for each image, as its number."""
    place = (u * len(names)).long()
    number = torch.full_like(place, NOTHING)
    for k, name in enumerate(names):
        number = torch.where(place == k, NUMBER[name], number)
    return number


def amounts(operation: Tensor, fraction: Tensor, sign: Tensor, style: str) -> Tensor:
    """What each image's operation takes, from its strength in 0..1: degrees, shares, bits, thresholds, factors."""
    timm = style == "timm"
    by_name = {
        "rotate": 30 * fraction * (sign if timm else 1.0),
        "shear_x": 0.3 * fraction * sign,
        "shear_y": 0.3 * fraction * sign,
        "translate_x": (0.45 if timm else 150 / 331) * fraction * sign,
        "translate_y": (0.45 if timm else 150 / 331) * fraction * sign,
        "posterise": 4 - (4 * fraction).floor() if timm else (8 - 4 * fraction).round(),
        "solarise": 256 - (256 * fraction).floor() if timm else 256 * (1 - fraction),
        "solarise_add": (110 * fraction).floor().clamp(max=128),
        "cutout": 20 * fraction,
    }
    factor = 1 + 0.9 * fraction * sign
    by_name |= dict.fromkeys(_BLENDS, factor.clamp(min=0.1))
    amount = torch.zeros_like(fraction)
    for name, value in by_name.items():
        amount = torch.where(operation == NUMBER[name], value, amount)
    return amount


def apply_layer(
    images: Tensor,
    operation: Tensor,
    amount: Tensor,
    fill: tuple[float, ...],
    filter: Filter,
    across: Tensor,
    down: Tensor,
) -> Tensor:
    """`operation` [B] (numbers in `NUMBER`) with its `amount` [B]; `across` and `down` place a cutout."""
    background = colour.per_channel(fill[: images.shape[1]], images.device)

    def moved(images: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
        return warp.warp(images, _maps(operation, amount, images.shape[-1]), background, filter)

    for names, change in ((_WARPS, moved), (_BLENDS, _blends), (_TABLES, _through_tables)):
        chosen = torch.stack([operation == NUMBER[name] for name in names]).any(dim=0)
        images = apply_to_few(images, chosen, len(names) / _EACH, change, operation, amount)
    hole = _cutout(operation, amount, across, down, images.shape[-1])
    return torch.where(hole[:, None], background.to(images.dtype), images)


def _maps(operation: Tensor, amount: Tensor, size: int) -> Tensor:
    """Shears keep the upper left corner, as PIL's AFFINE does: from the middle they also move by half the size."""
    half = size / 2 * amount
    none = torch.zeros_like(amount)
    shear_x = warp.shear_x(amount) + _moved(half, none)
    shear_y = warp.shear_y(amount) + _moved(none, half)
    maps = warp.identity(len(amount), amount.device)
    for name, candidate in (
        ("rotate", warp.rotation(amount)),
        ("shear_x", shear_x),
        ("shear_y", shear_y),
        ("translate_x", warp.translation(amount * size, none)),
        ("translate_y", warp.translation(none, amount * size)),
    ):
        maps = torch.where((operation == NUMBER[name])[:, None, None], candidate, maps)
    return maps


def _moved(across: Tensor, down: Tensor) -> Tensor:
    none = torch.zeros_like(across)
    return torch.stack([torch.stack([none, none, across], 1), torch.stack([none, none, down], 1)], 1)


def _blends(images: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    def chosen(name: str) -> Tensor:
        return (operation == NUMBER[name])[:, None, None, None]

    other = torch.where(chosen("contrast"), colour.mean_grey(images), colour.grey(images)).expand_as(images)
    other = torch.where(chosen("brightness"), 0.0, other)
    other = torch.where(chosen("sharpness"), colour.smooth(images), other)
    return colour.blend(images, other, amount)


def _through_tables(images: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    batch, channels = images.shape[:2]
    chosen = tables.identity(batch, channels, images.device)
    for name, candidate in (
        ("invert", tables.invert(batch, channels, images.device)),
        ("posterise", tables.posterise(amount.clamp(0, 8), channels)),
        ("solarise", tables.solarise(amount, channels)),
        ("solarise_add", tables.solarise_add(amount, channels)),
        ("autocontrast", tables.autocontrast(images)),
        ("equalise", _equalised(images, operation == NUMBER["equalise"])),
    ):
        chosen = torch.where((operation == NUMBER[name])[:, None, None], candidate, chosen)
    return tables.look_up(images, chosen)


def _equalised(images: Tensor, wanted: Tensor) -> Tensor:
    """Histograms are dear: one table in six is made of one."""
    index = few(wanted, 1 / len(_TABLES)) if whole_batches(images) else wanted.nonzero()[:, 0]
    everyone = tables.identity(len(images), images.shape[1], images.device).clone()
    return everyone.index_copy(0, index, tables.equalise(images[index]))


def _cutout(operation: Tensor, amount: Tensor, across: Tensor, down: Tensor, size: int) -> Tensor:
    side = torch.where(operation == NUMBER["cutout"], amount.round(), 0.0)
    top, left = (down * size - side / 2).floor(), (across * size - side / 2).floor()
    return rectangle(top, left, side, side, size)


def _timm_strength(u: Tensor) -> Tensor:
    """N(9, 0.5) cut to 0..10, over 10; Box and Muller."""
    normal = torch.sqrt(-2 * torch.log(u[:, 2].clamp(min=1e-7))) * torch.cos(2 * torch.pi * u[:, 3])
    return (9 + 0.5 * normal).clamp(0, 10) / 10
