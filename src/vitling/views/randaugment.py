"""RandAugment in the two forms of the papers.

Every image has its own operation and strength, yet a layer is three batched passes (warp, blend, table), each over the
images that need it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitling.views import colour, tables, warp
from vitling.views.draws import Draws
from vitling.views.erasing import rectangle
from vitling.views.masked import apply_masked_rare, per_image, select_rare, works_on_whole_batch
from vitling.views.plan import Filter, RandAugment

OPERATIONS = {
    # timm's rand-m9-mstd0.5-inc1: strength from N(9, 0.5), clipped to 0..10
    "timm": (
        "autocontrast", "equalise", "invert", "rotate", "posterise", "solarise", "solarise_add", "saturation",
        "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y",
    ),
    # IDMM's fine-tuning: strength 1/9, ..., 9/9
    "uda": (
        "invert", "cutout", "sharpness", "autocontrast", "posterise", "shear_x", "shear_y", "translate_x",
        "translate_y", "rotate", "equalise", "contrast", "saturation", "solarise", "brightness",
    ),
}  # fmt: skip
LAYERS, PROBABILITY = 2, 0.5  # operations per image, each applied with this probability
FILL = {"timm": (124.0, 116.0, 104.0), "uda": (128.0, 128.0, 128.0)}  # colour outside a warped image
_ALL = tuple(dict.fromkeys(OPERATIONS["timm"] + OPERATIONS["uda"]))
NUMBER = {name: k for k, name in enumerate(_ALL)}
NOTHING = len(_ALL)
_WARPS = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
_BLENDS = ("brightness", "contrast", "saturation", "sharpness")
_TABLES = ("invert", "posterise", "solarise", "solarise_add", "autocontrast", "equalise")
_PERIOD = len(OPERATIONS["timm"]) / PROBABILITY  # one image in 30 gets a given operation, in both styles


def draw_rand_augment(draws: Draws, step: RandAugment) -> tuple[Tensor, ...]:
    """Draw for each layer the operation [B], its amount, and the centre of a cutout."""
    names, numbers = OPERATIONS[step.style], []
    for layer in range(LAYERS):
        u = draws.uniform(f"randaugment-{layer}", 6)
        operation = torch.where(u[:, 1] < PROBABILITY, _choose(u[:, 0], names), NOTHING)
        fraction = _timm_strength(u) if step.style == "timm" else ((u[:, 2] * 9).floor() + 1) / 9
        sign = torch.where(u[:, 4] < 0.5, -1.0, 1.0)
        numbers += [operation, scale_amounts(operation, fraction, sign, step.style), u[:, 5], u[:, 3]]
    return tuple(numbers)


def rand_augment(images: Tensor, step: RandAugment, numbers: tuple[Tensor, ...]) -> Tensor:
    for first in range(0, len(numbers), 4):
        operation, amount, across, down = numbers[first : first + 4]
        images = apply_layer(images, operation, amount, FILL[step.style], step.filter, across, down)
    return images


def _choose(u: Tensor, names: tuple[str, ...]) -> Tensor:
    """Choose one of the names for each image, as its number."""
    choice = (u * len(names)).long()
    number = torch.full_like(choice, NOTHING)
    for k, name in enumerate(names):
        number = torch.where(choice == k, NUMBER[name], number)
    return number


def scale_amounts(operation: Tensor, fraction: Tensor, sign: Tensor, style: str) -> Tensor:
    """Convert strengths in 0..1 to each operation's unit: degrees, fractions, bits, thresholds, factors."""
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
    """Apply `operation` [B] (as in `NUMBER`) with its `amount` [B]; `across` and `down` are the centre of a cutout."""
    background = colour.per_channel(fill[: images.shape[1]], images.device)

    def move(images: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
        return warp.warp(images, _make_maps(operation, amount, images.shape[-1]), background, filter)

    for names, change in ((_WARPS, move), (_BLENDS, _blend), (_TABLES, _look_up)):
        mask = torch.stack([operation == NUMBER[name] for name in names]).any(dim=0)
        images = apply_masked_rare(images, mask, len(names) / _PERIOD, change, operation, amount)
    hole = _make_cutout(operation, amount, across, down, images.shape[-1])
    return torch.where(hole[:, None], background.to(images.dtype), images)


def _make_maps(operation: Tensor, amount: Tensor, size: int) -> Tensor:
    """Make the affine maps. Shears fix the upper left corner, as in PIL, so they also translate by half the size."""
    half = size / 2 * amount
    zero = torch.zeros_like(amount)
    maps = warp.identity(len(amount), amount.device)
    for name, candidate in (
        ("rotate", warp.rotation(amount)),
        ("shear_x", warp.shear_x(amount, half)),
        ("shear_y", warp.shear_y(amount, half)),
        ("translate_x", warp.translation(amount * size, zero)),
        ("translate_y", warp.translation(zero, amount * size)),
    ):
        maps = torch.where((operation == NUMBER[name])[:, None, None], candidate, maps)
    return maps


def _blend(images: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    def has(name: str) -> Tensor:
        return per_image(operation == NUMBER[name])

    other = torch.where(has("contrast"), colour.mean_grey(images), colour.grey(images)).expand_as(images)
    other = torch.where(has("brightness"), 0.0, other)
    other = torch.where(has("sharpness"), colour.smooth(images), other)
    return colour.blend(images, other, amount)


def _look_up(images: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    table = tables.identity(images.device)
    for name, candidate in (
        ("invert", tables.invert(images.device)),
        ("posterise", tables.posterise(amount.clamp(0, 8))),
        ("solarise", tables.solarise(amount)),
        ("solarise_add", tables.solarise_add(amount)),
        ("autocontrast", tables.autocontrast(images)),
        ("equalise", _equalise(images, operation == NUMBER["equalise"])),
    ):
        table = torch.where((operation == NUMBER[name])[:, None, None], candidate, table)
    return tables.look_up(images, table)


def _equalise(images: Tensor, mask: Tensor) -> Tensor:
    """Make the tables in `mask` only, about one in six: histograms are expensive."""
    index = select_rare(mask, 1 / len(_TABLES)) if works_on_whole_batch(images) else mask.nonzero()[:, 0]
    identity = tables.identity(images.device).repeat(*images.shape[:2], 1)
    return identity.index_copy(0, index, tables.equalise(images[index]))


def _make_cutout(operation: Tensor, amount: Tensor, across: Tensor, down: Tensor, size: int) -> Tensor:
    side = torch.where(operation == NUMBER["cutout"], amount.round(), 0.0)
    top, left = (down * size - side / 2).floor(), (across * size - side / 2).floor()
    return rectangle(top, left, side, side, size)


def _timm_strength(u: Tensor) -> Tensor:
    """Draw from N(9, 0.5) clipped to 0..10, over 10, by the Box-Muller transform."""
    normal = torch.sqrt(-2 * torch.log(u[:, 2].clamp(min=1e-7))) * torch.cos(2 * torch.pi * u[:, 3])
    return (9 + 0.5 * normal).clamp(0, 10) / 10
