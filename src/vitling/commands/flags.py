"""Metavars for the help; everything else about a flag is in its verb's signature and docstring."""

from __future__ import annotations

from typing import Annotated, Literal

from tyro.conf import Positional, arg

Data = Annotated[str, Positional, arg(metavar="DATA")]
Run = Annotated[str, Positional, arg(metavar="RUN")]
Images = Annotated[tuple[str, ...], Positional, arg(metavar="IMAGES ...", help_behavior_hint="(required)")]
Out = Annotated[str, arg(metavar="PATH")]
OptionalOut = Annotated[str | None, arg(metavar="PATH", help_behavior_hint="")]
Weights = Literal["last", "best"]
