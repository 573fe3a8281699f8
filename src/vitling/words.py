"""Words for numbers. No torch here."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """`1 epoch`, `2 epochs`, `1,498 images`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
