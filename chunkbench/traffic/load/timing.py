"""Helps a client to send requests on time, even if a server on the same machine keeps every CPU busy."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import platform
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SLICE_NS = 100_000
"""The shortest time slice that Linux allows, in nanoseconds."""
_ATTRIBUTES = "<IIQiIQQQII"
"""Layout of `struct sched_attr`: size, policy, flags, nice, priority, slice, and four numbers that stay 0."""
_SWITCH_S = 1e-4
"""Maximum time for which one thread keeps Python's lock while another one waits, in seconds."""


@contextmanager
def punctual() -> Iterator[None]:
    """A context in which this process reacts within a fraction of a millisecond, where the system allows it."""
    collecting, switch = gc.isenabled(), sys.getswitchinterval()
    gc.collect()
    gc.disable()  # a collection would delay a request; a measurement makes no cycles that matter
    sys.setswitchinterval(_SWITCH_S)
    try:
        with _short_slices():
            yield
    finally:
        sys.setswitchinterval(switch)
        if collecting:
            gc.enable()


async def at_due_times(dues: Sequence[float], launch: Callable[[int], None]) -> None:
    """Call `launch` in the event loop with the number of each due time (`time.perf_counter`) when that time has come.

    A thread waits for the times, because timers of an event loop are late by up to a millisecond: epoll takes only
    whole milliseconds.
    """
    events = asyncio.get_running_loop()
    stopped = threading.Event()

    def pace() -> None:
        with _short_slices():
            for number, due in enumerate(dues):
                if stopped.wait(min(due - time.perf_counter(), threading.TIMEOUT_MAX)):
                    return
                events.call_soon_threadsafe(launch, number)

    try:
        await asyncio.to_thread(pace)
    finally:
        stopped.set()


@contextmanager
def _short_slices() -> Iterator[None]:
    """Give the calling thread short time slices.

    Linux 6.12 and newer let a thread with a shorter slice run as soon as it wakes up; its share of the CPU stays the
    same. On other systems this function does nothing.
    """
    _set_slice(_SLICE_NS)
    try:
        yield
    finally:
        _set_slice(0)  # the default slice of the system


def _set_slice(nanoseconds: int) -> None:
    number = _SCHED_SETATTR.get(platform.machine()) if platform.system() == "Linux" else None
    if number is not None:
        attributes = struct.pack(_ATTRIBUTES, struct.calcsize(_ATTRIBUTES), 0, 0, 0, 0, nanoseconds, 0, 0, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
