"""torch.compile: when its worker processes start."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from vitling.training import compilation
from vitling.training.compilation import load_compiler
from vitling.training.config import LoopConfig

CUDA = torch.device("cuda")

LOAD_AND_WAIT = """
import torch
from vitling.training.compilation import load_compiler, wait_for_workers
from vitling.training.config import LoopConfig
from torch._inductor import config
config.compile_threads = 2
load_compiler(LoopConfig(), torch.device("cuda"))
wait_for_workers()
from torch._inductor.async_compile import AsyncCompile
print(AsyncCompile.use_process_pool())
"""


@pytest.fixture
def loaded(monkeypatch):
    """Record each time the compiler is loaded instead of loading it."""
    loads: list[int] = []
    monkeypatch.setattr(compilation, "_loading", None)
    monkeypatch.setattr(compilation, "_load_compiler", lambda: loads.append(1))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")
    return loads


@pytest.mark.parametrize(("compile", "device"), [("off", CUDA), ("auto", torch.device("cpu"))])
def test_the_compiler_is_not_loaded_for_runs_that_do_not_need_it(loaded, compile, device):
    load_compiler(LoopConfig(compile=compile), device)
    assert compilation._loading is None


def test_the_compiler_is_loaded_once(loaded):
    for _ in range(2):
        load_compiler(LoopConfig(), CUDA)
    compilation._loading.join()
    assert loaded == [1]


def test_workers_are_ready_after_waiting(tmp_path, monkeypatch):
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path))
    process = subprocess.run([sys.executable, "-c", LOAD_AND_WAIT], capture_output=True, text=True, timeout=120)
    assert process.stdout == "True\n", process.stderr
