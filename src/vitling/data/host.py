"""Free memory and CPU cores of the host, within the limits of a container."""

from __future__ import annotations

import math
import os
from pathlib import Path

from vitling.errors import UserError

_CGROUPS = Path("/sys/fs/cgroup")
# cgroup version: folder of the controller, files of limit and usage, and the reclaimable line of memory.stat
_V2 = ("", "memory.max", "memory.current", "inactive_file")
_V1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def read_number(variable: str, default: float) -> float:
    """Read a number from an environment variable; raise UserError for another text."""
    text = os.environ.get(variable) or str(default)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UserError(f"The environment variable {variable} is {text!r}; expected a number from 0.")
    return number


def count_cores() -> int:
    """Count the cores this process may use: its CPU affinity, capped by the container's CPU quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min([affinity, *container_cores(_CGROUPS, _read_own_groups())])))


def has_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the CPU has instructions for bf16; False where that is unknown."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    flags = next((line.split() for line in lines if line.lower().startswith(("flags", "features"))), [])
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def container_cores(root: Path, groups: dict[str, str]) -> list[float]:
    """Return the CPU quotas, in cores, of this process's cgroups. `groups`: its paths under "" (v2) and "cpu" (v1)."""
    quotas = [_read_quota(group / "cpu.max") for group in _list_ancestors(root, "", groups)]
    v1 = _list_ancestors(root, "cpu", groups)
    quotas += [_read_quota(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us") for group in v1]
    return [quota for quota in quotas if quota is not None]


def _read_quota(*files: Path) -> float | None:
    """Read quota and period from one file (v2) or two (v1); "max" or -1 means no limit."""
    try:
        time, period = (int(number) for file in files for number in file.read_text().split())
    except (OSError, ValueError):
        return None
    return time / period if time > 0 and period > 0 else None


def get_free_memory() -> int:
    """Return the bytes that can be used without swapping or exceeding the container's limit."""
    return min([_read_machine_memory(), *container_memory(_CGROUPS, _read_own_groups())])


def container_memory(root: Path, groups: dict[str, str]) -> list[int]:
    """Return the bytes left in each cgroup of this process. `groups`: its paths under "" (v2) and "memory" (v1)."""
    left = []
    for controller, limit, usage, reclaimable in (_V2, _V1):
        for group in _list_ancestors(root, controller, groups):
            free = _read_free(group / limit, group / usage, group / "memory.stat", reclaimable)
            left += [] if free is None else [free]
    return left


def _list_ancestors(root: Path, controller: str, groups: dict[str, str]) -> set[Path]:
    """List the folders of this process's cgroups. Inside a container the path is often the host's and does not exist;
    the container's own limit is at the top."""
    top = root / controller
    folder = top / groups.get(controller, "").strip("/")
    return {top, *(group for group in (folder, *folder.parents) if top in group.parents)}


def _read_free(limit: Path, usage: Path, stat: Path, reclaimable: str) -> int | None:
    try:
        most, used = int(limit.read_text()), int(usage.read_text())  # "max" (no limit) raises ValueError
        counts = dict(line.split() for line in stat.read_text().splitlines())
        return max(0, most - used + int(counts.get(reclaimable, 0)))
    except (OSError, ValueError):
        return None


def _read_own_groups() -> dict[str, str]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    fields = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return {controller: path for _, controllers, path in fields for controller in controllers.split(",")}


def _read_machine_memory() -> int:
    try:
        with open("/proc/meminfo") as file:
            available = next(line for line in file if line.startswith("MemAvailable"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):  # not Linux: all of the memory
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
