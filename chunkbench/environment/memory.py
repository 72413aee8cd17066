"""Total and available memory, as the machine and its control groups report them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

NO_LIMIT = 1 << 60
"""Larger limits mean "no limit": version 1 of control groups writes it as a number near 2**63."""


class Group(NamedTuple):
    """A control group with a memory limit, bytes."""

    limit: int
    used: int
    """Without the page cache, which the kernel frees before memory runs out."""


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


def gpu_memory() -> int | None:
    """Free bytes of the current GPU; None if torch can use no GPU."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else None


def memory_groups(root: Path = Path("/")) -> list[Group]:
    """The control groups above this process that limit memory (versions 1 and 2). `root` contains proc/ and sys/."""
    groups = []
    for controllers, path in _memberships(root):
        if controllers == "":
            top, names, cache = root / "sys/fs/cgroup", ("memory.max", "memory.current"), ""
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            cache = "total_"
        else:
            continue
        for folder in _upwards(top, path):
            limit, used = (_number(folder / name) for name in names)
            if limit is not None and limit < NO_LIMIT and used is not None:
                groups.append(Group(limit, max(0, used - _reclaimable(folder, cache))))
    return groups


def _memberships(root: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        yield controllers, path


def _upwards(top: Path, path: str) -> Iterator[Path]:
    """The group's folder and all folders above it, up to `top`.

    In a container the group's path may not exist; then the limits are in the mounted folder `top`.
    """
    folder = top / path.strip("/")
    while folder != top:
        yield folder
        folder = folder.parent
    yield top


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _reclaimable(folder: Path, prefix: str) -> int:
    fields = {f"{prefix}inactive_file", f"{prefix}active_file", "slab_reclaimable"}
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    pairs = (line.split() for line in lines)
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in fields)
