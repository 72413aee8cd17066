"""Implements the timed loop's `Device` with PyTorch's CUDA calls. The loop makes all decisions."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from chunkbench.bench.environment.gpu import Nvml, open_nvml
from chunkbench.bench.measure.gpu_loop import Call, CaptureError
from chunkbench.bench.measure.loop import no_collections

_CYCLES_PER_US = 2000
"""Clock cycles that `stall` waits for each microsecond: about the highest clock of a data-centre GPU. At a lower clock
the device waits longer than asked, which does no harm."""


class CudaDevice:
    """The current device and stream."""

    def __init__(self) -> None:
        self._side = torch.cuda.Stream()
        self._scratch = torch.ones(1, device="cuda")
        self._failed: list[torch.cuda.CUDAGraph] = []

    def synchronise(self) -> None:
        torch.cuda.synchronize()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) * 1000

    def stall(self, us: float) -> None:
        torch.cuda._sleep(int(us * _CYCLES_PER_US))

    def capture(self, spans: Sequence[Sequence[Call]]) -> list[Call]:
        current = torch.cuda.current_stream()
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            for span in spans:
                for call in span:
                    call()
        current.wait_stream(self._side)
        torch.cuda.synchronize()
        # Without torch.cuda.graph, which empties the allocator's cache at every capture and in some versions collects
        # garbage: a point needs hundreds of captures. A garbage collection during a capture could make it invalid.
        with no_collections(), torch.cuda.stream(self._side):
            return [self._captured(span) for span in spans]

    def _captured(self, span: Sequence[Call]) -> Call:
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        graph.capture_begin(pool=pool)
        problem: RuntimeError | None = None
        try:
            for call in span:
                call()
        except RuntimeError as error:
            problem = error
        try:
            graph.capture_end()
        except RuntimeError as error:
            problem = problem or error  # the end of a failed capture raises too; keep the first error
        if problem is None:
            return graph.replay
        self._recover(graph, pool)
        if isinstance(problem, torch.OutOfMemoryError):
            raise problem
        text = str(problem).strip().partition("\n")[0]
        raise CaptureError(f"its decode cannot be captured in a CUDA graph: {text}") from problem

    def _recover(self, graph: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
        """Bring PyTorch back to its normal state after a failed capture.

        In PyTorch up to 2.12, the end of a failed capture raises before it informs the allocator, and the allocator
        then refuses to free memory. Random generators also stay in capture mode until a capture succeeds.
        """
        self._failed.append(graph)  # keep the graph: the allocator still asks it which stream was captured
        names = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")  # the name depends on the version
        end = next(getattr(torch._C, name) for name in names if hasattr(torch._C, name))
        with contextlib.suppress(RuntimeError):  # the allocator is already informed
            end(torch.cuda.current_device(), pool)
        with contextlib.suppress(RuntimeError):  # on an error here, the worker finds out that the device is lost
            clean = torch.cuda.CUDAGraph()
            clean.capture_begin(pool=torch.cuda.graph_pool_handle())
            self._scratch.add_(0)
            clean.capture_end()
        torch.cuda.synchronize()


def clock_reader() -> Nvml | None:
    """An NVML reader of the current device, which is a whole GPU or a MIG part. None if NVML cannot read it."""
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if uuid is None:
        return open_nvml()
    return open_nvml(f"GPU-{uuid}") or open_nvml(f"MIG-{uuid}")


def free_bytes() -> int:
    """Bytes of the current device that this process can allocate, including the memory that its allocator caches."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return int(free)
