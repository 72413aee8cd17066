"""Memory of a fixed size for the GPU kernels' work descriptors and partial results."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from chunkbench.draft import MOST_ROWS
from chunkbench.kernels.compensation import CompensationTokens
from chunkbench.kernels.integers import NOWHERE, Ints
from chunkbench.kernels.items import ITEM_COLUMNS
from chunkbench.kernels.triton.constants import Sizes
from chunkbench.kernels.triton.planner import ITEM, Descriptors
from chunkbench.kernels.triton.staging import Staging

WORDS = MOST_ROWS // 32
"""Numbers of 32 bits in which a draft has a bit for each of its tokens."""


class Capacity(NamedTuple):
    """Numbers of entries of each kind that the buffers can hold."""

    items: int
    positions: int
    slots: int
    chunks: int
    batch: int

    def enough_for(self, needed: Capacity) -> bool:
        return all(have >= need for have, need in zip(self, needed, strict=True))

    def grown_to(self, needed: Capacity) -> Capacity:
        """Return a capacity that is enough for `needed`. Each number that is too small becomes 1.5 times the needed
        number, and at least 16.

        The additional half makes replacements of buffers rare. Each replacement invalidates captured graphs.
        """
        pairs = zip(self, needed, strict=True)
        return Capacity(*(have if have >= need else max(16, need + need // 2) for have, need in pairs))


class Buffers:
    """The descriptors that the kernels read, on the host and on the device, and memory for their partial results.

    Raises the allocator's error.
    """

    def __init__(self, capacity: Capacity, shape: Sizes, device: torch.device) -> None:
        self.capacity = capacity
        sizes = {
            "key_places": 2 * capacity.chunks,
            "value_places": 2 * capacity.chunks,
            "items": len(ITEM_COLUMNS) * capacity.items,
            "rows": len(ITEM_COLUMNS) * capacity.batch,
            "order": capacity.positions,
            "folds": capacity.slots,
        }
        begins = np.cumsum([0, *map(_aligned, sizes.values())]).tolist()
        spans = {name: slice(begin, begin + size) for (name, size), begin in zip(sizes.items(), begins, strict=False)}
        self._staging = Staging(device, begins[-1])
        host: dict[str, Any] = {name: self._staging.host[span] for name, span in spans.items()}
        self.device = {name: self._staging.device[span] for name, span in spans.items()}
        """Device arrays by the argument names of the kernels in `attention`."""
        for name in ("key_places", "value_places"):
            host[name] = host[name].view(np.int64)
            self.device[name] = self.device[name].view(torch.int64)
        self.host = host | {"items": host["items"].view(ITEM), "rows": host["rows"].view(ITEM)}
        """Host arrays by the same names. `send` copies changes to the device."""
        partial = capacity.slots, shape.heads
        self.device["partial_lse"] = torch.empty(partial, dtype=torch.float32, device=device)
        self.device["partial_out"] = torch.empty((*partial, shape.head_dim), dtype=torch.float32, device=device)

    def fill(self, descriptors: Descriptors, index: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """Replace all descriptors. Chunk i has the places `keys[i]` and `values[i]`, which go to position `index[i]`.
        Clears unused items and rows."""
        host = self.host
        host["key_places"][index], host["value_places"][index] = keys, values
        for name, rows in (("items", descriptors.items), ("rows", descriptors.rows)):
            filled, numbers = host[name].view(np.int32), rows.view(np.int32)  # records would be copied one by one
            filled[: len(numbers)] = numbers
            filled[len(numbers) :] = 0
        host["order"][: len(descriptors.order)] = descriptors.order
        host["folds"][: descriptors.slots] = descriptors.folds
        self.send()

    def send(self) -> None:
        """Copy the host arrays to the device."""
        self._staging.send()


def _aligned(numbers: int) -> int:
    """Room for int32 numbers that ends at a multiple of 128 bytes, because Triton compiles a kernel anew for another
    alignment of the array behind it."""
    return -(-numbers // 32) * 32


class Sights:
    """What the rows of drafts read, on the host and on the device. Raises the allocator's error."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows = rows = _aligned(rows)
        """Number of rows for which there is room."""
        self._staging = Staging(device, rows + rows * WORDS)
        self.reads, self.hidden = self._staging.device[:rows], self._staging.device[rows:]
        """Device arrays by the argument names of the kernels in `attention`."""

    def send(self, reads: Ints, hidden: npt.NDArray[np.uint64] | None = None) -> None:
        """Send the number of tokens that each row reads `[b]`, or, with `hidden` (`QueryRows.hidden`), the number of
        tokens of its sequence `[b]`."""
        host = self._staging.host
        host[: len(reads)] = reads
        if hidden is not None:
            host[self.rows :].reshape(-1, WORDS)[: len(reads)] = hidden.view(np.int32)
        self._staging.send()


class Means:
    """The compensation tokens of rows, on the host and on the device. Raises the allocator's error."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows = rows = _aligned(rows)
        """Number of rows for which there is room."""
        self._staging = Staging(device, 3 * rows)
        self.lost, self.shares, self.biases = (self._staging.device[i * rows : (i + 1) * rows] for i in range(3))
        """Device arrays by the argument names of `attention.merge_rows`."""
        self.shares, self.biases = self.shares.view(torch.float32), self.biases.view(torch.float32)

    def send(self, tokens: CompensationTokens) -> None:
        """Send what rows need, if it changed."""
        host, biases = np.zeros((3, self.rows), np.int32), tokens.biases * np.float32(np.log2(np.e))
        host[0] = NOWHERE
        host[0, : len(biases)] = tokens.entries
        host[1:, : len(biases)] = np.stack([tokens.shares, biases]).view(np.int32)
        if not np.array_equal(host.ravel(), self._staging.host):
            self._staging.host[:] = host.ravel()
            self._staging.send()
