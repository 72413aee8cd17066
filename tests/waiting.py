"""Waits for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def wait_until(condition: Callable[[], bool], limit_s: float = 60) -> None:
    """Raises AssertionError when the condition has not come true in this time."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    """Also of a process for which nobody has waited."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
