"""Several runs in one folder (--seeds, compare-methods), with the request stored next to them for --resume."""

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
from vitling.settings.saved import load_config, resume_config

FILE = "asked.json"
VERBS = {
    TrainConfig: "train",
    PretrainConfig: "pretrain",
    FinetuneConfig: "finetune",
    ComparisonConfig: "compare-methods",
}


def resumes_group(config: RunConfig) -> bool:
    """Return whether --resume names a folder of several runs of the same command."""
    return config.resume and bool(config.out) and read_verb(config.out) == VERBS[type(config)]


def load_request(config: Config, **changeable: Any) -> Config:
    """Return the stored request of a resumed group; raise UserError if settings not in `changeable` differ."""
    if not resumes_group(config):
        return config
    before = load_config(type(config), read_json(Path(config.out) / FILE)["settings"])
    return resume_config(replace(config, **changeable), replace(before, **changeable))


@contextmanager
def store_request(config: RunConfig) -> Iterator[Callable[[], None]]:
    """Store the request while the runs train; yield a function to call after each of them.

    If the first run is rejected before it begins, the folder is left as it was.
    """
    if not is_main_process():
        yield lambda: None
        return
    out, done = Path(config.out), []
    _check_folder(config)
    before = (out / FILE).read_bytes() if (out / FILE).exists() else None
    names = _list_names(out)
    write_json(out / FILE, {"verb": VERBS[type(config)], "settings": asdict(config)})
    try:
        yield lambda: done.append(True)
    except UserError:
        if not done and _list_names(out) <= {*names, FILE}:
            _restore(out, before)
        raise


def require_resume_or_overwrite(config: RunConfig) -> None:
    """Raise UserError if --out is in use and neither --resume nor --overwrite was passed."""
    if not (config.resume or config.overwrite):
        raise UserError(f"{config.out} is not empty. Pass --resume, --overwrite, or a different --out.")


def read_verb(out: str) -> str:
    """Return the command that made a folder of several runs; "" for other folders."""
    path = Path(out) / FILE
    if not path.exists():
        return ""
    try:
        return str(read_json(path)["verb"])
    except (ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{path} is damaged. Delete it, and pass all flags again.") from problem


def _check_folder(config: RunConfig) -> None:
    before, verb = read_verb(config.out), VERBS[type(config)]
    if before and before != verb:
        raise UserError(f"{config.out} holds runs of vitling {before}. Pass a different --out for vitling {verb}.")
    if before:
        require_resume_or_overwrite(config)


def _list_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def _restore(out: Path, before: bytes | None) -> None:
    if before is not None:
        with atomic_write(out / FILE) as file:
            file.write(before)
        return
    (out / FILE).unlink()
    with suppress(OSError):  # something else is in it
        out.rmdir()
