"""Integers on their way to the device: one buffer there, copied as a whole, asynchronously and from pinned memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


class Staging:
    """A device buffer of int32 and its copy on the host, which is filled in place and then sent.

    Two pinned buffers take turns between them: `send` waits only where the copy before the last has not ended yet.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flat = torch.empty(0, dtype=torch.int32, device=device)
        self._pinned: list[torch.Tensor] = []
        self._events: list[torch.cuda.Event] = []
        self._turn = 0
        self.host: npt.NDArray[np.int32] = np.empty(0, np.int32)
        """What the device holds after the next `send`."""

    def reserve(self, size: int) -> torch.Tensor:
        """A new device buffer of `size` int32, all zero, as is `host`."""
        on_gpu = self._device.type == "cuda"
        self._flat = torch.zeros(size, dtype=torch.int32, device=self._device)
        self._pinned = [torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu) for _ in range(2)]
        self._events = [torch.cuda.Event() for _ in self._pinned] if on_gpu else []
        self.host = np.zeros(size, np.int32)
        return self._flat

    def send(self) -> None:
        """Copy `host` to the device, behind what is queued there."""
        self._turn = 1 - self._turn
        if self._events:
            self._events[self._turn].synchronize()
        self._pinned[self._turn].numpy()[:] = self.host
        self._flat.copy_(self._pinned[self._turn], non_blocking=True)
        if self._events:
            self._events[self._turn].record()
