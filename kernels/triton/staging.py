"""Integers on their way to the device: one buffer there, copied as a whole, asynchronously and from pinned memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


class Staging:
    """A device buffer of int32 and two host buffers that take turns, so that one can be filled while the other flies.

    `begin` waits only where the copy before the last has not ended yet.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flat = torch.empty(0, dtype=torch.int32, device=device)
        self._hosts: list[torch.Tensor] = []
        self._events: list[torch.cuda.Event] = []
        self._turn = 0

    def reserve(self, size: int) -> torch.Tensor:
        """A new device buffer of `size` int32; what the old one held is lost."""
        pinned = self._device.type == "cuda"
        self._flat = torch.zeros(size, dtype=torch.int32, device=self._device)
        self._hosts = [torch.zeros(size, dtype=torch.int32, pin_memory=pinned) for _ in range(2)]
        self._events = [torch.cuda.Event() for _ in self._hosts] if pinned else []
        return self._flat

    def begin(self) -> npt.NDArray[np.int32]:
        """The host buffer to fill for the next copy; what it holds is left over from an earlier one."""
        self._turn = 1 - self._turn
        if self._events:
            self._events[self._turn].synchronize()
        return self._hosts[self._turn].numpy()

    def commit(self) -> None:
        """Send the buffer that `begin` gave, all of it."""
        self._flat.copy_(self._hosts[self._turn], non_blocking=True)
        if self._events:
            self._events[self._turn].record()
