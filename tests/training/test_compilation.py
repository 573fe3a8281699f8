"""torch.compile: when it is loaded, and its worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from tests.tiny import tiny_backbone
from vitling import cli
from vitling.training import compilation, compile_server, compile_workers, compiler_start
from vitling.training.compile_workers import start_workers, wait_for_workers
from vitling.training.compiler_start import start_compiler
from vitling.training.config import LoopConfig

CUDA = torch.device("cuda")

START = """
import torch
torch.cuda.is_available = lambda: True
from torch._inductor import config
config.compile_threads = 2
from torch._inductor.async_compile import AsyncCompile
from vitling.training.compile_workers import start_workers, wait_for_workers
start_workers()
"""
WAIT = "wait_for_workers(); print(AsyncCompile.use_process_pool())"
REPORT_PROCESS = "print(AsyncCompile.process_pool().process.pid)"


@pytest.fixture
def loads(monkeypatch):
    """Record each time the compiler is loaded instead of loading it."""
    found: list[int] = []
    monkeypatch.setattr(compilation, "_loader", None)
    monkeypatch.setattr(compilation, "_warmer", None)
    monkeypatch.setattr(compiler_start, "_try_kernels", lambda backbone, precision: None)
    monkeypatch.setattr(compiler_start, "_import_compiler", lambda: found.append(1))
    return found


@pytest.mark.parametrize(("compile", "device"), [("off", CUDA), ("auto", torch.device("cpu"))])
def test_the_compiler_is_not_loaded_for_runs_that_do_not_need_it(loads, compile, device):
    start_compiler(LoopConfig(compile=compile), device, tiny_backbone())
    assert compilation._loader is None


def test_the_compiler_is_loaded_once(loads):
    for _ in range(2):
        start_compiler(LoopConfig(precision="bf16"), CUDA, tiny_backbone())
    compilation._loader.join()
    assert loads == [1]


def start_workers_and(code: str) -> str:
    process = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, timeout=120)
    assert not process.returncode, process.stderr
    assert "Traceback" not in process.stderr
    return process.stdout.strip()


def test_workers_are_ready_after_waiting(tmp_path, monkeypatch):
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path))
    assert start_workers_and(WAIT) == "True"


def test_dead_workers_are_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path))
    assert start_workers_and("AsyncCompile.process_pool().process.kill(); wait_for_workers(); print('ok')") == "ok"


def test_workers_that_cannot_start_are_no_error(monkeypatch):
    def fail(*_, **__):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(compile_workers, "_started", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("torch._inductor.async_compile.AsyncCompile.use_process_pool", fail)
    monkeypatch.setattr("torch._inductor.async_compile.AsyncCompile.wait_pool_ready", fail)
    start_workers()
    wait_for_workers()


def test_workers_end_with_the_process(tmp_path, monkeypatch):
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path))
    pid, ended = int(start_workers_and(REPORT_PROCESS)), time.monotonic() + 20
    while exists(pid):
        assert time.monotonic() < ended
        time.sleep(0.1)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("flags", "starts"),
    [
        ("", True),
        ("--loop.compile blocks", True),
        ("--explain", False),
        ("--loop.compile off", False),
        ("--loop.device cpu", False),
    ],
)
@pytest.mark.parametrize("verb", ["train", "pretrain", "finetune --from runs/pre", "segment"])
def test_commands_that_may_compile_start_the_workers(monkeypatch, tmp_path, verb, flags, starts):
    found: list[str] = []
    monkeypatch.setattr(compile_workers, "start_workers", lambda: found.append("workers"))
    monkeypatch.setattr(compile_server, "start_servers", lambda: found.append("servers"))
    cli.run([*verb.split(), str(tmp_path / "none"), "--out", str(tmp_path / "run"), *flags.split()])
    assert found == (["servers"] * ("blocks" not in flags) + ["workers"]) * starts
