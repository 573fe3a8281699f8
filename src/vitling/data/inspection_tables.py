"""Tables that show an Inspection on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from vitling.console import Console
from vitling.data.annotations.summary import AnnotationSummary
from vitling.data.inspection import Inspection

MAX_LINES = 10  # of each list
MAX_CLASSES = 8  # at each end, largest and smallest


def print_inspection(found: Inspection, console: Console) -> None:
    console.print(_make_split_table(found))
    if found.splits["train"].classes:
        console.print(_make_class_table({name: split.classes for name, split in found.splits.items() if split.classes}))
    if found.annotations:
        console.print(_make_annotation_table(found.annotations))
        unit = "pixels" if found.task == "segment" else "instances"
        classes = {name: split.classes for name, split in found.annotations.items()}
        console.print(_make_class_table(classes, f"class ({unit})"))
    for title, clusters in (("exact duplicates", "exact_duplicates"), ("near duplicates", "near_duplicates")):
        for split, summary in found.splits.items():
            _print_list(console, f"{split}: {title}", [" = ".join(keys[:4]) for keys in getattr(summary, clusters)])
    for split, found_there in found.annotations.items():
        lines = [f"{problem.file}: {problem.what}" for problem in found_there.problems]
        _print_list(console, f"{split}: left out", lines)
    leaks = [f"{leak['split']} {leak['key']} = train {leak['train_key']} ({leak['kind']})" for leak in found.leakage]
    _print_list(console, "also in train", leaks)
    _print_list(console, "cannot be used", [f"{file.split} {file.key}: {file.reason}" for file in found.bad])
    for note in found.notes:
        console.print(note, highlight=False)
    for warning in found.warnings:
        console.print(Text.assemble(("warning:", "yellow"), f" {warning}"), highlight=False)


def _make_split_table(found: Inspection) -> Table:
    labels = {"none": "", "detect": " (for `vitling detect`)", "segment": " (for `vitling segment`)"}
    table = Table(title=found.name + labels.get(found.task, f" ({found.task} label)"))
    for column in ("", *found.splits):
        table.add_column(column, justify="left" if not column else "right")
    splits = found.splits.values()
    table.add_row("images", *(f"{split.images:,}" for split in splits))
    table.add_row("cannot be decoded", *(f"{split.images - split.usable:,}" for split in splits))
    if not found.annotations:
        table.add_row("classes", *(str(sum(n > 0 for n in split.classes.values()) or "-") for split in splits))
        table.add_row("largest / smallest class", *(_format_or_dash(split.imbalance, "{:.1f}") for split in splits))
    if any(split.groups is not None for split in splits):
        table.add_row("groups", *(_format_or_dash(split.groups, "{:,}") for split in splits))
    table.add_row("width", *(_format_range(split.width, "{:.0f}") for split in splits))
    table.add_row("height", *(_format_range(split.height, "{:.0f}") for split in splits))
    table.add_row("width / height", *(_format_range(split.aspect, "{:.2f}") for split in splits))
    table.add_row("formats", *(_format_counts(split.formats) for split in splits))
    table.add_row("modes", *(_format_counts(split.modes) for split in splits))
    table.add_row("exact duplicates", *(f"{sum(map(len, split.exact_duplicates)):,}" for split in splits))
    table.add_row("near duplicates", *(f"{sum(map(len, split.near_duplicates)):,}" for split in splits))
    table.add_row("content hash", *(split.content_hash for split in splits))
    return table


def _make_class_table(splits: dict[str, dict[str, int]], title: str = "class") -> Table:
    """List all classes of the splits or, if there are many, the largest and the smallest."""
    table = Table(title)
    for column in splits:
        table.add_column(column, justify="right")
    first = next(iter(splits.values()))
    names = sorted(first, key=lambda name: -first[name])
    hidden = len(names) - 2 * MAX_CLASSES
    for k, name in enumerate(names):
        if hidden > 1 and k == MAX_CLASSES:
            table.add_row(f"({hidden:,} more)", *([""] * len(splits)))
        if hidden <= 1 or not MAX_CLASSES <= k < len(names) - MAX_CLASSES:
            table.add_row(name, *(f"{classes[name]:,}" for classes in splits.values()))
    return table


def _make_annotation_table(splits: dict[str, AnnotationSummary]) -> Table:
    table = Table("annotations")
    for column in splits:
        table.add_column(column, justify="right")
    every = splits.values()
    table.add_row("kind", *(split.kind for split in every))
    table.add_row("images without any", *(f"{split.empty:,}" for split in every))
    if any(split.instances is not None for split in every):
        table.add_row("instances", *(_format_or_dash(split.instances, "{:,}") for split in every))
        table.add_row("crowds", *(f"{split.crowds:,}" for split in every))
        table.add_row("instances per image", *(_format_range(split.per_image, "{:.0f}") for split in every))
        table.add_row("square root of area, pixels", *(_format_range(split.side, "{:.0f}") for split in every))
    else:
        table.add_row("pixels without a class", *(_format_or_dash(split.ignored, "{:.1%}") for split in every))
    kinds = dict.fromkeys(kind for split in every for kind in split.problem_counts)
    for kind in kinds:
        table.add_row(f"left out: {kind}", *(f"{split.problem_counts.get(kind, 0):,}" for split in every))
    return table


def _print_list(console: Console, title: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    console.print(Text.assemble((title, "bold"), f" ({len(lines):,})"), highlight=False)
    for line in lines[:MAX_LINES]:
        console.print(f"  {line}", highlight=False)
    if len(lines) > MAX_LINES:
        console.print(f"  and {len(lines) - MAX_LINES:,} more", highlight=False)


def _format_or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _format_range(values: tuple[float, float, float] | None, form: str) -> str:
    if values is None:
        return "-"
    smallest, median, largest = (form.format(value) for value in values)
    return smallest if smallest == largest else f"{smallest} .. {median} .. {largest}"


def _format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items()) or "-"
