"""An Inspection on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from vitling.data.inspection import Inspection

SHOWN = 10
ENDS = 8


def render(found: Inspection, console: Console) -> None:
    console.print(_splits(found))
    if found.splits["train"].classes:
        console.print(_classes(found))
    for title, clusters in (("the same bytes", "exact_duplicates"), ("the same to the eye", "near_duplicates")):
        for split, facts in found.splits.items():
            _list(console, f"{split}: {title}", [" = ".join(keys[:4]) for keys in getattr(facts, clusters)])
    leaks = [f"{leak['split']} {leak['key']} = train {leak['train_key']} ({leak['kind']})" for leak in found.leakage]
    _list(console, "in train as well", leaks)
    _list(console, "cannot be used", [f"{file.split} {file.key}: {file.reason}" for file in found.bad])
    for note in found.notes:
        console.print(escape(note), highlight=False)
    for warning in found.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}", highlight=False)


def _splits(found: Inspection) -> Table:
    table = Table(title=f"{escape(found.name)} ({found.task} label)" if found.task != "none" else escape(found.name))
    for column in ("", *found.splits):
        table.add_column(column, justify="left" if not column else "right")
    parts = found.splits.values()
    table.add_row("images", *(f"{part.images:,}" for part in parts))
    table.add_row("cannot be decoded", *(f"{part.images - part.usable:,}" for part in parts))
    table.add_row("classes", *(str(sum(n > 0 for n in part.classes.values()) or "-") for part in parts))
    table.add_row("largest / smallest class", *(_or_dash(part.imbalance, "{:.1f}") for part in parts))
    if any(part.groups is not None for part in parts):
        table.add_row("groups", *(_or_dash(part.groups, "{:,}") for part in parts))
    table.add_row("width", *(_range(part.width, "{:.0f}") for part in parts))
    table.add_row("height", *(_range(part.height, "{:.0f}") for part in parts))
    table.add_row("width / height", *(_range(part.aspect, "{:.2f}") for part in parts))
    table.add_row("formats", *(_counted(part.formats) for part in parts))
    table.add_row("modes", *(_counted(part.modes) for part in parts))
    table.add_row("duplicates, exact", *(f"{sum(map(len, part.exact_duplicates)):,}" for part in parts))
    table.add_row("duplicates, near", *(f"{sum(map(len, part.near_duplicates)):,}" for part in parts))
    return table


def _classes(found: Inspection) -> Table:
    """All classes, or, where there are many, the largest and the smallest."""
    labelled = {split: part for split, part in found.splits.items() if part.classes}
    table = Table("class")
    for split in labelled:
        table.add_column(split, justify="right")
    train = found.splits["train"].classes
    names = sorted(train, key=lambda name: -train[name])
    left_out = len(names) - 2 * ENDS
    for k, name in enumerate(names):
        if left_out > 1 and k == ENDS:
            table.add_row(f"({left_out:,} more)", *([""] * len(labelled)))
        if left_out <= 1 or not ENDS <= k < len(names) - ENDS:
            table.add_row(escape(name), *(f"{part.classes[name]:,}" for part in labelled.values()))
    return table


def _list(console: Console, title: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    console.print(f"[bold]{escape(title)}[/] ({len(lines):,})", highlight=False)
    for line in lines[:SHOWN]:
        console.print(f"  {escape(line)}", highlight=False)
    if len(lines) > SHOWN:
        console.print(f"  and {len(lines) - SHOWN:,} more", highlight=False)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _range(values: tuple[float, float, float] | None, form: str) -> str:
    if values is None:
        return "-"
    smallest, median, largest = (form.format(value) for value in values)
    return smallest if smallest == largest else f"{smallest} .. {median} .. {largest}"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items()) or "-"
