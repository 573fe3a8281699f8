"""`vitling show-views`."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import arg

from vitling.commands.flags import Data, Out
from vitling.data.config import DataConfig


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
    """Draw the random views that a network is trained on.

    DATA is anything that `vitling train` accepts.

    Args:
        data_set: Your images.
        policy: Augmentation policy; `vitling list policies` shows all.
        out: The picture to write: .png, .jpg or .webp.
        images: Rows: images spread evenly over the data set.
        draws: Columns: views per image.
        boxes: Outline each view's crop on the original.
        size: Pixels of the (global) views.
        seed: Random seed of the views.
        data: How images are read.
    """
    from vitling.files import check_writable
    from vitling.views.sheet import draw_sheet

    check_writable(out)
    print(f"Saved to {draw_sheet(data_set, policy, out, images, draws, boxes, size, seed, data)}")
