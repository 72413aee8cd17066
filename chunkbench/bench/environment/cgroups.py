"""Reads the control groups (versions 1 and 2) that limit the CPUs and the memory of this process."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """Find the control groups in which `controller` (cpu, memory) may limit this process.

    Yields the version (1 or 2) and the folder of each group, the innermost group first. `root` contains proc/ and sys/.
    In a container, the outer groups may be invisible.
    """
    standard = root / "sys/fs/cgroup"
    for line in read_lines(root / "proc/self/cgroup") or ["0::/", f"1:{controller}:/"]:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, tops = 2, _mounts(root, "cgroup2", "") or [("/", standard)]
        elif controller in controllers.split(","):
            names = dict.fromkeys((controller, controllers))
            version, tops = 1, _mounts(root, "cgroup", controller) or [("/", standard / name) for name in names]
        else:
            continue
        for seen, top in tops:
            inside = path.removeprefix(seen) if seen == "/" or f"{path}/".startswith(f"{seen}/") else ""
            yield from ((version, folder) for folder in _upwards(top, inside))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Number of CPUs that the strictest group allows, such as 1.5; None without a quota."""
    quotas = []
    for version, folder in control_groups("cpu", root):
        if version == 2:
            quota, _, period = (read_text(folder / "cpu.max") or "").partition(" ")
        else:
            quota, period = (read_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def usable_threads(root: Path = Path("/")) -> int:
    """Number of logical CPUs that this process may use: the lower of affinity and quota. A quota is rounded up."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def read_text(path: Path) -> str | None:
    """The stripped text of a file of /proc or /sys; None if there is no such file."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_lines(path: Path) -> list[str]:
    """The lines of a file of /proc or /sys; empty if there is no such file."""
    text = read_text(path)
    return text.split("\n") if text else []


def _mounts(root: Path, kind: str, controller: str) -> list[tuple[str, Path]]:
    """For each mounted file system of this kind: the path of its top group, and the folder where it is mounted."""
    found = []
    for line in read_lines(root / "proc/self/mountinfo"):
        mount, _, system = line.partition(" - ")
        if system.split(" ")[0] == kind and (not controller or controller in system.split(" ")[-1].split(",")):
            group, folder = (_unescaped(field) for field in mount.split(" ")[3:5])
            found.append((group, root / folder.lstrip("/")))
    return found


def _unescaped(field: str) -> str:
    """A path of mountinfo, where a space is written as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def _upwards(top: Path, path: str) -> Iterator[Path]:
    """The group's folder and all folders above it, up to `top`."""
    folder = top / path.strip("/")
    while folder != top:
        yield folder
        folder = folder.parent
    yield top
