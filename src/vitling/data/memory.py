"""What the host has for us: memory that is free, of the machine and of the container that we may be in, and cores."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# version: folder of the controller, limit, usage, and the line of memory.stat that counts what can be given back
_V2 = ("", "memory.max", "memory.current", "inactive_file")
_V1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def cores() -> int:
    """That this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_host_memory() -> int:
    """Bytes that can be used without swapping, and without being killed for them."""
    of_groups = container_memory(_CGROUPS, _own_groups())
    return min([_machine_memory(), *of_groups])


def container_memory(root: Path, groups: dict[str, str]) -> list[int]:
    """What the memory limit of each group above this process leaves. `groups`: its paths under "" (v2), "memory"."""
    left = []
    for controller, limit, usage, reclaimable in (_V2, _V1):
        top = root / controller
        # inside a container the path is often that of the host and not there; the container's own limit is at the top
        folder = top / groups.get(controller, "").strip("/")
        for group in {top, folder, *folder.parents}:
            if group == top or top in group.parents:
                free = _left(group / limit, group / usage, group / "memory.stat", reclaimable)
                left += [] if free is None else [free]
    return left


def _left(limit: Path, usage: Path, stat: Path, reclaimable: str) -> int | None:
    try:
        most, used = int(limit.read_text()), int(usage.read_text())  # "max", for no limit, is a ValueError
        counts = dict(line.split() for line in stat.read_text().splitlines())
        return max(0, most - used + int(counts.get(reclaimable, 0)))
    except (OSError, ValueError):
        return None


def _own_groups() -> dict[str, str]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    fields = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return {controller: path for _, controllers, path in fields for controller in controllers.split(",")}


def _machine_memory() -> int:
    try:
        with open("/proc/meminfo") as file:
            available = next(line for line in file if line.startswith("MemAvailable"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):  # not Linux: all of it
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
