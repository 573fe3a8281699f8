"""Settings of annotated data: `--annotations.format voc`, `--annotations.ignore-index 11`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from vitling.ranges import Range

Format = Literal["auto", "coco", "label-studio", "voc", "yolo", "masks", "ade20k"]


@dataclass(frozen=True)
class AnnotationConfig:
    format: Format = "auto"
    """Format of the annotations; auto finds it from the files."""
    ignore_index: Annotated[int | None, Range(0, 255), arg(help_behavior_hint="")] = None
    """Value of mask pixels that have no class. Default: 255, and 0 in ADE20K's layout."""
    classes: Annotated[str, arg(help_behavior_hint="")] = ""
    """Names of the classes of masks in the order of their values, separated by commas. Default: read classes.txt, if
    there is one."""
