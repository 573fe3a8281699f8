"""`vitling list`."""

from __future__ import annotations

from typing import Annotated, Literal

from rich.table import Table
from tyro.conf import Positional, arg

from vitling.console import Console, make_table


def list_(
    what: Annotated[
        Literal["methods", "backbones", "datasets", "policies", "tables"],
        Positional,
        arg(metavar="{methods,backbones,datasets,policies,tables}"),
    ],
) -> None:
    """List methods, backbones, datasets, policies or tables.

    Args:
        what: methods: pre-training methods. backbones: tested networks. policies: the papers' augmentations.
            datasets: the papers' datasets and where to get them.
            tables: what `vitling reproduce` can run, and the data it needs.
    """
    tables = {
        "methods": _method_table,
        "backbones": _backbone_table,
        "datasets": _dataset_table,
        "policies": _policy_table,
        "tables": _study_table,
    }
    Console().print(tables[what]())


def _method_table() -> Table:
    from vitling.methods import METHODS

    table = Table("name", "what it does", "labels")
    for name, method in METHODS.items():
        table.add_row(name, method.summary, "no" if method.labels == "ignored" else "yes")
    table.caption = "vitling pretrain --method NAME, or train --method NAME: docs/methods.md"
    return table


def _backbone_table() -> Table:
    from vitling.backbones.names import list_backbones

    caption = "parameters without a head; size in pixels; most other timm names of these families work too"
    table = make_table(["name"], ("parameters", "size", "grid", "width"), caption)
    for entry in list_backbones():
        grid = f"{entry.grid} x {entry.grid}"
        table.add_row(entry.name, f"{entry.parameters:,}", str(entry.size), grid, str(entry.dim))
    return table


def _dataset_table() -> Table:
    from vitling.papers.datasets import ENTRIES

    table = Table("name", "contents, licence, origin")
    for entry in ENTRIES.values():
        images = " + ".join(f"{n:,}" for n in (entry.train, entry.val, entry.test) if n)
        classes = f"{entry.classes:,} classes, " if entry.classes else ""
        metric = f"; {entry.metric}" if entry.test else ""
        about = f"{entry.title}: {classes}{images} images{metric}; {', '.join(entry.tables)}"
        table.add_row(entry.name, f"{about}\nlicence: {entry.licence}\nfrom: {entry.where}")
    table.caption = "vitling train NAME:DIR, and every other command; layouts and notes: docs/datasets.md"
    return table


def _policy_table() -> Table:
    from vitling.views.policies import POLICIES

    table = Table("name", "views", "description")
    for name, policy in POLICIES.items():
        views = ", ".join(f"{group.count} x {group.size} px" for group in policy().groups)
        table.add_row(name, views, (policy.__doc__ or "").partition("\n")[0])
    return table


def _study_table() -> Table:
    from vitling.papers.studies import all_studies

    table = Table("name", "contents", "data")
    for study in all_studies():
        names = " ".join((study.name, *study.also))
        table.add_row(names, f"{study.title}; {len(study.runs)} runs", ", ".join(study.data) or "none")
    table.caption = "vitling reproduce NAME --data DIR, where DIR has a folder for each dataset"
    return table
