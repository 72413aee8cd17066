"""Measures the load that other programs and the hypervisor cause during a measurement."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

import psutil

HEAVY = 0.2
"""A process is heavy if it keeps more than this many CPUs busy."""


class _Reading(NamedTuple):
    at: float
    total: float
    busy: float
    steal: float
    own: float


class NoiseMeter:
    """Measures how much CPU time the hypervisor takes, and how many CPUs other processes keep busy.

    `pids`: worker processes of this run. The CPU time of workers and of this process does not count as noise. The set
    may change between start and stop. The CPU time of an ended worker is known only if this process waited for the
    worker. Intervals below a second are inaccurate, because the kernel counts CPU time in ticks of about 10 ms. In a
    container, the figures describe the whole machine.
    """

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self.pids = set(pids)
        self._start: _Reading | None = None

    def start(self) -> None:
        self._start = self._read()

    def stop(self) -> dict[str, float]:
        """The noise since `start`. Raises RuntimeError if `start` was not called.

        `steal_fraction`: share of CPU time that the hypervisor took. `foreign_cpus`: mean number of CPUs that other
        processes kept busy. `load_average`: over the last minute. A second `stop` again covers all time since `start`.
        """
        if self._start is None:
            raise RuntimeError("NoiseMeter.stop() without start()")
        start, end = self._start, self._read()
        elapsed = max(end.at - start.at, 1e-9)
        foreign = (end.busy - start.busy) - (end.own - start.own)
        total = end.total - start.total
        return {
            "steal_fraction": max(0.0, (end.steal - start.steal) / total) if total > 0 else 0.0,
            "foreign_cpus": max(0.0, foreign / elapsed),
            "load_average": os.getloadavg()[0],
        }

    def _read(self) -> _Reading:
        times = psutil.cpu_times()
        steal = getattr(times, "steal", 0.0)
        # User time already includes guest time.
        busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
        total = busy + steal + times.idle + getattr(times, "iowait", 0.0)
        own = sum(_cpu_seconds(pid) for pid in {*self.pids, os.getpid()})
        return _Reading(time.monotonic(), total, busy, steal, own)


def heavy_processes(exclude_pids: Iterable[int] = (), interval_s: float = 0.2) -> list[str]:
    """Names of foreign processes that keep more than a fifth of a CPU busy, the busiest first.

    Watches for `interval_s` seconds. This process, its descendants and `exclude_pids` do not count. Gives only names,
    no paths or arguments. Several processes of one name are one entry, such as `name (3)`. Workers of the kernel
    (`kworker/0:1`, `kworker/1:0`) count as processes of one name.
    """
    ours = {os.getpid(), *exclude_pids, *(child.pid for child in psutil.Process().children(recursive=True))}
    before = {pid: _cpu_seconds(pid, children=False) for pid in psutil.pids() if pid not in ours}
    start = time.monotonic()
    time.sleep(interval_s)
    elapsed = time.monotonic() - start
    busy: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for pid, seconds in before.items():
        cpus = (_cpu_seconds(pid, children=False) - seconds) / elapsed
        if cpus > HEAVY and (name := _name(pid)):
            busy[name] += round(cpus * 1000)
            count[name] += 1
    return [name if count[name] == 1 else f"{name} ({count[name]})" for name, _ in busy.most_common()]


def _cpu_seconds(pid: int, children: bool = True) -> float:
    """CPU seconds of a process, optionally with those of children that it waited for; 0 after it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    own = float(times.user + times.system)
    return own + float(times.children_user + times.children_system) if children else own


def _name(pid: int) -> str:
    try:
        name = psutil.Process(pid).name()
    except psutil.Error:
        return ""
    # A kernel thread's name has its CPU or device after a slash; a process may use its path as its name.
    return PurePosixPath(name).name if name.startswith("/") else name.partition("/")[0]
