"""Ranges of settings, annotated on the fields: `lr: Annotated[float | None, NOT_NEGATIVE] = None`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from vitling.errors import UserError


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both allowed unless excluded; infinity and NaN never are."""

    low: float
    high: float = math.inf
    low_excluded: bool = False
    high_excluded: bool = False
    also: tuple[float, ...] = ()  # values with a special meaning
    planned: float | None = None  # value that the plan replaces
    ordered: bool = False  # of several numbers, none is smaller than the one before

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.low_excluded else value >= self.low
        below = value < self.high if self.high_excluded or self.high == math.inf else value <= self.high
        return value in self.also or value == self.planned or (above and below)

    def __str__(self) -> str:
        low = f"above {self.low:.15g}" if self.low_excluded else f"at least {self.low:.15g}"
        if self.high == math.inf:
            return low
        return f"{low} and {'below' if self.high_excluded else 'at most'} {self.high:.15g}"

    def explain(self, flag: str, wrong: float) -> str:
        """Describe the numbers that a flag accepts, for an error about one that it does not."""
        finite = isinstance(wrong, int) or math.isfinite(wrong)
        return f"{flag} {str(wrong)[:40]}: must be {'' if finite else 'a finite number, '}{self}."


AT_LEAST_1 = Range(1, 2**31 - 1)  # of whole numbers; tensors of a larger size are not possible
LARGEST = 1e15  # far more than any use, and far less than float32 can hold
NOT_NEGATIVE = Range(0, LARGEST)
NOT_NEGATIVE_OR_INF = Range(0, LARGEST, also=(math.inf,))
POSITIVE = Range(0, LARGEST, low_excluded=True)
MIX_ALPHA = Range(1e-3, 1e3, also=(0.0,))  # of a Beta distribution; 0 switches the mixing off
TEST_SCALE = Range(0.1, 10)  # of an image; the paper's are 0.5 to 1.75
FRACTION = Range(0, 1)
FRACTION_BELOW_1 = Range(0, 1, high_excluded=True)
FRACTION_ABOVE_0 = Range(0, 1, low_excluded=True)
DEGREES = Range(0, 180)
SEED = Range(0, 2**32 - 1)  # what every random generator takes
SIDE = Range(1, 16_384)  # pixels
MINUTES = Range(0, 1e6, low_excluded=True)
MEAN, STD = Range(-1e3, 1e3), Range(1e-6, 1e3)  # of the pixels of a channel
CHANNELS = Range(1, 1024)
CROPS, MORE_CROPS = Range(1, 100), Range(0, 100)  # of an image
BITS = Range(1, 16)
SCALE = Range(0, 1, low_excluded=True, ordered=True)  # smallest and largest fraction of an image's area


def check_ranges(config: Any, path: str = "", where: str | os.PathLike = "") -> None:
    """Raise UserError for a value outside the range or the choices of its field; nested configs included.

    The error names the flag, or the field of the file `where`. A value that stands for a planned number cannot be
    passed: it is an error in fields that are `explicit`.
    """
    kind: Any = type(config)
    explicit = {f"{path}{name}" for name in getattr(config, "explicit", ())}
    for name, (ranges, choices) in _limits(kind).items():
        value = getattr(config, name)
        flag = f"{os.fspath(where)}, {path}{name}" if where else f"--{path}{name.rstrip('_').replace('_', '-')}"
        if choices and value is not None and value not in choices:
            raise UserError(f"{flag} {value}: choose from {', '.join(choices)}.")
        if ranges and value == () and kind.__dataclass_fields__[name].default != ():
            raise UserError(f"{flag} needs at least one number.")
        numbers = [n for n in (value if isinstance(value, tuple) else (value,)) if n is not None]
        for limits in ranges:
            planned = [n for n in numbers if n == limits.planned and name in explicit]
            if wrong := [n for n in numbers if n not in limits] or planned:
                raise UserError(limits.explain(flag, wrong[0]))
            if limits.ordered and numbers != sorted(numbers):
                raise UserError(f"{flag} {' '.join(map(str, numbers))}: the smaller number comes first.")
    for f in fields(config):
        if is_dataclass(nested := getattr(config, f.name)):
            check_ranges(nested, f"{path}{f.name.replace('_', '-')}.", where)


@cache
def _limits(kind: type) -> dict[str, tuple[tuple[Range, ...], tuple[str, ...]]]:
    hints = get_type_hints(kind, include_extras=True)
    found = {f.name: (_ranges(hints[f.name]), _choices(hints[f.name])) for f in fields(kind)}
    return {name: limits for name, limits in found.items() if any(limits)}


def _ranges(hint: Any) -> tuple[Range, ...]:
    own = getattr(hint, "__metadata__", ()) if get_origin(hint) is Annotated else ()
    return tuple(extra for extra in own if isinstance(extra, Range))


def _choices(hint: Any) -> tuple[str, ...]:
    """Return the strings of a Literal, or of a Literal | None; nothing for other types."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    kinds = [hint] if get_origin(hint) is Literal else [kind for kind in get_args(hint) if kind is not type(None)]
    if not kinds or any(get_origin(kind) is not Literal for kind in kinds):
        return ()
    return tuple(choice for kind in kinds for choice in get_args(kind))
