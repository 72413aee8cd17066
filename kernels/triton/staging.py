"""Sends integers to the device. One asynchronous copy from pinned memory transfers the whole buffer."""

from __future__ import annotations

import numpy as np
import torch


class Staging:
    """A device buffer of int32, initially zero, and its copy on the host. Fill `host` in place, then call `send`.

    `send` uses two pinned buffers in turns. So it waits only if the copy before the previous one still runs. Raises the
    allocator's error.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        on_gpu = device.type == "cuda"
        self.device = torch.zeros(size, dtype=torch.int32, device=device)
        self.host = np.zeros(size, np.int32)
        """The contents of the device buffer after the next `send`."""
        self._pinned = [torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu) for _ in range(2)]
        self._events = [torch.cuda.Event() for _ in self._pinned] if on_gpu else []
        self._current = 0

    def send(self) -> None:
        """Copy `host` to the device, after the work that is queued there."""
        self._current = 1 - self._current
        if self._events:
            self._events[self._current].synchronize()
        self._pinned[self._current].numpy()[:] = self.host
        self.device.copy_(self._pinned[self._current], non_blocking=True)
        if self._events:
            self._events[self._current].record()
