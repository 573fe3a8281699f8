"""Checkpoints that are whole or not there, and hold everything that is needed to go on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from vitling.errors import RunAborted, UserError
from vitling.files import atomic_write

FORMAT = 1
_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Checkpoints:
    """step-00000042.pt in a folder; the latest `keep` stay."""

    def __init__(self, folder: Path, keep: int):
        self.folder, self.keep = folder, keep

    def save(self, step: int, state: dict[str, Any]) -> None:
        path = self.folder / f"step-{step:08d}.pt"
        try:
            with atomic_write(path) as file:
                torch.save({"format": FORMAT, **state}, file)
        except (OSError, RuntimeError) as problem:  # torch's zip writer wraps the OSError of a full disk
            if not _no_space(problem, self.folder):
                raise
            kept = self.all()
            raise RunAborted(
                f"The disk is full: {path.name} could not be written. The last checkpoint "
                f"({kept[-1].name if kept else 'none yet'}) is intact; make room and continue with --resume."
            ) from problem
        for old in [*self.all()[: -self.keep], *self.folder.glob(".*.part")]:  # a killed run leaves parts
            old.unlink(missing_ok=True)

    def all(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.pt"))

    def load_latest(self, device: torch.device, warn: Callable[[str], None]) -> dict[str, Any] | None:
        """The newest checkpoint that can be read."""
        for path in reversed(self.all()):
            try:
                return self.load(path, device)
            except (RuntimeError, EOFError, OSError, UnpicklingError) as problem:
                warn(f"{path.name} is damaged ({type(problem).__name__}) and passed over.")
        return None

    @staticmethod
    def load(path: Path, device: torch.device) -> dict[str, Any]:
        """Loading unpickles tensors and plain containers only."""
        state = torch.load(path, map_location=device, weights_only=True)
        if state.get("format") != FORMAT:
            raise UserError(f"{path} was written by another version of vitling; it cannot be resumed.")
        return state


@contextmanager
def explain_full_disk() -> Iterator[None]:
    """A full disk met anywhere else (metrics, log) ends the run in plain words too."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in _SPACE:
            raise
        raise RunAborted(f"The disk is full ({problem.filename}). Make room and continue with --resume.") from problem


def _no_space(problem: Exception, folder: Path) -> bool:
    chain: BaseException | None = problem
    while chain is not None:
        if isinstance(chain, OSError) and chain.errno in _SPACE:
            return True
        chain = chain.__cause__ or chain.__context__
    if isinstance(problem, OSError):
        return False
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize < 1 << 20
