"""Total and available memory, as the machine and its control groups report them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil

from chunkbench.bench.environment.cgroups import control_groups, read_lines, read_text

NO_LIMIT = 1 << 60
"""Limits above this number of bytes mean "no limit": version 1 of control groups then reports a number near 2**63."""


class ControlGroup(NamedTuple):
    """A control group with a memory limit. All numbers are bytes."""

    limit: int
    used: int
    """Used bytes without the page cache, which the kernel frees before memory runs out."""


def total_memory() -> int:
    """Bytes of memory of the machine."""
    return psutil.virtual_memory().total


def memory_limit(root: Path = Path("/")) -> int | None:
    """The lowest limit, in bytes, of the control groups above this process; None without a limit."""
    return min((group.limit for group in memory_groups(root)), default=None)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be allocated now without swapping: the minimum over the machine and all control groups."""
    rooms = [group.limit - group.used for group in memory_groups(root)]
    return max(0, min([psutil.virtual_memory().available, *rooms]))


def oom_kills(root: Path = Path("/")) -> int:
    """Number of processes that the kernel has killed since it started, because the machine or a control group had no
    memory left.

    0 if the kernel does not count them.
    """
    pairs = (line.split() for line in read_lines(root / "proc/vmstat"))
    return sum(int(pair[1]) for pair in pairs if pair[0] == "oom_kill")


def gpu_memory() -> int | None:
    """Free bytes of the current GPU; None if torch can use no GPU."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else None


def memory_groups(root: Path = Path("/")) -> list[ControlGroup]:
    """The control groups above this process that limit memory (versions 1 and 2). `root` contains proc/ and sys/."""
    groups = []
    for version, folder in control_groups("memory", root):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (_number(folder / name) for name in names)
        if limit is not None and limit < NO_LIMIT and used is not None:
            groups.append(ControlGroup(limit, max(0, used - _reclaimable(folder, "" if version == 2 else "total_"))))
    return groups


def _number(path: Path) -> int | None:
    text = read_text(path) or ""
    return int(text) if text.isdigit() else None


def _reclaimable(folder: Path, prefix: str) -> int:
    fields = {f"{prefix}inactive_file", f"{prefix}active_file", "slab_reclaimable"}
    pairs = (line.split() for line in read_lines(folder / "memory.stat"))
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in fields)
