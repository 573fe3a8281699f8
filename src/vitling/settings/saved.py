"""Saved settings: config.json of a run, and what --resume makes of it. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import asdict, fields, replace
from typing import Any, TypedDict

from vitling.errors import UserError
from vitling.loading import convert
from vitling.methods import METHODS
from vitling.settings.config import PLANNED, Config, MethodsConfig
from vitling.settings.layers import Draft, Layer, Origin
from vitling.settings.names import format_flag, format_value, leaves
from vitling.settings.resolve import Resolved

# settings of one start, not of the run
_PER_START = ("out", "resume", "overwrite", "allow_bad", "explain", "report", "explicit", "data.download")
# --minutes lowers or replaces what was passed
_PACED = ("epochs", "optim.warmup_epochs", "loop.compile", "loop.epoch_part")
_OPEN = (None, PLANNED, "auto")


class _MethodName(TypedDict, total=False):
    method: str


def to_json(resolved: Resolved) -> dict[str, Any]:
    """Return what config.json stores: every setting, and under `origins` where it comes from."""
    origins = {name: [origin.layer, origin.reason] for name, origin in resolved.origins.items()}
    return asdict(resolved.config) | {"origins": origins}


def load_resolved(kind: type[Config], values: Any, where: str | os.PathLike) -> Resolved[Config]:
    """Convert what config.json of a run holds; `where` names the file in errors."""
    config = load_config(kind, values, where)
    origins = convert(values.get("origins", {}), dict[str, tuple[Layer, str]], where)
    return Resolved(config, {name: Origin(layer, reason) for name, (layer, reason) in origins.items()})


def load_config(kind: type[Config], values: Any, where: str | os.PathLike) -> Config:
    """Convert settings that `asdict` and JSON stored, without those of other methods, whose defaults may have changed.

    Raises InvalidFile for a value of another type; ranges are checked later.
    """
    convert(values, _MethodName, where)
    method = METHODS.get(values.get("method", ""))
    others = {f.name for f in fields(MethodsConfig)} - {method.field} if method else set()
    config = convert({name: value for name, value in values.items() if name not in others}, kind, where)
    return replace(config, data=replace(config.data, download=False))  # only a flag starts a download, no file


def resume_config(request: Config, saved: Config) -> Config:
    """Return the saved settings; raise UserError if the request has others, because only the same run can resume."""
    before, default = dict(leaves(saved)), dict(leaves(type(request)()))
    for name, value in leaves(request):
        implicit = value == default[name] and (name not in request.explicit or value in _OPEN)
        paced = name in _PACED and saved.minutes is not None
        if name in _PER_START or implicit or paced or value == before[name]:
            continue
        given = f"DATA {value}" if name == "source" else format_flag(name, value)
        if isinstance(value, bool) and value == default[name]:
            given = f"Leaving out {format_flag(name, not value)}"
        saved_value = "settings" if isinstance(value, bool) else format_value(before[name])
        raise UserError(
            f"{given} differs from the run's {saved_value}. --resume continues the same run; use a new --out for "
            "different settings."
        )
    allow_bad = saved.allow_bad or request.allow_bad  # the test split may need it although training did not
    report = saved.report and request.report  # either start may have had --no-report
    return replace(saved, out=request.out, resume=True, overwrite=False, allow_bad=allow_bad, report=report)


def resume_run(request: Config, saved: Resolved[Config]) -> Resolved[Config]:
    return replace(saved, config=resume_config(request, saved.config))


def reopen(resolved: Resolved[Config]) -> Draft[Config]:
    """Return a draft of settings that were resolved before, with the same origins."""
    return Draft(resolved.config, resolved.origins)
