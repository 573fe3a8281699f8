"""`vitling show-views`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from vitling.commands.flags import Data, Out
from vitling.console import echo
from vitling.data.config import DataConfig
from vitling.ranges import AT_LEAST_1, SEED, SIDE, Range
from vitling.views.plan import Plan


def show_views(
    data_set: Data,
    policy: str = "planned",
    out: Out = "views.png",
    images: Annotated[int, AT_LEAST_1] = 6,
    draws: Annotated[
        int | None, Range(1, 1000), arg(metavar="INT", help_behavior_hint="(default: the policy's, at least 8)")
    ] = None,
    boxes: bool = False,
    size: Annotated[int | None, SIDE, arg(metavar="PX", help_behavior_hint="(default: the policy's own)")] = None,
    seed: Annotated[int, SEED] = 0,
    data: DataConfig = DataConfig(),  # noqa: B008
) -> None:
    """Draw the random views that a network is trained on.

    DATA is anything that `vitling train` accepts.

    Args:
        data_set: Your images.
        policy: Augmentation policy; `vitling list policies` shows all. planned: the views that `vitling train` plans
            for these images, with one picture for each stage.
        out: The picture to write: .png, .jpg or .webp.
        images: Rows: images spread evenly over the dataset.
        draws: Columns: views per image.
        boxes: Outline each view's crop on the original.
        size: Pixels of the (global) views.
        seed: Random seed of the views.
        data: How images are read.
    """
    from vitling.files import check_writable
    from vitling.views.sheet import draw_sheet

    check_writable(out, is_picture=True)
    for path, views in _plan_pictures(data_set, policy, out, size, data).items():
        echo(f"Saved to {draw_sheet(data_set, views, path, images, draws, boxes, size, seed, data)}")


def _plan_pictures(source: str, policy: str, out: str, size: int | None, data: DataConfig) -> dict[str, str | Plan]:
    """Return the pictures to draw: of one policy, or of each stage of the plan."""
    from vitling.runs.resolving import RUN, resolve_stages
    from vitling.settings.config import TrainConfig
    from vitling.training.processes import choose_device

    if policy != "planned":
        return {out: policy}
    request = TrainConfig(source=source, out=out, size=size, data=data)
    stages = resolve_stages(request, gpu=choose_device("auto").type != "cpu")
    named = {stage: str(Path(out).with_stem(f"{Path(out).stem}-{stage}")) for stage in stages}  # views-pretrain.png
    paths = {stage: out if stage == RUN or len(stages) == 1 else path for stage, path in named.items()}
    return {paths[stage]: found.config.make_views(found.config.size or 0) for stage, found in stages.items()}
