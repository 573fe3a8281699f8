"""What several runs together were asked for: kept beside them, so that --resume needs nothing said again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vitling.console import speaks
from vitling.errors import UserError
from vitling.files import read_json, write_json
from vitling.recipes.config import Config, RunConfig, from_plain, resumed

FILE = "asked.json"


def goes_on(config: RunConfig) -> bool:
    """Whether --resume names a folder of several runs that were asked for together."""
    return config.resume and bool(config.out) and _kind(config.out) == type(config).__name__


def as_asked(config: Config, **free: Any) -> Config:
    """The settings of before, if this goes on; something else asked for now is an error, but for what is `free`."""
    if not goes_on(config):
        return config
    before = from_plain(type(config), read_json(Path(config.out) / FILE)["settings"])
    return resumed(replace(config, **free), replace(before, **free))


@contextmanager
def written_down(config: RunConfig) -> Iterator[None]:
    """While the runs are trained, and after. Not if the first of them is refused: then nothing stays."""
    out = Path(config.out)
    if _kind(config.out) and not (config.resume or config.overwrite):
        raise UserError(f"{out} is not empty. Pass --resume to go on, --overwrite to start again, or another --out.")
    if speaks():
        write_json(out / FILE, {"kind": type(config).__name__, "settings": asdict(config)})
    try:
        yield
    except UserError:
        if speaks() and [path.name for path in out.iterdir()] == [FILE]:
            (out / FILE).unlink()
            with suppress(OSError):
                out.rmdir()
        raise


def _kind(out: str) -> str:
    path = Path(out) / FILE
    return read_json(path).get("kind", "") if path.exists() else ""
