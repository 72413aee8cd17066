"""Probes the machine's peak read bandwidth and matrix rate, inside every round and for estimates."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from functools import cache
from time import perf_counter

import torch

from chunkbench.bench.store.results import Peaks
from chunkbench.kernels import cpu as native
from chunkbench.kernels.cpu.decode import chosen_isa
from chunkbench.kernels.cpu.read_order import ReadOrderProbe

_PASSES = 3
_MATRIX_SECONDS = 0.02
_CALLS = 8
"""Number of calls between two events on a GPU. The time is averaged over the calls, so that the delay before the first
call counts little."""


class PeakProbe:
    """Probes the peak rates of one device for one dtype. The buffers are allocated once.

    Read bandwidth is the highest rate of several probes. On every device, PyTorch sums a buffer that is larger than
    any cache. On a CPU, native code sums the buffer, and reads the buffer in the order in which the native kernels
    read. On a GPU, one half of the buffer is copied to the other half.

    Matrix rate is the rate of PyTorch's matrix product. On a CPU, native code also multiplies matrices in registers,
    and the higher of the two rates counts. On a GPU, times are measured between CUDA events.
    """

    def __init__(self, device: str, dtype: str, threads: int, buffer_bytes: int = 1 << 29) -> None:
        self._device, self._dtype, self._threads = device, dtype, threads
        self._buffer = torch.ones(buffer_bytes // 4, device=device)
        self._matrix = self._sized_matrix()
        self._product = torch.empty_like(self._matrix)
        self._kernel_reads = None
        if device == "cpu" and native.native() is not None:
            with contextlib.suppress(ValueError):  # a buffer on a small machine may hold no sequence
                self._kernel_reads = ReadOrderProbe(self._buffer, getattr(torch, dtype))

    def probe(self) -> Peaks:
        """Probe once. Each rate is a median of several passes, so that a single interruption has no effect."""
        read = self._buffer.nbytes / self._seconds(lambda: self._buffer.sum())
        size = self._matrix.shape[0]
        product = 2 * size**3 / self._seconds(lambda: torch.mm(self._matrix, self._matrix, out=self._product))
        rate = kernel_read = None
        if self._device == "cuda":
            half = len(self._buffer) // 2
            copied = 2 * self._buffer[:half].nbytes / self._seconds(self._copy_half)
            return Peaks(
                read_bytes_per_s=max(read, copied),
                matrix_flops_per_s=product,
                matrix_torch_flops_per_s=product,
                sum_bytes_per_s=read,
                copy_bytes_per_s=copied,
            )
        if self._device == "cpu" and native.native() is not None:
            seconds = statistics.median(native.read_seconds(self._buffer, self._threads) for _ in range(_PASSES))
            read = max(read, self._buffer.nbytes / seconds)
            if self._kernel_reads is not None:
                kernel_read = self._kernel_reads.bytes / self._seconds(self._kernel_reads.run)
                read = max(read, kernel_read)
            # The highest rate of several short probes counts: an interruption lowers a rate, and then it is no limit.
            part_ms = 1000 * _MATRIX_SECONDS / _PASSES
            isa = chosen_isa()
            rate = max(native.matrix_flops_per_s(self._dtype, self._threads, part_ms, isa) for _ in range(_PASSES))
        return Peaks(
            read_bytes_per_s=read,
            matrix_flops_per_s=max(product, rate or 0.0),
            matrix_torch_flops_per_s=product,
            matrix_native_flops_per_s=rate,
            kernel_read_bytes_per_s=kernel_read,
        )

    def _copy_half(self) -> None:
        """Copy one half of the buffer to the other. Bytes read plus bytes written are the size of the buffer."""
        half = len(self._buffer) // 2
        self._buffer[half : 2 * half].copy_(self._buffer[:half])

    def _sized_matrix(self) -> torch.Tensor:
        """A square matrix whose product takes long enough to time. The matrix is smaller for emulated dtypes, which are
        100x slower."""
        size = 128
        while True:
            matrix = torch.randn(size, size, device=self._device).to(getattr(torch, self._dtype))
            torch.mm(matrix, matrix)
            self._synchronise()
            started = perf_counter()
            torch.mm(matrix, matrix)
            self._synchronise()
            if perf_counter() - started > _MATRIX_SECONDS / 4 or size >= 8192:
                return matrix
            size *= 2

    def _seconds(self, work: Callable[[], object]) -> float:
        if self._device == "cuda":
            return statistics.median(_seconds_between_events(work) for _ in range(_PASSES))
        times = []
        for _ in range(_PASSES):
            started = perf_counter()
            work()
            times.append(perf_counter() - started)
        return statistics.median(times)

    def _synchronise(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def probe_cpu(dtype: str, threads: int) -> Peaks:
    """Probe this machine's CPUs now, in a fraction of a second. Keeps no buffers."""
    return PeakProbe("cpu", dtype, threads, 1 << 27).probe()


@cache
def cpu_peaks(dtype: str) -> Peaks:
    """The peaks of this machine's CPUs, for estimates. Probed once per process."""
    return probe_cpu(dtype, torch.get_num_threads())


def _seconds_between_events(work: Callable[[], object]) -> float:
    """Seconds per call, averaged over `_CALLS` calls, so that the delay before the first one counts little."""
    work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_CALLS):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000 / _CALLS
