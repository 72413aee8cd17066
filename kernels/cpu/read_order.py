"""A probe that reads memory as the native kernels read it for a single row: the same pieces in the same order, without
arithmetic.

A kernel starts a new piece every few kilobytes. If this probe is slower than a probe of one long array, then the order
of reading is the reason for a low bandwidth, not the kernel's arithmetic.
"""

from __future__ import annotations

import numpy as np
import torch

from chunkbench.kernels.cpu.decode import NativeDecode
from chunkbench.kernels.cpu.store import BorrowedStore
from chunkbench.kernels.items import items_of_tables

_HEADS, _HEAD_DIM, _CHUNK_SIZE = 32, 128, 64
"""The shape of the paper's experiments."""
_CHUNKS_OF_ROW = 16


class ReadOrderProbe:
    """Reads a contiguous buffer `[n]` as the chunks of sequences that share nothing. A sequence has 16 chunks, with 32
    heads of dimension 128.

    `bytes`: number of bytes that one `run` reads; only whole sequences are read. Raises ValueError for a buffer that is
    smaller than one sequence. Raises NativeMissing without the compiled module.
    """

    def __init__(self, buffer: torch.Tensor, dtype: torch.dtype) -> None:
        store = BorrowedStore(buffer.view(-1).view(dtype), _CHUNK_SIZE, _HEADS, _HEAD_DIM)
        rows = buffer.nbytes // (store.chunk_bytes * _CHUNKS_OF_ROW)
        if rows < 1:
            raise ValueError(f"{buffer.nbytes} bytes are less than {_CHUNKS_OF_ROW} chunks of {store.chunk_bytes}")
        store.grow(rows * _CHUNKS_OF_ROW)
        self.bytes = store.capacity * store.chunk_bytes
        self._kernel = NativeDecode(store, _HEADS)
        counts = np.full(rows, _CHUNKS_OF_ROW)
        self._kernel.make(items_of_tables(np.arange(store.capacity), counts, np.arange(rows)), rows)

    def run(self) -> None:
        """Read the buffer once, on as many threads as PyTorch uses."""
        self._kernel.read()
