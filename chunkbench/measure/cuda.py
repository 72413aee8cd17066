"""PyTorch's CUDA device behind the `Device` of the loop: no more than calls, all that is decided is decided there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chunkbench.environment.gpu import Nvml, open_nvml
from chunkbench.measure.gpu_loop import Call, CaptureError

_CYCLES_PER_US = 1500
"""At about the clock of a data-centre GPU; how long a stall lasts need not be exact."""


class CudaDevice:
    """The current device and stream."""

    def __init__(self) -> None:
        self._side = torch.cuda.Stream()

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

    def capture(self, calls: Sequence[Call]) -> list[Call]:
        current = torch.cuda.current_stream()
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            for call in calls:
                call()
        current.wait_stream(self._side)
        torch.cuda.synchronize()
        # One pool for all: they are replayed one after the other, and none leaves anything in it for the next.
        pool = torch.cuda.graph_pool_handle()
        replays: list[Call] = []
        for call in calls:
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=pool, stream=self._side):
                    call()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                # What ends a capture that went wrong complains as well; the first complaint says what it was.
                first = error.__context__ or error
                text = str(first).strip().partition("\n")[0]
                raise CaptureError(f"its decode cannot be captured in a CUDA graph: {text}") from error
            finally:
                torch.cuda.set_stream(current)  # a capture that fails leaves its own behind
            replays.append(graph.replay)
        return replays


def clock_reader() -> Nvml | None:
    """NVML's view of the current device."""
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return open_nvml(f"GPU-{uuid}" if uuid else None)


def free_bytes() -> int:
    """Memory of the current device that this process could take, what it keeps unused included."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return int(free)
