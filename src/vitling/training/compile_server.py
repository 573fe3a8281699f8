"""Processes that compile parts of a run side by side, before its first step.

A server imports the compiler while the run reads its images. It forks a process for each task that it is sent, and ends
with the tasks of the last message. The run finds their code in the compiler's cache.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from vitling.data.host import count_cores
from vitling.training.helpers import Helper, can_start_helper, exit_with_parent

VERB = "_compile"  # hidden command
_MIN_CORES = 8
_MIN_HOST_BYTES = 24 * 2**30  # for two servers and eleven tasks with CUDA, which share torch's pages
_MAX_IDLE_SECONDS = 600
_EARLY_SHARE = 1 / 16  # of the GPU's memory, for a task with one image
_EARLY_NICENESS = 10  # the run is decoding its images
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")  # of NVIDIA's driver, and of the one in WSL

_ready: list[Helper] = []


class Task(Protocol):
    """Task of a server: compiles code for the cache or, if not `compiled`, tries kernels."""

    device: str
    compiled: bool

    def run(self) -> None: ...


def can_serve() -> bool:
    """Return whether the machine can spare the processes and this is not one of several that train together."""
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    return alone and can_start_helper(_MIN_CORES, _MIN_HOST_BYTES)


def start_servers() -> None:
    """Start a server for the views and one for the network before torch is imported, if there seems to be a GPU."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if not hidden and any(Path(name).exists() for name in _GPU_FILES) and can_serve():
        atexit.register(stop_servers)
        with suppress(OSError):
            _ready.extend(Helper(VERB) for _ in range(2))


def stop_servers() -> None:
    """End the servers that were started early and not taken."""
    while _ready:
        _ready.pop().stop()


def take_server() -> Helper:
    """Return a server that was started early and still runs, or start one; raise OSError if that fails."""
    while _ready:
        server = _ready.pop()
        if server.process.poll() is None:
            return server
        server.stop()
    return Helper(VERB)


def send_early(make_tasks: Callable[[], Sequence[bytes]]) -> bool:
    """Send tasks to a server that was started early, which then waits for others; return whether that was possible."""
    if not _ready:
        return False
    try:
        _ready[-1].send(pack_tasks(make_tasks(), _EARLY_SHARE, last=False))
    except Exception:  # of a network that cannot be pickled
        return False
    return True


def pack_tasks(tasks: Sequence[bytes], gpu_share: float, last: bool = True) -> bytes:
    """Pack pickled tasks for a server, with the share of the GPU's memory that each may take."""
    return pickle.dumps((tasks, gpu_share, last))


def run_server() -> None:
    """Run the tasks that the starting process sends; exit with 1 if one of the last message fails."""
    import torch._inductor.compile_fx  # noqa: F401, before it forks

    import vitling.training.trainer  # noqa: F401

    fork, last = multiprocessing.get_context("fork"), False
    while not last:
        signal.alarm(_MAX_IDLE_SECONDS)  # ends the process
        try:
            tasks, gpu_share, last = pickle.load(sys.stdin.buffer)
        except EOFError:  # the run has ended, or has nothing more to do
            for process in multiprocessing.active_children():
                process.kill()
            return
        signal.alarm(0)
        arguments = (gpu_share, max(1, count_cores() // len(tasks)), 0 if last else _EARLY_NICENESS)
        processes = [fork.Process(target=_run_task, args=(task, *arguments)) for task in tasks]
        for process in processes:
            process.start()
    exit_with_parent()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit(1)


def _run_task(content: bytes, gpu_share: float, threads: int, niceness: int) -> None:
    """Run one task in a process that has just been forked, and so has no threads and no CUDA yet."""
    import torch
    from torch._inductor.async_compile import AsyncCompile

    from vitling.training.compilation import configure_compiler

    os.nice(niceness)
    torch._inductor.config.worker_start_method = "fork"  # such workers are ready at once
    torch._inductor.config.compile_threads = threads
    configure_compiler()
    task: Task = pickle.loads(content)
    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
        torch.cuda.set_per_process_memory_fraction(gpu_share)
        if task.compiled:
            AsyncCompile.wait_pool_ready()
    task.run()
