"""The memory behind the GPU kernels' work descriptors and partial results, of a fixed size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from chunkbench.kernels.triton.planner import Descriptors
from chunkbench.kernels.triton.staging import Staging
from chunkbench.kernels.triton.store import TritonStore


class Rooms(NamedTuple):
    """How much of each the buffers take."""

    items: int
    positions: int
    slots: int
    chunks: int
    batch: int

    def enough_for(self, needed: Rooms) -> bool:
        """Whether nothing of it is too small."""
        return all(have >= need for have, need in zip(self, needed, strict=True))

    def grown_to(self, needed: Rooms) -> Rooms:
        """Half as much again of what is too small: replacing buffers makes captured graphs void."""
        pairs = zip(self, needed, strict=True)
        return Rooms(*(have if have >= need else max(16, need + need // 2) for have, need in pairs))


class Buffers:
    """Descriptors as the kernels read them, on the host and on the device, and room for what they write.

    Made as a whole or not at all: raises what the allocator raises.
    """

    def __init__(self, rooms: Rooms, store: TritonStore, heads: int) -> None:
        self.rooms = rooms
        sizes = {
            "key_places": 2 * rooms.chunks,
            "value_places": 2 * rooms.chunks,
            "items": 8 * rooms.items,
            "rows": 4 * rooms.batch,
            "order": rooms.positions,
            "folds": rooms.slots,
        }
        # Each begins at a multiple of 128 bytes: a kernel is compiled anew for addresses that are aligned differently.
        wholes = [-(-size // 32) * 32 for size in sizes.values()]
        ends = np.cumsum(wholes).tolist()
        spans = {name: slice(end - whole, end) for name, whole, end in zip(sizes, wholes, ends, strict=True)}
        self._staging = Staging(store.device, ends[-1])
        host = {name: self._staging.host[span] for name, span in spans.items()}
        self.device = {name: self._staging.device[span] for name, span in spans.items()}
        """By name, as `attention` calls them."""
        for name in ("key_places", "value_places"):
            host[name] = host[name].view(np.int64)
            self.device[name] = self.device[name].view(torch.int64)
        self.host = host | {"items": host["items"].reshape(-1, 8), "rows": host["rows"].reshape(-1, 4)}
        """By the same names; changes reach the device by `send`."""
        shape, device = (rooms.slots, heads), store.device
        self.device["partial_lse"] = torch.empty(shape, dtype=torch.float32, device=device)
        self.device["partial_out"] = torch.empty((*shape, store.head_dim), dtype=torch.float32, device=device)
        counters = rooms.batch * store.kv_heads
        self.device["counters"] = torch.zeros(counters, dtype=torch.int32, device=device)

    def fill(self, made: Descriptors, at: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """Replace everything, the places of chunks being written `at`; what is left over is no item and no row."""
        host = self.host
        host["key_places"][at], host["value_places"][at] = keys, values
        for name, rows in (("items", made.items), ("rows", made.rows)):
            host[name][: len(rows)] = rows
            host[name][len(rows) :] = 0
        host["order"][: len(made.order)] = made.order
        host["folds"][: made.slots] = made.folds
        self.send()

    def send(self) -> None:
        """Bring the device up to date with the host."""
        self._staging.send()
