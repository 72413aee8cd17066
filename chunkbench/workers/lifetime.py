"""A worker does not outlive the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "CHUNKBENCH_PARENT"
"""Environment variable with the id of the process that starts the worker."""
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent ends. `parent` is the parent's id, by default from `PARENT`.

    Exits at once if the parent has already ended. Does nothing on systems other than Linux.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    expected = str(parent or os.environ.get(PARENT, ""))
    if expected and expected != str(os.getppid()):  # the parent ended before the call above
        os._exit(1)
