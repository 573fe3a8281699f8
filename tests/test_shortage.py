"""Shortages end a command with one line and exit code 3."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from functools import partial

import pytest
import torch

from vitling import cli
from vitling.errors import MachineFault, RunAborted
from vitling.shortage import explain_shortage, is_out_of_memory, stop_on_shortage


def fork_without_room() -> BaseException:
    """Return what subprocess raises at the limit of processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "_fork_exec", fail_to_fork)
        try:
            subprocess.run([sys.executable, "-c", ""], check=True, start_new_session=True)
        except BlockingIOError as problem:
            return problem
    raise AssertionError("it has started")


def fail_to_fork(*_: object) -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: ...")
MEMORY = [
    CPU,
    MemoryError(),
    torch.OutOfMemoryError("made up"),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]
OTHERS = [
    (RuntimeError("can't start new thread"), "threads"),
    (fork_without_room(), "processes"),
    (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
    (OSError(errno.ENOSPC, "No space left on device", "runs/a/x.json"), "disk is full (runs/a/x.json)"),
    (OSError(errno.EIO, "Input/output error", "x.json"), "disk has failed (x.json)"),
]


@pytest.mark.parametrize("problem", MEMORY, ids=str)
def test_memory(problem):
    assert is_out_of_memory(problem)
    assert "--store stream" in explain_shortage(problem)
    with pytest.raises(RunAborted) as caught, stop_on_shortage():
        raise problem
    assert not isinstance(caught.value, MachineFault)  # another run may need less


@pytest.mark.parametrize(("problem", "words"), OTHERS, ids=str)
def test_other_shortages(problem, words):
    assert not is_out_of_memory(problem)
    assert words in explain_shortage(problem)
    with pytest.raises(MachineFault, match="continue with --resume"), stop_on_shortage():
        raise problem


BUSY = BlockingIOError(errno.EAGAIN, "write could not complete without blocking")  # a pipe, not a process


@pytest.mark.parametrize(
    "problem", [RuntimeError("other"), ValueError("memory"), FileNotFoundError(2, "no"), KeyError(), BUSY]
)
def test_other_errors_stay(problem):
    assert explain_shortage(problem) is None
    with pytest.raises(type(problem)), stop_on_shortage():
        raise problem


def test_an_error_that_torch_wraps():
    """torch's zip writer raises a RuntimeError of its own."""
    wrapped = RuntimeError("PytorchStreamWriter failed writing file")
    wrapped.__context__ = OSError(errno.ENOSPC, "No space left on device")
    assert "disk is full" in explain_shortage(wrapped)
    twice = RuntimeError("unexpected pos 1051 vs 998")
    twice.__context__ = wrapped
    assert "disk is full" in explain_shortage(twice)


def test_the_limit_that_was_met_is_named(monkeypatch):
    limits = {resource.RLIMIT_AS: 3 * 2**30, resource.RLIMIT_NOFILE: 64}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits.get(which, resource.RLIM_INFINITY), 0))
    assert "(ulimit -v is 3.0 GiB)" in explain_shortage(MemoryError())
    assert "(ulimit -n is 64)" in explain_shortage(OSError(errno.EMFILE, "Too many open files"))


@pytest.mark.parametrize("problem", [MEMORY[0], *(problem for problem, _ in OTHERS)], ids=str)
def test_every_command_ends_with_one_line(problem, monkeypatch, capsys):
    def fail(path):
        raise problem

    monkeypatch.setitem(cli.VERBS, "inspect", fail)
    monkeypatch.setattr(cli, "_parse", lambda verb, argv: partial(fail, ""))
    assert cli.run(["inspect"]) == 3
    assert capsys.readouterr().err.count("\n") == 1
