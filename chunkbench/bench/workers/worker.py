"""The worker's state and requests. It holds the inputs and sessions of one point. Each public method answers a
request."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import torch

from chunkbench.bench.contract import AnyImplementation, Session, supported
from chunkbench.bench.experiment.terms import Mode
from chunkbench.bench.measure.caches import CacheSweeper, last_level_cache_bytes
from chunkbench.bench.measure.calibration import CalibrationMeter
from chunkbench.bench.measure.loop import run_round
from chunkbench.bench.measure.peaks import PeakProbe
from chunkbench.bench.measure.profiler import TIMED, TRACED, TimedCall, repeat, timed_call, traced_call, watched_call
from chunkbench.bench.workers.checks import Check
from chunkbench.bench.workers.gpu_rounds import GpuRounds, cuda_rounds
from chunkbench.bench.workers.heap import make_room, reserve, visible_storages
from chunkbench.bench.workers.inputs import PointInputs, prime
from chunkbench.bench.workers.pages import huge_share
from chunkbench.bench.workers.protocol import PROTOCOL, WORKER_BYTES
from chunkbench.kernels.trace import TracedCall
from chunkbench.version import __version__

if TYPE_CHECKING:
    from chunkbench.bench.runner.sessions import AnySessions


class Worker:
    """State between requests: the open point, its sessions, its checks."""

    def __init__(self, work: AnySessions) -> None:
        self._work, self._registry = work, work.implementations()
        self._threads = torch.get_num_threads()
        self._loaded: dict[str, AnyImplementation] = {}
        self._sessions: dict[str, Session] = {}
        self._copies: dict[str, list[Session]] = {}
        self._gpu: GpuRounds | None = None
        self._checks: dict[tuple[int, str], Check] = {}
        self._inputs: PointInputs | None = None
        self._outs: dict[tuple[int, ...], torch.Tensor] = {}
        self._sweeper: CacheSweeper | None = None
        self._sweep_file = ""
        self._probe: tuple[tuple[str, str, int], PeakProbe] | None = None
        self._calibration_meter: CalibrationMeter | None = None

    def hello(self) -> dict[str, Any]:
        package = str(Path(__file__).parents[2])
        return {"protocol": PROTOCOL, "version": __version__, "pid": os.getpid(), "package": package}

    def preload(self, implementations: list[str]) -> dict[str, Any]:
        """Import adapters once, for all forked workers. Errors are ignored, because a later request reports them
        again."""
        for name in implementations:
            with contextlib.suppress(Exception):
                self._registry.load(name)
        return {}

    def warm(self, seed: int, dtype: str, device: str, sweep_file: str = "") -> dict[str, Any]:
        """Make the data that forked workers share: the pool of inputs, and the buffer that makes caches cold.

        With `sweep_file`, no buffer is made, because forked workers map this file (`measure.caches.sweep_file`). The
        data is made with one thread, because further threads do not survive a fork. Nothing is done for a GPU, because
        a GPU's state does not survive a fork either.
        """
        if device == "cpu":
            torch.set_num_threads(1)
            prime(seed, getattr(torch, dtype), device)
            self._sweep_file = sweep_file
            if not sweep_file:
                self._sweep_of(device)
            torch.set_num_threads(self._threads)
        return {}

    def survey(self, implementations: list[str], device: str) -> dict[str, Any]:
        """Label, availability and traits of each implementation."""
        entries = {}
        for name in implementations:
            label, answer = self._registry.availability(name, device)
            style = self._registry.style(name)
            stated = style.model_dump(mode="json", exclude_defaults=True)
            entry: dict[str, Any] = {
                "label": label,
                "ok": answer.ok,
                "reason": answer.reason,
                "remedy": answer.remedy,
                **({"status": "error"} if answer.fault else {}),
                "style": stated | {"line": style.line} if stated else {},
            }
            if answer.ok:
                loaded = self._load(name)
                entry |= {
                    "shares_storage": loaded.shares_storage,
                    "reads_shared_once": loaded.reads_shared_once,
                    "isa": loaded.isa(),
                    "package_version": loaded.package_version(),
                    "note": loaded.note,
                }
            entries[name] = entry
        return entries

    def reserve(self, size: int) -> dict[str, Any]:
        reserve(size, self._threads)
        return {}

    def open(self, point: dict[str, Any], seed: int, probe_bytes: int) -> dict[str, Any]:
        """Make the inputs of a point. The inputs of the last point are dropped."""
        self.close()
        opened = self._work.point.from_json(point)
        threads = opened.threads or self._threads
        torch.set_num_threads(threads)
        self._inputs = self._work.inputs(opened, seed)
        self._outs.clear()
        self._calibration_meter = CalibrationMeter(threads) if opened.device == "cpu" else None
        identity = (opened.device, opened.dtype, threads)
        if probe_bytes and (self._probe is None or self._probe[0] != identity):
            self._probe = None  # free the old buffer before the new one is allocated
            self._probe = (identity, PeakProbe(*identity, buffer_bytes=probe_bytes))
        return {"threads": threads}

    def room(self) -> dict[str, Any]:
        """Release everything of the last point. Report the GPU's free memory and L2 size, in bytes."""
        self.close()
        self._outs.clear()
        self._probe = None
        return self._gpu_rounds().room()

    def close(self) -> None:
        self._sessions.clear()
        self._copies.clear()
        self._checks.clear()
        self._inputs = None

    def supports(self, implementation: str) -> dict[str, Any]:
        return asdict(supported(self._load(implementation), self._given(implementation).point))

    def prepare(self, implementation: str, needs: int, copies: int = 1) -> dict[str, Any]:
        """Build a session of an implementation. On a GPU, build `copies` sessions. On a CPU, first free `needs`
        bytes."""
        inputs, loaded = self._given(implementation), self._load(implementation)
        if inputs.point.device == "cpu":
            make_room(needs, WORKER_BYTES)
        self._sessions[implementation] = loaded.prepare(inputs)
        more = [loaded.prepare(inputs) for _ in range(copies - 1)]
        self._copies[implementation] = [self._sessions[implementation], *more]
        if inputs.point.device == "cuda":
            self._gpu_rounds().settle()
        return {}

    def release(self, implementation: str) -> dict[str, Any]:
        self._sessions.pop(implementation, None)
        self._copies.pop(implementation, None)
        return {}

    def check(
        self, implementation: str, steps: int, nonce: int, sample: bool = False, mode: Mode = "eager"
    ) -> dict[str, Any]:
        """Append `steps` completion tokens, decode once with fresh queries, and compare the output with float64."""
        inputs, session = self._given(implementation), self._sessions[implementation]
        check, out = self._check(implementation, steps, nonce, sample), self._out(implementation)
        if inputs.point.device == "cuda":
            return self._gpu_rounds().check(self._copies[implementation], inputs, check, out, steps, mode)
        session.rewind()
        started = perf_counter()
        for step in range(1, steps + 1):
            session.append(*inputs.completion(step))
            session.plan()
        appended = perf_counter()
        out.fill_(float("nan"))
        called = perf_counter()
        session.decode(check.q, out)
        decode_s, storages = perf_counter() - called, visible_storages(session)
        return {
            "decode_s": decode_s,
            "append_s": (appended - started) / steps,
            "max_error": check.max_error(out),
            "deviation": check.deviation(out),
            "kv_bytes": session.kv_bytes(),
            "visible_bytes": sum(storages.values()),
            "huge_share": huge_share(storages.items()),
            "work_items": session.work_items(),
        }

    def round(self, implementation: str, timed: list[int], nonce: int, cold: bool, warm_up: bool) -> dict[str, Any]:
        inputs, session, out = self._given(implementation), self._sessions[implementation], self._out(implementation)
        point = inputs.point
        meter = self._calibration_meter
        sweep = self._sweep_of(point.device) if cold else None
        if sweep is not None and meter is not None:
            sweep = meter.timed(sweep)
        if warm_up:
            session.rewind()
            session.append(*inputs.completion(1))
            session.plan()
            session.decode(inputs.queries(nonce, 0), out)
        if meter is not None:
            meter.arithmetic()
        result = run_round(session, inputs, out, point.n_c, frozenset(timed), nonce, sweep)
        if meter is not None:
            meter.arithmetic()
        return {
            "calibration": None if meter is None else meter.take().model_dump(),
            "samples_us": result.decode_us,
            "append_us": result.append_us,
            "plan_us": result.plan_us,
            "work_items": session.work_items(),
        }

    def gpu_round(
        self, implementation: str, timed: list[int], nonce: int, mode: Mode, copies: int, sweep: bool
    ) -> dict[str, Any]:
        """Run a round on a GPU. The first `copies` sessions take turns. If `sweep`, the cache is cleared before each
        call."""
        inputs, sessions = self._opened(), self._copies[implementation][:copies]
        sweeps = self._sweep_of(inputs.point.device) if sweep else None
        return self._gpu_rounds().round(sessions, inputs, self._out(implementation), timed, nonce, mode, sweeps)

    def profile(
        self, implementation: str, call: TimedCall | TracedCall | Literal["watched"], nonce: int
    ) -> dict[str, Any]:
        """Make one timed, traced or watched call of a profile at the last step.

        `seen` in the reply is None if a trace or a profiler recorded nothing.
        """
        arguments, sweep = self._last_step(implementation, nonce), self._sweep_of(self._opened().point.device)
        if call in TIMED:
            result = timed_call(*arguments, call, sweep)
            return {"samples_us": result.decode_us, "append_us": result.append_us, "plan_us": result.plan_us}
        seen = traced_call(*arguments, call, sweep) if call in TRACED else watched_call(*arguments, sweep)
        return {"seen": None if seen is None else seen.model_dump()}

    def repeat(self, implementation: str, nonce: int, seconds: float) -> dict[str, Any]:
        """Decode for some time, while another process counts events."""
        return {"calls": repeat(*self._last_step(implementation, nonce), seconds)}

    def peaks(self) -> dict[str, Any]:
        if self._probe is None:
            raise RuntimeError("no point is open")
        return self._probe[1].probe().model_dump()

    def _load(self, name: str) -> AnyImplementation:
        if name not in self._loaded:
            self._loaded[name] = self._registry.load(name)
        return self._loaded[name]

    def _check(self, implementation: str, steps: int, nonce: int, sample: bool) -> Check:
        key = (nonce, self._work.definition(implementation))
        if key not in self._checks:
            self._checks.clear()  # keep only one check, because checks hold float64 copies
            self._checks[key] = self._work.check(self._given(implementation), implementation, steps, nonce, sample)
        return self._checks[key]

    def _given(self, implementation: str) -> PointInputs:
        """The inputs of the point, for an implementation that may have its own form of K and V."""
        inputs: PointInputs = self._work.given(self._opened(), implementation)
        return inputs

    def _out(self, implementation: str) -> torch.Tensor:
        """The output tensor; all implementations with the same output shape share it."""
        inputs = self._given(implementation)
        shape, point = inputs.out_shape(implementation), inputs.point
        if shape not in self._outs:
            self._outs[shape] = torch.empty(shape, dtype=getattr(torch, point.dtype), device=point.device)
        return self._outs[shape]

    def _last_step(self, implementation: str, nonce: int) -> tuple[Session, PointInputs, torch.Tensor, int, int]:
        """Session, inputs, output and number of the last step, and the seed of its queries."""
        inputs = self._given(implementation)
        return self._sessions[implementation], inputs, self._out(implementation), inputs.point.n_c, nonce

    def _opened(self) -> PointInputs:
        if self._inputs is None:
            raise RuntimeError("no point is open")
        return self._inputs

    def _sweep_of(self, device: str) -> Callable[[], None]:
        if self._sweeper is None:
            self._sweeper = CacheSweeper(device, last_level_cache_bytes(device), self._sweep_file)
        return self._sweeper.sweep

    def _gpu_rounds(self) -> GpuRounds:
        if self._gpu is None:
            self._gpu = cuda_rounds()
        return self._gpu
