"""`vitling doctor`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

from rich.table import Column, Table

from vitling.commands.flags import NO_PREFIX
from vitling.console import Console, echo, make_table
from vitling.formatting import format_count
from vitling.settings.doctor import DoctorConfig

if TYPE_CHECKING:
    from vitling.evaluation.suspects import Diagnosis


def doctor(config: Annotated[DoctorConfig, NO_PREFIX]) -> None:
    """Find images whose label is probably wrong.

    Every image is classified by a model that never saw its label. Edit the column label of suspects.csv, and train
    again with --labels.

    Example: vitling doctor runs/first
    """
    from vitling.runs.doctor import diagnose

    found = diagnose(config)
    wrong = "" if found.is_weak else f"about {format_count(round(found.expected_wrong), 'wrong label')}, "
    echo(
        f"{found.images:,} images, {found.classes} classes: {wrong}{format_count(len(found.suspects), 'suspect')}. "
        f"The classifier agrees with {found.agreement:.1%} of the labels."
    )
    if not found.suspects:
        return
    Console().print(_make_table(found, config.top))
    echo(f"Saved to {found.csv} and {found.sheet}")
    if config.out is None:
        echo(f"See and correct them in a browser: vitling report {shlex.quote(config.run)}")
    command = shlex.join(["vitling", "train", found.source, "--labels", found.csv, "--out", "DIR"])
    echo(f"Or edit the column label there, then: {command}")


def _make_table(found: Diagnosis, top: int) -> Table:
    texts = [Column(name, overflow="fold") for name in ("image", "label", "suggested")]
    table = make_table(texts, ("p(label)", "p(suggested)"))
    for one in found.suspects[:top]:
        probabilities = (f"{one.given_probability:.1%}", f"{one.suggested_probability:.1%}")
        table.add_row(one.path, one.given, one.suggested, *probabilities)
    if len(found.suspects) > top:
        table.caption = f"the {top} most suspicious of {len(found.suspects):,}"
    return table
