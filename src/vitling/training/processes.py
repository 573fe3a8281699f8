"""The processes of a run. torchrun sets RANK, WORLD_SIZE and LOCAL_RANK; without them there is one process."""

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

from vitling.data.host import read_number
from vitling.errors import UserError

TIMEOUT = timedelta(minutes=30)  # the main process may have many images to decode while the others wait


@dataclass(frozen=True)
class Processes:
    rank: int
    world: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True in the process that writes files."""
        return self.rank == 0

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the body in the main process first, so that the others find its result in the cache."""
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
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
        """Return the largest flag of all processes, so that all take the same decision."""
        if self.world == 1:
            return flag
        flags = torch.tensor([flag], device=self.device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return int(flags.item())


@contextmanager
def init_processes(device: str = "auto") -> Iterator[Processes]:
    """Join the processes that torchrun started into one group. A nested call reuses the outer group: a second group
    would find the keys of the first in torchrun's store and could wait forever."""
    world, rank = int(read_number("WORLD_SIZE", 1)), int(read_number("RANK", 0))
    chosen = choose_device(device, int(read_number("LOCAL_RANK", 0)) if world > 1 else None)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world == 1:
        yield Processes(0, 1, chosen)
        return
    if dist.is_initialized():
        yield Processes(rank, world, chosen)
        dist.barrier()
        return
    _check_environment(rank, world)
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield Processes(rank, world, chosen)
        dist.barrier()  # rank 0 hosts the store that the other processes still talk to
    finally:
        gc.collect()  # DDP modules keep the group alive, whose threads must be joined before the process exits
        dist.destroy_process_group()


def _check_environment(rank: int, world: int) -> None:
    """Raise UserError if the variables that torchrun sets are incomplete; clusters often set some of them."""
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise UserError(
            f"WORLD_SIZE={world} asks for several processes, but other variables are missing: {', '.join(missing)}. "
            "Start the processes with torchrun, or unset WORLD_SIZE for one process."
        )
    if not 0 <= rank < world:
        raise UserError(f"RANK={rank} must be from 0 to {world - 1}, since WORLD_SIZE={world}.")
    port = int(read_number("MASTER_PORT", 0))
    if not 0 < port < 2**16:
        raise UserError(f"MASTER_PORT={port} is not a port.")


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank or 0)
        return torch.device("mps" if torch.backends.mps.is_available() and local_rank is None else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"{name!r} is not a device. Use auto, cpu, cuda, cuda:1 or mps.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"Device {name}: this machine has no Apple GPU that torch can use. Use cpu.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"Device {name}: torch finds no CUDA GPU on this machine. Use cpu.")
    if device.type == "cuda":
        return torch.device("cuda", local_rank if local_rank is not None else device.index or 0)
    return device
