"""What `vitling list` shows: methods, backbones, data sets, policies, tables of the papers."""

from __future__ import annotations

from rich.table import Table

from vitling.backbones.names import table as backbones
from vitling.methods.registry import METHODS
from vitling.papers.datasets import ENTRIES
from vitling.papers.datasets.entry import Entry
from vitling.papers.studies import all_studies
from vitling.views.policies import POLICIES


def backbone_table() -> Table:
    table = Table("name")
    for column in ("parameters", "size", "grid", "width"):
        table.add_column(column, justify="right", no_wrap=True)
    for entry in backbones():
        grid = f"{entry.grid} x {entry.grid}"
        table.add_row(entry.name, f"{entry.parameters:,}", str(entry.size), grid, str(entry.dim))
    table.caption = "parameters without a head; size in pixels; most other timm names of these families work too"
    return table


def study_table() -> Table:
    table = Table("name", "what", "data")
    for study in all_studies():
        names = " ".join((study.name, *study.also))
        table.add_row(names, f"{study.title}; {len(study.runs)} runs", ", ".join(study.data) or "none")
    table.caption = "vitling reproduce NAME --data DIR, with one folder in DIR for each of the data"
    return table


def dataset_table() -> Table:
    table = Table("name", "what, licence, from whom")
    for entry in ENTRIES.values():
        table.add_row(entry.name, "\n".join(described(entry)))
    table.caption = "vitling train NAME:DIR, and any other verb; layouts and notes: docs/datasets.md"
    return table


def described(entry: Entry) -> list[str]:
    images = " + ".join(f"{n:,}" for n in (entry.train, entry.val, entry.test) if n)
    classes = f"{entry.classes:,} classes, " if entry.classes else ""
    metric = f"; {entry.metric}" if entry.test else ""
    about = f"{entry.title}: {classes}{images} images{metric}; {', '.join(entry.tables)}"
    return [about, f"licence: {entry.licence}", f"from: {entry.where}"]


def method_table() -> Table:
    table = Table("name", "what it does", "labels")
    for name, method in METHODS.items():
        table.add_row(name, method.what, {"ignored": "no"}.get(method.labels, "yes"))
    table.caption = "vitling pretrain --method NAME, or train --method NAME: docs/methods.md"
    return table


def policy_table() -> Table:
    table = Table("name", "views", "what it is")
    for name, policy in POLICIES.items():
        views = ", ".join(f"{group.count} x {group.size} px" for group in policy().groups)
        table.add_row(name, views, (policy.__doc__ or "").partition("\n")[0])
    return table
