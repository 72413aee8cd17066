"""Empties the caches before a timed call. In a model, other layers replace the contents of the caches between two
decode steps."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from chunkbench.bench.environment.cpu import read_cpu
from chunkbench.bench.measure.gpu_loop import L2_FACTOR

_TIMES = {"cpu": 2, "cuda": L2_FACTOR}


def sweep_bytes(device: str, cache_bytes: int) -> int:
    return max(_TIMES[device] * cache_bytes, 1 << 24)


class CacheSweeper:
    """Replaces the contents of the last-level cache.

    The sweeper reads a buffer and does not write to it, because dirty lines would be written back during the timed
    call.
    """

    def __init__(self, device: str, cache_bytes: int, file: str = "") -> None:
        """Allocate a buffer for a cache of `cache_bytes`. If `file` is given, map this file instead (`sweep_file`)."""
        if file:
            with open(file, "r+b") as opened:  # PyTorch warns of memory that must not be written
                mapped = mmap.mmap(opened.fileno(), 0, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self._buffer = torch.frombuffer(mapped, dtype=torch.float32)
        else:
            self._buffer = torch.ones(sweep_bytes(device, cache_bytes) // 4, device=device)

    def sweep(self) -> None:
        """Read a buffer: twice the size of the last-level cache on a CPU, `L2_FACTOR` times the L2 cache on a GPU."""
        self._buffer.sum()


@contextmanager
def sweep_file() -> Iterator[str]:
    """Allocate the buffer that several processes can map for their sweeps, and yield the path of the buffer.

    The buffer exists until the `with` block ends. The path is empty if memory is short or the system is not Linux. For
    a large cache, a buffer is half a gigabyte. On a virtual machine, a process needs a second to allocate such a
    buffer, but 20 ms to map it.
    """
    if sys.platform != "linux":
        yield ""
        return
    descriptor = os.memfd_create("chunkbench-sweep")
    try:
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        try:
            os.posix_fallocate(descriptor, 0, sweep_bytes("cpu", last_level_cache_bytes("cpu")))
        except OSError:  # each process then takes its own memory, and reports a lack
            path = ""
        yield path
    finally:
        os.close(descriptor)


def last_level_cache_bytes(device: str) -> int:
    """Size of the largest cache, in bytes."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
    cpu = read_cpu()
    return max(cpu.l1d_bytes or 0, cpu.l2_bytes or 0, cpu.l3_bytes or 0) or 1 << 25
