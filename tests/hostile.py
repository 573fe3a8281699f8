"""Hostile input for property-based tests: JSON of any shape, damaged bytes, damaged records."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from vitling.errors import RunAborted, UserError

QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

names = st.text(max_size=12)
leaves: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 0, 1, 2**31, 2**63, -(2**64), 10**400]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "auto", "hf-hub:x/y", "\x1b]0;owned\x07", "[red]x[/]", "=1+1", "../../x", "\ud800"]),
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=8
)
deep = st.integers(65, 3000).map(lambda levels: "[" * levels + "]" * levels)
json_texts = st.one_of(values.map(json.dumps), deep, st.just("9" * 5000), st.text(max_size=60), st.just("{" * 100_000))


def list_places(value: Any, place: tuple = ()) -> list[tuple]:
    """List the places of all values in nested dicts and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, one in inner for found in list_places(one, (*place, key)))]


def replace_at(value: Any, place: tuple, new: Any) -> Any:
    if not place:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = replace_at(value[place[0]], place[1:], new)
    return copy


def damaged_records(record: Any) -> st.SearchStrategy[Any]:
    """Replace one value of a record, at any depth, by any other."""
    places = st.sampled_from(list_places(record))
    return st.builds(lambda place, new: replace_at(record, place, new), places, values)


@st.composite
def damaged_bytes(draw: Any, content: bytes) -> bytes:
    """Cut a file short, or overwrite some of its bytes."""
    if draw(st.booleans()):
        return content[: draw(st.integers(0, len(content) - 1))]
    raw = bytearray(content)
    for _ in range(draw(st.integers(1, 6))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw)


def accepts_or_refuses(function: Any, *arguments: Any) -> Any:
    """Call; return the value, or None after a UserError or RunAborted. Other exceptions pass, and fail the test."""
    try:
        return function(*arguments)
    except (UserError, RunAborted) as refusal:
        message = str(refusal)
    assert 0 < len(message) < 1500
    return None
