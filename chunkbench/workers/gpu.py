"""The worker's side of measuring on a GPU: copies of sessions, rounds by mode, checks of what a mode really ran."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from chunkbench.baselines.contract import Session
from chunkbench.experiment.terms import Mode
from chunkbench.measure.caches import CacheSweeper
from chunkbench.measure.clocks import ClockGuard
from chunkbench.measure.gpu_loop import Device, decode_once, run_gpu_round
from chunkbench.measure.rotation import calls_of
from chunkbench.store.facts import Sampling
from chunkbench.workers.checks import Check
from chunkbench.workers.inputs import PooledInputs
from chunkbench.workers.storages import visible_bytes


class GpuRounds:
    """One device, for as long as the worker lives."""

    def __init__(self, device: Device, guard: ClockGuard, l2_bytes: int, free_bytes: Callable[[], int]) -> None:
        self._device, self._guard, self._l2_bytes, self._free_bytes = device, guard, l2_bytes, free_bytes
        self._sweeper: CacheSweeper | None = None

    def room(self) -> dict[str, Any]:
        """What the device has; asked when nothing is held but what stays."""
        gc.collect()
        return {"free_bytes": self._free_bytes(), "l2_bytes": self._l2_bytes}

    def settle(self) -> None:
        """Wait for what was queued, so that what goes wrong there does so before somebody else's request."""
        self._device.synchronise()

    def check(
        self, copies: Sequence[Session], inputs: PooledInputs, check: Check, out: torch.Tensor, steps: int, mode: Mode
    ) -> dict[str, Any]:
        """As a CPU's check, of every copy; the worst error. Times are of the first copy, once everything is loaded;
        `once_s` is that of all that the mode takes for one call, the capture of a graph included."""
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
                session.decode(check.q, out)  # compiles, and loads what is loaded at a first call
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
            "decode_s": decode_s,
            "once_s": once_s,
            "append_s": append_s,
            "max_error": worst,
            "kv_bytes": copies[0].kv_bytes(),
            # Of each: copies that shared their memory would not make any cache cold.
            "visible_bytes": visible_bytes(list(copies)) // len(copies),
            "work_items": copies[0].work_items(),
        }

    def round(
        self,
        copies: Sequence[Session],
        inputs: PooledInputs,
        out: torch.Tensor,
        timed: Sequence[int],
        nonce: int,
        mode: Mode,
        sweep: bool,
    ) -> dict[str, Any]:
        """One round, as a CPU's, with how the samples were taken and what the device did meanwhile."""
        done = run_gpu_round(
            copies,
            inputs,
            out,
            inputs.point.n_c,
            frozenset(timed),
            nonce,
            mode,
            self._sweep(inputs.point.device) if sweep else None,
            self._device,
            self._guard,
        )
        state, discarded = self._guard.finish()
        sampling = Sampling(copies=len(copies), calls=calls_of(mode, len(copies)), swept=sweep, l2_bytes=self._l2_bytes)
        return {
            "samples_us": done.decode_us,
            "append_us": done.append_us,
            "plan_us": done.plan_us,
            "work_items": copies[0].work_items(),
            "discarded": discarded,
            "drift": done.drift,
            "gpu": None if state is None else state.model_dump(mode="json"),
            "sampling": sampling.model_dump(),
        }

    def _sweep(self, device: str) -> Callable[[], None]:
        if self._sweeper is None:
            self._sweeper = CacheSweeper(device, self._l2_bytes)
        return self._sweeper.sweep


def cuda_rounds() -> GpuRounds:
    """This machine's device. Raises RuntimeError where there is none."""
    # Only here: a worker that measures on a CPU has no use for it.
    from chunkbench.measure.caches import last_level_cache_bytes
    from chunkbench.measure.cuda import CudaDevice, clock_reader, free_bytes

    return GpuRounds(CudaDevice(), ClockGuard(clock_reader()), last_level_cache_bytes("cuda"), free_bytes)


def lost() -> bool:
    """Whether an error has taken the device's context, and with it all that this process could still compute."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # raises where a capture that failed has left the allocator in the middle of it
    except RuntimeError:
        return True
    return False
