"""What the host has for us: memory that is free, of the machine and of the container that we may be in, and cores."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# version: folder of the controller, limit, usage, and the line of memory.stat that counts what can be given back
_V2 = ("", "memory.max", "memory.current", "inactive_file")
_V1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def count_cores() -> int:
    """That this process may run on; of a container that may use the time of some alone, so many."""
    may_run_on = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min([may_run_on, *container_cores(_CGROUPS, _own_groups())])))


def container_cores(root: Path, groups: dict[str, str]) -> list[float]:
    """The CPU time that each group above this process may have, in cores. `groups`: its paths under "" (v2), "cpu"."""
    quotas = [_quota(group / "cpu.max") for group in _above(root, "", groups)]
    quotas += [_quota(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us") for group in _above(root, "cpu", groups)]
    return [quota for quota in quotas if quota is not None]


def _quota(*files: Path) -> float | None:
    """Two numbers, in one file or in two. No limit is "max" or -1."""
    try:
        time, period = (int(number) for file in files for number in file.read_text().split())
    except (OSError, ValueError):
        return None
    return time / period if time > 0 and period > 0 else None


def free_host_memory() -> int:
    """Bytes that can be used without swapping, and without being killed for them."""
    of_groups = container_memory(_CGROUPS, _own_groups())
    return min([_machine_memory(), *of_groups])


def container_memory(root: Path, groups: dict[str, str]) -> list[int]:
    """What the memory limit of each group above this process leaves. `groups`: its paths under "" (v2), "memory"."""
    left = []
    for controller, limit, usage, reclaimable in (_V2, _V1):
        for group in _above(root, controller, groups):
            free = _left(group / limit, group / usage, group / "memory.stat", reclaimable)
            left += [] if free is None else [free]
    return left


def _above(root: Path, controller: str, groups: dict[str, str]) -> set[Path]:
    """Folders of the groups that this process is in. Inside a container the path is often that of the host and not
    there; the container's own limit is at the top."""
    top = root / controller
    folder = top / groups.get(controller, "").strip("/")
    return {top, *(group for group in (folder, *folder.parents) if top in group.parents)}


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
