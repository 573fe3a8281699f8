"""Compile the views and the network of a run in other processes, side by side, unless the compiler's cache has them."""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from vitling.console import Log
from vitling.shortage import is_out_of_memory
from vitling.training.compilation import Compile, free_memory, is_compiler_error, wait_for_warm_up
from vitling.training.compile_server import can_serve, pack_tasks, take_server
from vitling.training.feed import LoadedBatch
from vitling.training.helpers import Helper
from vitling.training.processes import Processes
from vitling.training.section_compiler import pack_sections
from vitling.training.trainer import Trainer
from vitling.training.view_compiler import make_view_task, pack_views
from vitling.version import __version__

_MIN_GPU_BYTES = 16 * 2**30  # free; a guess: most networks then leave enough for the other processes
_GPU_SHARE = 1 / 4  # of the free memory, for a process; stages differ in what they need
_PATIENCE = 120.0  # seconds; on eight cores or more, compiling takes less

_started = False  # what this process compiles later is likely to be in the cache


def can_compile_ahead(how: Compile, device: torch.device, processes: Processes) -> bool:
    """Return whether this process compiles for the first time and the machine can spare others."""
    if _started or how != "on" or device.type != "cuda" or processes.world > 1:
        return False
    return can_serve() and torch.cuda.mem_get_info(device)[0] >= _MIN_GPU_BYTES


def compile_ahead(trainer: Trainer, loaded: LoadedBatch, log: Log) -> None:
    """Fill the compiler's cache with all that steps with whole batches need, and load the views from it."""
    global _started
    _started = True
    mark = make_mark(trainer)
    trainer.is_cached = mark.exists()
    if trainer.is_cached:
        return
    try:
        with take_server() as views, take_server() as network:
            trainer.is_cached = _compile_in(views, network, trainer, loaded, log)
    except (OSError, pickle.PicklingError, TypeError, AttributeError) as problem:
        log.debug(f"Nothing is compiled in other processes: {problem}")
    if trainer.is_cached:
        with suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def make_mark(trainer: Trainer) -> Path:
    """Name the file in the compiler's cache that says that it has a run's views and network."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    gpu = torch.cuda.get_device_name(trainer.store.device) if trainer.store.device.type == "cuda" else ""
    facts = (make_view_task(trainer), trainer.objective, __version__, torch.__version__, gpu)
    return Path(cache_dir()) / "vitling-runs" / hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _compile_in(views: Helper, network: Helper, trainer: Trainer, loaded: LoadedBatch, log: Log) -> bool:
    """Compile in two servers; return whether both have succeeded."""
    began, share = time.monotonic(), _share_memory(trainer.store.device)
    views.send(pack_tasks(pack_views(trainer), share))
    wait_for_warm_up()
    tasks = _pack_sections(trainer, loaded)
    free_memory()
    if tasks:
        network.send(pack_tasks(tasks, share))
    rendered = _succeeds(views, began, log)
    if rendered:
        _load_views(trainer, log)
    return bool(tasks) and _succeeds(network, began, log) and rendered


def _share_memory(device: torch.device) -> float:
    """Return the share of the GPU's memory that a server may take."""
    if device.type != "cuda":
        return 1.0
    free, total = torch.cuda.mem_get_info(device)
    return _GPU_SHARE * free / total


def _pack_sections(trainer: Trainer, loaded: LoadedBatch) -> Sequence[bytes]:
    """Return the tasks of the network; none if the memory does not suffice to run it uncompiled."""
    try:
        return pack_sections(trainer, loaded)
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise
    return ()


def _succeeds(server: Helper, began: float, log: Log) -> bool:
    server.ends_within(_PATIENCE - (time.monotonic() - began))
    if problem := server.find_problem():
        log.debug(f"Something was not compiled in another process ({problem})")
    return problem is None


def _load_views(trainer: Trainer, log: Log) -> None:
    """Compile the views, most of which the cache has, while the network is still being compiled."""
    try:
        make_view_task(trainer).render(trainer.renderer)
    except Exception as problem:
        if not is_compiler_error(problem):
            raise
        log.debug(f"The views were not compiled ahead: {problem}")  # the next step tries again, and warns
