"""The worker's part of measurements on a GPU: copies of sessions, rounds in each mode, checks of each mode's output."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from chunkbench.bench.contract import Session
from chunkbench.bench.experiment.terms import Mode
from chunkbench.bench.measure.clocks import ClockGuard
from chunkbench.bench.measure.gpu_loop import Device, calls_of, decode_once, run_gpu_round
from chunkbench.bench.store.results import GpuSampling
from chunkbench.bench.workers.checks import Check
from chunkbench.bench.workers.heap import visible_bytes
from chunkbench.bench.workers.inputs import PointInputs


class GpuRounds:
    """Rounds and checks on one device. One object lives as long as the worker."""

    def __init__(self, device: Device, guard: ClockGuard, l2_bytes: int, free_bytes: Callable[[], int]) -> None:
        self._device, self._guard, self._l2_bytes, self._free_bytes = device, guard, l2_bytes, free_bytes

    def room(self) -> dict[str, Any]:
        """Free memory and L2 size of the device, in bytes. Call this method after the sessions of the last point are
        released."""
        gc.collect()
        return {"free_bytes": self._free_bytes(), "l2_bytes": self._l2_bytes}

    def settle(self) -> None:
        """Wait for all queued work, so that its errors appear in this request and not in the next one."""
        self._device.synchronise()

    def check(
        self, copies: Sequence[Session], inputs: PointInputs, check: Check, out: torch.Tensor, steps: int, mode: Mode
    ) -> dict[str, Any]:
        """Check the output of every copy and report the largest error.

        `append_s`: mean seconds of one append and plan of the first copy. `decode_s`: seconds of the first copy's
        second decode, because the first decode also loads code. `once_s`: seconds of one decode in this mode, including
        the capture of a graph.
        """
        device, append_s, decode_s, once_s, worst = self._device, 0.0, 0.0, 0.0, 0.0
        for number, session in enumerate(copies):
            session.rewind()
            device.synchronise()
            started = perf_counter()
            for step in range(1, steps + 1):
                session.append(*inputs.completion(step))
                session.plan()
            device.synchronise()
            appended = perf_counter()
            if number == 0:
                session.decode(check.q, out)  # compiles and loads everything that a first call needs
                device.synchronise()
                called = perf_counter()
                session.decode(check.q, out)
                device.synchronise()
                decode_s, append_s = perf_counter() - called, (appended - started) / steps
            began = perf_counter()
            decode_once(session, check.q, out, mode, device)
            once_s = perf_counter() - began
            worst = max(worst, check.max_error(out))
        return {
            "deviation": check.deviation(out),
            "decode_s": decode_s,
            "once_s": once_s,
            "append_s": append_s,
            "max_error": worst,
            "kv_bytes": copies[0].kv_bytes(),
            # Per copy: copies that share memory show fewer bytes than they report, and would not make a cache cold.
            "visible_bytes": visible_bytes(list(copies)) // len(copies),
            "work_items": copies[0].work_items(),
        }

    def round(
        self,
        copies: Sequence[Session],
        inputs: PointInputs,
        out: torch.Tensor,
        timed: Sequence[int],
        nonce: int,
        mode: Mode,
        sweep: Callable[[], None] | None,
    ) -> dict[str, Any]:
        """Run one round (`run_gpu_round`). The reply also has the state of the device and the way of sampling."""
        result = run_gpu_round(
            copies,
            inputs,
            out,
            inputs.point.n_c,
            frozenset(timed),
            nonce,
            mode,
            sweep,
            self._device,
            self._guard,
        )
        state, discarded = self._guard.finish()
        sampling = GpuSampling(
            copies=len(copies),
            calls=calls_of(mode, len(copies)),
            swept=sweep is not None,
            l2_bytes=self._l2_bytes,
        )
        return {
            "samples_us": result.decode_us,
            "append_us": result.append_us,
            "plan_us": result.plan_us,
            "work_items": copies[0].work_items(),
            "discarded": discarded,
            "drift": result.drift,
            "gpu": None if state is None else state.model_dump(mode="json"),
            "sampling": sampling.model_dump(),
        }


def cuda_rounds() -> GpuRounds:
    """Rounds on the current CUDA device. Raises RuntimeError if there is none."""
    # Import here, because a worker that measures on a CPU does not need these modules.
    from chunkbench.bench.measure.caches import last_level_cache_bytes
    from chunkbench.bench.measure.cuda import CudaDevice, clock_reader, free_bytes

    return GpuRounds(CudaDevice(), ClockGuard(clock_reader()), last_level_cache_bytes("cuda"), free_bytes)


def lost() -> bool:
    """Whether an error has destroyed the device's context, so that this process can compute nothing more on it."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # raises if a failed capture has left the allocator in capture mode
    except RuntimeError:
        return True
    return False
