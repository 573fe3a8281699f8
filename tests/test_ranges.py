"""Ranges beside fields: what is allowed, and the message for what is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from vitling.errors import UserError
from vitling.ranges import AT_LEAST_1, FRACTION, FRACTION_BELOW_1, POSITIVE, SCALE, Range, check_ranges


@dataclass
class Inner:
    kind: Literal["a", "b"] | None = None
    momentum: Annotated[float, FRACTION_BELOW_1] = 0.9


@dataclass
class Outer:
    batch: Annotated[int, Range(1, also=(-1,))] = -1
    minutes: Annotated[float | None, POSITIVE] = None
    flip: Annotated[float, FRACTION] = 0.5
    scale: Annotated[tuple[float, float] | None, SCALE] = None
    from_: Annotated[int, AT_LEAST_1] = 1
    inner: Inner = field(default_factory=Inner)
    free: int = -5
    rates: Annotated[tuple[float, ...] | None, POSITIVE] = None
    drops: Annotated[tuple[float, ...], FRACTION] = ()


@pytest.mark.parametrize(
    "config",
    [
        Outer(),
        Outer(batch=1, minutes=0.1, flip=0.0, scale=(0.08, 1.0)),
        Outer(flip=1.0, scale=(0.3, 0.3), inner=Inner("b", 0.0)),
    ],
)
def test_values_in_range_pass(config):
    check_ranges(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Outer(batch=0), "--batch 0: must be at least 1"),
        (Outer(minutes=0.0), "--minutes 0.0: must be above 0"),
        (Outer(minutes=float("inf")), "--minutes inf"),
        (Outer(minutes=float("nan")), "--minutes nan"),
        (Outer(flip=1.1), "--flip 1.1: must be at least 0 and at most 1"),
        (Outer(scale=(0.0, 1.0)), "--scale 0.0: must be above 0"),
        (Outer(scale=(0.5, 0.4)), "--scale 0.5 0.4: the smaller number comes first"),
        (Outer(from_=0), "--from 0"),
        (Outer(rates=()), "--rates needs at least one number"),
        (Outer(inner=Inner(kind="c")), "--inner.kind c: choose from a, b"),
        (Outer(inner=Inner(momentum=1.0)), "--inner.momentum 1.0: must be at least 0 and below 1"),
    ],
)
def test_values_out_of_range_are_refused_under_their_flag(config, message):
    with pytest.raises(UserError) as refused:
        check_ranges(config)
    assert message in str(refused.value)
