"""Flags that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

from tyro.conf import Positional, arg

Data = Annotated[str, Positional, arg(metavar="DATA")]
Run = Annotated[str, Positional, arg(metavar="RUN")]
Images = Annotated[tuple[str, ...], Positional, arg(metavar="IMAGES ...", help_behavior_hint="(required)")]
Out = Annotated[str, arg(metavar="PATH")]
OptionalOut = Annotated[str | None, arg(metavar="PATH", help_behavior_hint="")]
Labels = Annotated[str | None, arg(metavar="CSV", help_behavior_hint="")]
NO_PREFIX: Any = arg(name="")  # the fields of a config are the flags of its command: --epochs, not --config.epochs
