"""What several runs together were asked for: kept beside them, so that --resume needs nothing said again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vitling.console import is_main_process
from vitling.errors import UserError
from vitling.files import atomic_write, read_json, write_json
from vitling.settings.config import ComparisonConfig, Config, FinetuneConfig, PretrainConfig, RunConfig, TrainConfig
from vitling.settings.names import from_plain, of_its_method, resumed

FILE = "asked.json"
VERBS = {
    TrainConfig: "train",
    PretrainConfig: "pretrain",
    FinetuneConfig: "finetune",
    ComparisonConfig: "compare-methods",
}


def goes_on(config: RunConfig) -> bool:
    """Whether --resume names a folder of several runs that were asked for together."""
    return config.resume and bool(config.out) and verb_of(config.out) == VERBS[type(config)]


def as_asked(config: Config, **free: Any) -> Config:
    """The settings of before, if this goes on; something else asked for now is an error, but for what is `free`."""
    if not goes_on(config):
        return config
    before = from_plain(type(config), of_its_method(read_json(Path(config.out) / FILE)["settings"]))
    return resumed(replace(config, **free), replace(before, **free))


@contextmanager
def written_down(config: RunConfig) -> Iterator[Callable[[], None]]:
    """While the runs are trained, and after. Gives what is to be called after each of them: if the first is refused
    before it has begun, the folder is as it was. Other processes write nothing, and are not asked what they find."""
    if not is_main_process():
        yield lambda: None
        return
    out, done = Path(config.out), []
    _check(config)
    before = (out / FILE).read_bytes() if (out / FILE).exists() else None
    there = _names(out)
    write_json(out / FILE, {"verb": VERBS[type(config)], "settings": asdict(config)})
    try:
        yield lambda: done.append(True)
    except UserError:
        if not done and _names(out) <= {*there, FILE}:
            _put_back(out, before)
        raise


def check_told_what_to_do(config: RunConfig) -> None:
    """A UserError where --out holds something, and neither --resume nor --overwrite was given."""
    if not (config.resume or config.overwrite):
        raise UserError(
            f"{config.out} is not empty. Pass --resume to go on, --overwrite to start again, or another --out."
        )


def _check(config: RunConfig) -> None:
    before, verb = verb_of(config.out), VERBS[type(config)]
    if before and before != verb:
        raise UserError(f"{config.out} holds runs of vitling {before}. Name another --out for vitling {verb}.")
    if before:
        check_told_what_to_do(config)


def verb_of(out: str) -> str:
    """What made the folder; nothing, if it is not of several runs."""
    path = Path(out) / FILE
    if not path.exists():
        return ""
    try:
        return str(read_json(path)["verb"])
    except (ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{path} is damaged. Delete it, and say again all that was asked for.") from problem


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def _put_back(out: Path, before: bytes | None) -> None:
    if before is not None:
        with atomic_write(out / FILE) as file:
            file.write(before)
        return
    (out / FILE).unlink()
    with suppress(OSError):  # it holds something else
        out.rmdir()
