"""Resource shortages (memory, threads, open files, disk space), explained in one line."""

from __future__ import annotations

import errno
import resource
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from vitling.errors import MachineFault, RunAborted, unwrap

_MEMORY_WORDS = (
    "DefaultCPUAllocator",
    "not enough memory",
    "bad_alloc",
    "Cannot allocate memory",
    "Storage size calculation overflowed",
    "Triton Error [CUDA]: out of memory",
    "CUDA error: out of memory",
    "CUDA out of memory",  # within an error of the compiler
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_THREAD_WORDS = "can't start new thread"
_STARTERS = ("subprocess", "multiprocessing")  # modules that start processes
_FILES = {errno.EMFILE, errno.ENFILE}
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LIMITS = {"-v": "RLIMIT_AS", "-d": "RLIMIT_DATA", "-u": "RLIMIT_NPROC", "-n": "RLIMIT_NOFILE"}  # by flag of ulimit
_RESUME = "What was saved is intact; continue with --resume."


@contextmanager
def stop_on_shortage() -> Iterator[None]:
    """Turn exceptions caused by a shortage or a failing disk into a RunAborted with a one-line message.

    It is a MachineFault, except for memory, which another run may need less of.
    """
    try:
        yield
    except Exception as problem:
        reason = explain_shortage(problem)
        if reason is None:
            raise
        kind = RunAborted if is_out_of_memory(problem) else MachineFault
        raise kind(f"{reason} {_RESUME}") from problem


def explain_shortage(problem: BaseException) -> str | None:
    """Explain what ran out and what to do; return None for other exceptions."""
    if is_out_of_memory(problem):
        limit = _describe_limit("-v", "-d", unit=2**30)
        return f"Out of memory{limit}. Use a smaller --batch or --size, or --store stream."
    if _is_out_of_processes(problem):
        return f"No more threads or processes can be started{_describe_limit('-u')}. Raise the limit with ulimit -u."
    if _has_errno(problem, _FILES):
        return f"Too many open files{_describe_limit('-n')}. Raise the limit: ulimit -n 4096."
    if _has_errno(problem, _DISK):
        return f"The disk is full{_describe_file(problem)}. Free some space."
    if _has_errno(problem, {errno.EIO}):
        return f"The disk has failed{_describe_file(problem)}: input/output error."
    return None


def _is_out_of_processes(problem: BaseException) -> bool:
    """Return whether no thread or process could be started. EAGAIN from elsewhere, such as a pipe, is no shortage."""
    if isinstance(problem, RuntimeError) and _THREAD_WORDS in str(problem):
        return True
    if not _has_errno(problem, {errno.EAGAIN}):
        return False
    frames = traceback.walk_tb(unwrap(problem).__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith(_STARTERS) for frame, _ in frames)


def is_out_of_memory(problem: BaseException) -> bool:
    """Return whether an exception means that host or GPU memory ran out."""
    if isinstance(problem, MemoryError) or _has_errno(problem, {errno.ENOMEM}):
        return True
    if not isinstance(problem, RuntimeError):
        return False
    return type(problem).__name__ == "OutOfMemoryError" or any(words in str(problem) for words in _MEMORY_WORDS)


def raise_if_short(problem: Exception) -> None:
    """Raise an exception that concerns the whole machine rather than the one file that was read."""
    if isinstance(problem, MemoryError) or _has_errno(problem, _FILES | {errno.ENOMEM}):
        raise problem


def _has_errno(problem: BaseException, numbers: set[int]) -> bool:
    found = unwrap(problem)
    return isinstance(found, OSError) and found.errno in numbers


def _describe_file(problem: BaseException) -> str:
    found = unwrap(problem)
    return f" ({found.filename})" if isinstance(found, OSError) and found.filename is not None else ""


def _describe_limit(*flags: str, unit: int = 1) -> str:
    """Describe the limits of this process that `ulimit` shows, if there are any."""
    limits = {flag: resource.getrlimit(getattr(resource, _LIMITS[flag]))[0] for flag in flags}
    shown = [
        f"ulimit {flag} is {limit / unit:.1f} GiB" if unit > 1 else f"ulimit {flag} is {limit}"
        for flag, limit in limits.items()
        if limit != resource.RLIM_INFINITY
    ]
    return f" ({', '.join(shown)})" if shown else ""
