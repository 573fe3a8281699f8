"""`vitling inspect`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from tyro.conf import arg

from vitling.commands.flags import Data, Labels, Out
from vitling.console import Console, echo
from vitling.data.annotations.config import AnnotationConfig
from vitling.data.config import DataConfig
from vitling.errors import UserError
from vitling.ranges import SIDE, Range
from vitling.views.plan import Group, Plan

if TYPE_CHECKING:
    from vitling.views.store_loss import StoreLoss


def inspect(
    data_set: Data,
    out: Out = "inspection.json",
    store_loss: Annotated[str | None, arg(metavar="PX|POLICY", help_behavior_hint="")] = None,
    labels: Labels = None,
    data: DataConfig = DataConfig(),  # noqa: B008
    annotations: AnnotationConfig = AnnotationConfig(),  # noqa: B008
) -> None:
    """Find unreadable files, duplicates and leakage in a dataset.

    It also counts images, classes and sizes. DATA is anything that `vitling train`, `detect` or `segment` accepts.

    Args:
        data_set: Your images: a folder, a CSV, a Parquet file, a tar, an npz.
        out: File for the findings, as JSON.
        store_loss: Also measure how much detail the pixel store loses at several sizes.
            Name the size of random crops in pixels, or a policy (`vitling list policies`).
        labels: Corrected labels to inspect the data with: a CSV with the columns path and label.
        data: How images are read.
        annotations: How boxes and masks are read.
    """
    from vitling.console import Log
    from vitling.data.inspection import inspect as inspect_images
    from vitling.data.inspection_tables import print_inspection
    from vitling.files import check_writable, write_json

    check_writable(out)
    plan = None if store_loss is None else _parse_store_loss(store_loss)
    with Log().progress("Reading the images") as progress:
        found = inspect_images(data_set, data, on_progress=progress, labels=labels, settings=annotations)
    print_inspection(found, Console())
    findings = found.to_json()
    if plan is not None:
        from vitling.views.store_loss import measure_store_loss

        losses = measure_store_loss(data_set, plan, config=data)
        _print_store_loss(losses, plan)
        findings["store_loss"] = [asdict(loss) for loss in losses]
    write_json(out, findings)
    echo(f"Saved to {out}")


def _parse_store_loss(value: str) -> Plan:
    """Return the plan of a policy, or a plan of plain random crops if `value` is a number of pixels."""
    from vitling.views.policies import make_plan

    if value.lstrip("-").isdecimal():
        if len(value) > 9 or int(value) not in Range(8, SIDE.high):
            raise UserError(f"--store-loss {value[:20]}: give 8 to {SIDE.high:,} pixels, such as 224, or a policy.")
        return Plan((Group(int(value)),))
    plan = make_plan(value)
    if any(group.policy.centre for group in plan.groups):
        raise UserError(f"--store-loss {value}: this policy has no random crops to measure; choose a different one.")
    return plan


def _print_store_loss(losses: list[StoreLoss], plan: Plan) -> None:
    crops = " and ".join(
        f"{group.size} px (scale {group.policy.scale[0]:g} to {group.policy.scale[1]:g})" for group in plan.groups
    )
    table = Table(title=f"Crops of {crops} from the store, compared with crops from the files")
    for column in ("store", "PSNR", "worst in 20", "MB / 1,000 images"):
        table.add_column(column, justify="right", no_wrap=True)
    for loss in losses:
        size = f"{loss.size} px" + (" (chosen)" if loss.chosen else "")
        table.add_row(size, f"{loss.mean:.1f} dB", f"{loss.low:.1f} dB", f"{loss.megabytes:,.0f}")
    Console().print(table)
