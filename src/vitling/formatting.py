"""Formatting of counts and lists for messages. No torch here."""

from __future__ import annotations

from collections.abc import Sequence


def format_count(number: int, noun: str) -> str:
    """Format as `1 epoch`, `2 epochs`, `1,498 images`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shorten_list(words: Sequence[str], most: int = 5) -> str:
    """Format as `a, b, c, d, e and 7 more`."""
    rest = len(words) - most
    return ", ".join(words[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def describe_trial(epochs: int | None, prefix: str = "") -> str:
    """Describe a study that was cut to `epochs`; a full-length study (None) gives an empty string."""
    return f"{prefix}a trial of {format_count(epochs, 'epoch')}" if epochs else ""
