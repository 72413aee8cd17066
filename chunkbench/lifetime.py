"""Ends a process when the process that started it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "CHUNKBENCH_PARENT"
"""Environment variable with the id of the process that starts a worker."""
_PR_SET_PDEATHSIG = 1


def follow(parent: int) -> None:
    """Begin a process of a pool. Ctrl-C reaches all processes of the terminal, so this process ignores it: the parent
    ends its processes, and they end when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when its parent ends. `parent` is the id of the parent.

    Exits at once if the parent has already ended. Does nothing on systems other than Linux. For Linux the parent is the
    thread that started the process, so the process also ends when this thread ends.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent != os.getppid():  # the parent had ended before the call above
        os._exit(1)
