"""Checkpoints: written atomically, with a digest, and complete enough to resume exactly."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from vitling.errors import InvalidFile, UserError
from vitling.files import atomic_write
from vitling.loading import check_zip, open_regular
from vitling.pickles import check_torch_calls
from vitling.shortage import is_out_of_memory

FORMAT = 1
Check = Callable[[Path, dict[str, Any]], None]
_MARK = b"\nvitling blake2b "  # comes before the digest, after the zip archive, whose readers skip what follows it
_DIGEST_SIZE = 32  # bytes


class DamagedCheckpointError(Exception):
    """The content of a checkpoint is not what was written."""


class Checkpoints:
    """Files named step-00000042.pt in a folder, of which the latest `keep` stay."""

    def __init__(self, folder: Path, keep: int):
        self.folder, self.keep = folder, keep

    def save(self, step: int, state: dict[str, Any]) -> None:
        path = self.folder / f"step-{step:08d}.pt"
        with atomic_write(path) as file:
            hashed: Any = _HashingWriter(file)
            torch.save({"format": FORMAT, **state}, hashed)
            file.write(_MARK + hashed.digest.hexdigest().encode())
        later = [other for other in self.all() if other.name > path.name]  # damaged ones, which a resume passed over
        for old in [*later, *[other for other in self.all() if other not in later][: -self.keep]]:
            old.unlink(missing_ok=True)

    def all(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.pt"))

    def load_latest(
        self, device: torch.device, warn: Callable[[str], None], check: Check = lambda path, state: None
    ) -> dict[str, Any] | None:
        """Load the newest checkpoint that is intact, or return None.

        `check` raises InvalidFile for content that cannot be resumed. If no older checkpoint can be resumed either,
        this is raised: the run must not start again and replace checkpoints that, say, another version can read.
        """
        invalid: InvalidFile | None = None
        for path in reversed(self.all()):
            try:
                state = self.load(path, device)
                check(path, state)
                return state
            except InvalidFile as problem:
                warn(f"{problem} Trying the one before.")
                invalid = invalid or problem
            except (UserError, OSError):  # such as too many open files: the checkpoint may be intact
                raise
            except Exception as problem:
                if is_out_of_memory(problem):
                    raise
                warn(f"{path.name} is damaged ({type(problem).__name__}); trying the one before.")
        if invalid:
            raise invalid
        return None

    @staticmethod
    def load(path: Path, device: torch.device) -> dict[str, Any]:
        """Load a checkpoint; only tensors and plain containers are unpickled."""
        _check_digest(path)
        with open_regular(path) as file:
            check_zip(path, file)
            check_torch_calls(file)
            state = torch.load(file, map_location=device, weights_only=True)
        if not isinstance(state, dict):
            raise DamagedCheckpointError(f"{path} holds a {type(state).__name__}")
        if state.get("format") != FORMAT:
            raise UserError(f"{path} was written by an incompatible version of vitling and cannot be resumed.")
        return state


class _HashingWriter:
    """Passes what is written on to a file, and hashes it."""

    def __init__(self, file: IO[bytes]):
        self.file, self.digest = file, hashlib.blake2b(digest_size=_DIGEST_SIZE)

    def write(self, content: Any) -> int:
        self.digest.update(content)
        return self.file.write(content)

    def flush(self) -> None:
        self.file.flush()


def _check_digest(path: Path) -> None:
    """Raise DamagedCheckpointError if the content does not match its digest; older versions wrote none."""
    length = 2 * _DIGEST_SIZE + len(_MARK)
    with open_regular(path) as file:
        content = max(0, os.fstat(file.fileno()).st_size - length)
        file.seek(content)
        end = file.read()
        if not end.startswith(_MARK):
            return
        file.seek(0)
        digest = hashlib.blake2b(digest_size=_DIGEST_SIZE)
        for start in range(0, content, 1 << 20):
            digest.update(file.read(min(1 << 20, content - start)))
    if end.removeprefix(_MARK) != digest.hexdigest().encode():
        raise DamagedCheckpointError(f"{path} does not match its digest")
