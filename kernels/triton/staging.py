"""Integers on their way to the device: one buffer there, copied as a whole, asynchronously and from pinned memory."""

from __future__ import annotations

import numpy as np
import torch


class Staging:
    """A device buffer of int32, all zero at first, and its copy on the host, which is filled in place and then sent.

    Two pinned buffers take turns between them: `send` waits only where the copy before the last has not ended yet.
    Raises what the allocator raises.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        on_gpu = device.type == "cuda"
        self.device = torch.zeros(size, dtype=torch.int32, device=device)
        self.host = np.zeros(size, np.int32)
        """What the device holds after the next `send`."""
        self._pinned = [torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu) for _ in range(2)]
        self._events = [torch.cuda.Event() for _ in self._pinned] if on_gpu else []
        self._turn = 0

    def send(self) -> None:
        """Copy `host` to the device, behind what is queued there."""
        self._turn = 1 - self._turn
        if self._events:
            self._events[self._turn].synchronize()
        self._pinned[self._turn].numpy()[:] = self.host
        self.device.copy_(self._pinned[self._turn], non_blocking=True)
        if self._events:
            self._events[self._turn].record()
