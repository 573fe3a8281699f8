"""Compile the views and the network of a run in other processes, side by side, unless the compiler's cache has them."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from vitling.backbones.backbone import Backbone
from vitling.console import Log
from vitling.shortage import is_out_of_memory
from vitling.training.compilation import Compile, free_memory, is_compiler_error, wait_for_warm_up
from vitling.training.compile_server import can_serve, pack_tasks, stop_servers, take_server
from vitling.training.feed import LoadedBatch
from vitling.training.helpers import Helper
from vitling.training.processes import Processes
from vitling.training.section_compiler import SectionTask, pack_section, record_sections
from vitling.training.trainer import Trainer
from vitling.training.view_compiler import make_view_task, pack_views
from vitling.version import __version__

_MIN_GPU_BYTES = 16 * 2**30  # free; a guess: most networks then leave enough for the other processes
_VIEWS_SHARE, _SECTION_SHARE, _NETWORK_SHARE = 1 / 8, 1 / 4, 1 / 2  # of the free memory, at most, for a process
_PATIENCE, _PATIENCE_SHARE = 120.0, 1 / 4  # seconds; of the time left. On eight cores or more, compiling takes less
_DONE, _FAILED = "compiled", "failed"  # content of a mark

_started = False  # what this process compiles later is likely to be in the cache


def can_compile_ahead(how: Compile, device: torch.device, processes: Processes) -> bool:
    """Return whether this process compiles for the first time, with a cache, and the machine can spare others."""
    if _started or how != "on" or device.type != "cuda" or processes.world > 1:
        return False
    from torch._inductor import config

    cached = config.fx_graph_cache and not config.force_disable_caches
    return cached and can_serve() and torch.cuda.mem_get_info(device)[0] >= _MIN_GPU_BYTES


def compile_ahead(trainer: Trainer, loaded: LoadedBatch, log: Log, seconds_left: float = math.inf) -> None:
    """Fill the compiler's cache with all that steps with whole batches need, and load the views from it.

    Sets `trainer.is_cached`. What has failed once is left to the run the next time.
    """
    global _started
    _started = True
    mark = make_mark(trainer)
    if not mark.exists():
        deadline = time.monotonic() + min(_PATIENCE, _PATIENCE_SHARE * seconds_left)
        try:
            with take_server() as views, take_server() as network:
                done = _compile_in(views, network, trainer, loaded, deadline, log)
        except OSError as problem:
            log.debug(f"Nothing is compiled in other processes: {problem}")
            return
        with suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.write_text(_DONE if done else _FAILED)
    stop_servers()
    with suppress(OSError):
        trainer.is_cached = mark.read_text() == _DONE


def make_mark(trainer: Trainer) -> Path:
    """Name the file in the compiler's cache that says whether it has a run's views and network."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    gpu = torch.cuda.get_device_name(trainer.store.device) if trainer.store.device.type == "cuda" else ""
    backbones = [network for network in trainer.objective.networks() if isinstance(network, Backbone)]
    networks = [(network.architecture, network.model_args, network.size) for network in backbones]
    facts = (make_view_task(trainer), trainer.objective, networks, __version__, torch.__version__, gpu)
    return Path(cache_dir()) / "vitling-runs" / hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _compile_in(
    views: Helper, network: Helper, trainer: Trainer, loaded: LoadedBatch, deadline: float, log: Log
) -> bool:
    """Compile in two servers; return whether both have succeeded."""
    device = trainer.store.device
    if not _send(views, lambda: pack_views(trainer), _share_memory(device, _VIEWS_SHARE), log):
        return False
    wait_for_warm_up()
    tasks = _record_sections(trainer, loaded)
    free_memory()
    share = _share_memory(device, _SECTION_SHARE if len(tasks) > 1 else _NETWORK_SHARE)
    sent = bool(tasks) and _send(network, lambda: [pack_section(task) for task in tasks], share, log)
    rendered = _wait_for(views, "views", deadline, log) and _load_views(trainer, log)
    return sent and _wait_for(network, "network", deadline, log) and rendered


def _send(server: Helper, pack: Callable[[], Sequence[bytes]], share: float, log: Log) -> bool:
    try:
        server.send(pack_tasks(pack(), share))
    except Exception as problem:  # a part that cannot be pickled
        log.debug(f"Not compiled in other processes: {problem}")
        return False
    return True


def _share_memory(device: torch.device, part: float) -> float:
    """Return a part of the GPU's free memory as a share of all of it."""
    if device.type != "cuda":
        return 1.0
    free, total = torch.cuda.mem_get_info(device)
    return part * free / total


def _record_sections(trainer: Trainer, loaded: LoadedBatch) -> list[SectionTask]:
    """Return the tasks of the network; none if the memory does not suffice to run it uncompiled."""
    try:
        return record_sections(trainer, loaded)
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise
    return []


def _wait_for(server: Helper, what: str, deadline: float, log: Log) -> bool:
    """Wait for a server's tasks; return whether they have succeeded."""
    server.ends_within(deadline - time.monotonic())
    if problem := server.find_problem():
        log.debug(f"Other processes have not compiled the {what} ({problem})")
    return problem is None


def _load_views(trainer: Trainer, log: Log) -> bool:
    """Load the compiled views, while the network is still being compiled; return whether that was possible."""
    try:
        make_view_task(trainer).render(trainer.renderer)
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem) and not is_compiler_error(problem):
            raise
        log.debug(f"The views were not loaded ahead: {problem}")  # the next step tries again, and warns
        return False
    return True
