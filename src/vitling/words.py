"""Words for numbers. No torch here."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """`1 epoch`, `2 epochs`, `1,498 images`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def trial_of(epochs: int | None, before: str = "") -> str:
    """What is said of a study's results that are no more than that; of others nothing."""
    return f"{before}a trial of {counted(epochs, 'epoch')}" if epochs else ""
