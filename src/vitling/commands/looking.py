"""What looks at data and views, lists what there is, and runs the papers' tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitling.commands.flags import Data, Out
from vitling.data.config import DataConfig
from vitling.errors import Interrupted, RunAborted, UserError
from vitling.views.config import Group, Plan


def inspect(
    data_set: Data,
    out: Out = "inspection.json",
    store_loss: Annotated[str | None, arg(metavar="PX|POLICY", help_behavior_hint="")] = None,
    data: DataConfig = DataConfig(),  # noqa: B008
) -> None:
    """What is in a data set: counts, sizes, bad files, duplicates, leakage.

    DATA is what `vitling train` takes.

    Args:
        data_set: Your images: a folder, a CSV, a Parquet file, a tar, an npz.
        out: Where the findings are written, as JSON.
        store_loss: Also measure what views of this size, or of this policy (`vitling list policies`), lose by the pixel
            store, for several sizes of the store.
        data: How the images are read.
    """
    from rich.console import Console

    from vitling.console import Log
    from vitling.data.inspection import inspect as look
    from vitling.files import check_writable, write_json

    check_writable(out)
    plan = None if store_loss is None else _random_crops(store_loss)
    with Log().progress("Looking at the images") as progress:
        found = look(data_set, data, on_progress=progress)
    found.render(Console())
    findings = found.to_json()
    if plan is not None:
        from vitling.commands.store_loss import store_loss as measure
        from vitling.commands.summary import show_store_loss

        losses = measure(data_set, plan, config=data)
        show_store_loss(losses, plan)
        findings["store_loss"] = [asdict(loss) for loss in losses]
    write_json(out, findings)
    print(f"Written: {out}")


def _random_crops(of: str) -> Plan:
    """Those of a policy, or one of so many pixels."""
    from vitling.views.policies import named

    if of.lstrip("-").isdecimal():
        if int(of) < 8:
            raise UserError(f"--store-loss {of}: the size of the views in pixels, such as 224, or a policy's name.")
        return Plan((Group(int(of)),))
    plan = named(of)
    if any(group.policy.centre for group in plan.groups):
        raise UserError(f"--store-loss {of}: it has no random crops, of which the loss is measured.")
    return plan


def show_views(
    data_set: Data,
    policy: str = "supervised",
    out: Out = "views.png",
    images: int = 6,
    draws: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: the policy's, at least 8)")] = None,
    boxes: bool = False,
    size: Annotated[int | None, arg(metavar="PX", help_behavior_hint="(default: the policy's own)")] = None,
    seed: int = 0,
    data: DataConfig = DataConfig(),  # noqa: B008
) -> None:
    """A picture of what the network sees: each image beside its random views.

    DATA is what `vitling train` takes.

    Args:
        data_set: Your images.
        policy: `vitling list policies` shows them.
        out: The picture, .png, .jpg or .webp.
        images: Rows: images spread over the data set.
        draws: Columns: views of each.
        boxes: Draw on the original where the views were cut out.
        size: Pixels of the (global) views.
        seed: Another one draws other views.
        data: How the images are read.
    """
    from vitling.commands.view_sheet import show_views as draw
    from vitling.files import check_writable

    check_writable(out)
    print(f"Written: {draw(data_set, policy, out, images, draws, boxes, size, seed, data)}")


def list_(
    what: Annotated[
        Literal["methods", "backbones", "datasets", "policies", "tables"],
        Positional,
        arg(metavar="{methods,backbones,datasets,policies,tables}"),
    ],
) -> None:
    """What there is: methods, backbones, datasets, policies, tables.

    Args:
        what: methods: of pre-training. backbones: the tested networks, with parameters and grid. datasets: the papers',
            and where they come from. policies: the papers' views. tables: what `vitling
            reproduce` can run, and the data that it wants.
    """
    from rich.console import Console

    from vitling.commands import listing

    tables = {
        "methods": listing.method_table,
        "backbones": listing.backbone_table,
        "datasets": listing.dataset_table,
        "policies": listing.policy_table,
        "tables": listing.study_table,
    }
    Console().print(tables[what]())


def reproduce(
    name: Annotated[str, Positional, arg(metavar="NAME")],
    data: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    seeds: int = 1,
    only: Annotated[tuple[str, ...], arg(metavar="PART ...", help_behavior_hint="")] = (),
    minutes: Annotated[float | None, arg(metavar="M", help_behavior_hint="")] = None,
    epochs: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None,
    runs_out: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="(default: runs/NAME)")] = None,
    out: Annotated[str | None, arg(metavar="PATH", help_behavior_hint="(default: results/NAME.json)")] = None,
    at_once: int = 1,
) -> None:
    """A table of a paper: run what is missing, print ours beside the paper's.

    What is in results/NAME.json or has finished in --runs-out is not run again; what was interrupted goes on.

    Args:
        name: `vitling list tables` shows them.
        data: Folder of the data sets: DIR/flowers102/train/ and test/, or DIR/flowers102-train.tar and -test.tar.
        seeds: Runs of each entry.
        only: Only runs with one of these in their name; =NAME is one run alone.
        minutes: Start no further run after so many minutes.
        epochs: A trial of so many epochs; its results are kept apart.
        runs_out: Where the run directories go.
        out: Where the results are written.
        at_once: Processes that share the runs. On a large GPU, where compiling takes as long as training, two or three.
    """
    from vitling.commands.summary import show_study
    from vitling.papers.reproduce import reproduce as run_study
    from vitling.papers.studies import find

    try:
        outcome = run_study(find(name), data, seeds, only, minutes, epochs, runs_out, out, at_once)
    except Interrupted as stop:  # a run says --resume, which is no flag of this verb
        raise Interrupted("Stopped; everything is saved. The same command goes on from here.", stop.exit_code) from None
    show_study(outcome.results)
    if outcome.path.exists():
        print(f"Written: {outcome.path}" + (f" and {outcome.picture}" if outcome.picture else ""))
    if outcome.failed:
        raise RunAborted(f"{len(outcome.failed)} of the runs failed: {'; '.join(outcome.failed)}.")
