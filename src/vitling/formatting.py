"""Formatting of counts and lists for messages. No torch here."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

# control characters except newline and tab, signs that reverse the text's direction, halves of surrogate pairs
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def make_safe(text: str) -> str:
    """Escape characters that a terminal would obey or that cannot be encoded: names come from files."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escape_json(text: str) -> str:
    """Escape the same characters in JSON, which stays equal."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# text that a spreadsheet would take for a formula; a negative number is none
_FORMULA = re.compile(r"'*(?!-[\d.]+$)[=+\-@\t\r]")


def escape_cell(cell: str) -> str:
    """Put ' before a CSV cell that a spreadsheet would take for a formula, as OWASP recommends."""
    return f"'{cell}" if _FORMULA.match(cell) else cell


def unescape_cell(cell: str) -> str:
    """Undo `escape_cell`."""
    return cell.removeprefix("'") if _FORMULA.match(cell) else cell


def format_count(number: int, noun: str) -> str:
    """Format as `1 epoch`, `2 epochs`, `1,498 images`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_mean(values: Sequence[float], digits: int = 2, sign: str = "") -> str:
    """Format as `92.40`, or with the standard deviation of several values as `92.40 ± 0.12`."""
    if not values:
        return ""
    std = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.{digits}f}{std}"


def join_or(words: Sequence[str]) -> str:
    """Join alternatives: "a", "a or b", "a, b or c"."""
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def shorten_list(words: Sequence[str], limit: int = 5) -> str:
    """Format as `a, b, c, d, e and 7 more`."""
    rest = len(words) - limit
    return ", ".join(words[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def describe_trial(epochs: int | None, prefix: str = "") -> str:
    """Describe a study that was cut to `epochs`; a full-length study (None) gives an empty string."""
    return f"{prefix}a trial of {format_count(epochs, 'epoch')}" if epochs else ""
