"""Cold caches: the state in which a decode step finds the caches after the rest of a model has run."""

from __future__ import annotations

import torch

from chunkbench.environment.cpu import read_cpu
from chunkbench.measure.rotation import L2_FACTOR

_TIMES = {"cpu": 2, "cuda": L2_FACTOR}


def sweep_bytes(device: str, cache_bytes: int) -> int:
    """Bytes that a sweep reads."""
    return max(_TIMES[device] * cache_bytes, 1 << 24)


class CacheSweeper:
    """Replaces the contents of the last-level cache.

    It reads its buffer and does not write it, because dirty lines would be written back during the timed call.
    """

    def __init__(self, device: str, cache_bytes: int) -> None:
        self._buffer = torch.ones(sweep_bytes(device, cache_bytes) // 4, device=device)

    def sweep(self) -> None:
        """Read twice the size of the last-level cache; on a GPU `L2_FACTOR` times, as the copies of a rotation hold."""
        self._buffer.sum()


def last_level_cache_bytes(device: str) -> int:
    """Size of the largest cache between the cores (or multiprocessors) and memory."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
    cpu = read_cpu()
    return max(cpu.l1d_bytes or 0, cpu.l2_bytes or 0, cpu.l3_bytes or 0) or 1 << 25
