"""Checkpoints: written atomically, and complete enough to resume exactly."""

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
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Checkpoints:
    """Files named step-00000042.pt in a folder, of which the latest `keep` stay."""

    def __init__(self, folder: Path, keep: int):
        self.folder, self.keep = folder, keep

    def save(self, step: int, state: dict[str, Any]) -> None:
        path = self.folder / f"step-{step:08d}.pt"
        try:
            with atomic_write(path) as file:
                torch.save({"format": FORMAT, **state}, file)
        except (OSError, RuntimeError) as problem:  # torch's zip writer wraps the OSError
            if not _is_full_disk(problem, self.folder):
                raise
            kept = self.all()
            raise RunAborted(
                f"The disk is full: {path.name} could not be written. The last checkpoint "
                f"({kept[-1].name if kept else 'none yet'}) is intact; free some space and continue with --resume."
            ) from problem
        for old in [*self.all()[: -self.keep], *self.folder.glob(".*.part")]:  # a killed run leaves partial files
            old.unlink(missing_ok=True)

    def all(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.pt"))

    def load_latest(self, device: torch.device, warn: Callable[[str], None]) -> dict[str, Any] | None:
        """Load the newest checkpoint that can be read, or return None."""
        for path in reversed(self.all()):
            try:
                return self.load(path, device)
            except (RuntimeError, EOFError, OSError, UnpicklingError) as problem:
                warn(f"{path.name} is damaged ({type(problem).__name__}); trying the one before.")
        return None

    @staticmethod
    def load(path: Path, device: torch.device) -> dict[str, Any]:
        """Load a checkpoint; only tensors and plain containers are unpickled."""
        state = torch.load(path, map_location=device, weights_only=True)
        if state.get("format") != FORMAT:
            raise UserError(f"{path} was written by an incompatible version of vitling and cannot be resumed.")
        return state


@contextmanager
def explain_full_disk() -> Iterator[None]:
    """Turn the OSError of a full disk, raised by any file of the run, into a RunAborted."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in _NO_SPACE:
            raise
        raise RunAborted(
            f"The disk is full ({problem.filename}). Free some space and continue with --resume."
        ) from problem


def _is_full_disk(problem: Exception, folder: Path) -> bool:
    chain: BaseException | None = problem
    while chain is not None:
        if isinstance(chain, OSError) and chain.errno in _NO_SPACE:
            return True
        chain = chain.__cause__ or chain.__context__
    if isinstance(problem, OSError):
        return False
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize < 1 << 20
