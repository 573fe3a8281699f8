"""One process or several. torchrun sets RANK, WORLD_SIZE and LOCAL_RANK; without them there is one."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from vitling.errors import UserError

TIMEOUT = timedelta(minutes=30)  # rank 0 may have many images to decode before the others can go on


@dataclass(frozen=True)
class Processes:
    rank: int
    world: int
    device: torch.device

    @property
    def main(self) -> bool:
        """Only this one writes."""
        return self.rank == 0

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process does the work and leaves it in the cache; the others then find it there."""
        if not self.main:
            self.barrier()
        yield
        if self.main:
            self.barrier()

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()

    def mean(self, values: Tensor) -> Tensor:
        if self.world > 1:
            dist.all_reduce(values)
            values = values / self.world
        return values

    def any(self, flag: int) -> int:
        """The largest flag of all processes, so that all act alike."""
        if self.world == 1:
            return flag
        flags = torch.tensor([flag], device=self.device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return int(flags.item())


@contextmanager
def init_processes(device: str = "auto") -> Iterator[Processes]:
    """The processes that torchrun began, as one group. Within another `started` it is that one's: a group that is made
    again, for a second run, meets in its store what the first left there, and may wait for ever."""
    world, rank = int(os.environ.get("WORLD_SIZE") or "1"), int(os.environ.get("RANK") or "0")
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")) if world > 1 else None)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world == 1:
        yield Processes(0, 1, chosen)
        return
    if dist.is_initialized():
        yield Processes(rank, world, chosen)
        dist.barrier()
        return
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield Processes(rank, world, chosen)
        dist.barrier()  # the first process has the store that the others' threads talk to
    finally:
        gc.collect()  # DDP's wrappers hold on to the group, whose threads must be joined before the process ends
        dist.destroy_process_group()


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank or 0)
        return torch.device("mps" if torch.backends.mps.is_available() and local_rank is None else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"{name} is not a device: auto, cpu, cuda, cuda:1, mps.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"Device {name}: torch sees no CUDA GPU here. Use cpu.")
    if device.type == "cuda":
        return torch.device("cuda", local_rank if local_rank is not None else device.index or 0)
    return device
