"""Measures a point on a GPU from the plan to its facts, with a fake device and all tensors on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chunkbench.bench import workload
from chunkbench.bench.experiment import TimedExperiment, load_experiment
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.measure.clocks import ClockGuard
from chunkbench.bench.runner import memory_guard
from chunkbench.bench.runner.client import WorkerClient, WorkerError
from chunkbench.bench.runner.passes import Budget, RunOptions
from chunkbench.bench.runner.session_measurer import SessionMeasurer
from chunkbench.bench.runner.target import resolve_target
from chunkbench.bench.store.results import DecodeResult
from chunkbench.bench.workers import main, worker
from chunkbench.bench.workers.gpu_rounds import GpuRounds
from tests.attention.conftest import one_thread  # noqa: F401 - a fixture
from tests.bench.measure.conftest import FakeDevice, freeze_heap  # noqa: F401 - a fixture

TEXT = """\
name: gpu
device: cuda
dtype: float32
implementations: [naive, paged_attn]
baseline: naive
caches: [cold, warm]
budget: 1s
max_rounds: 3
defaults: {n_c: 2, batch_size: 2, heads: 2, head_dim: 32, chunk_size: 16, block_size: 16}
sweep:
  - {n_p: 32, n_s: 16}
"""
L2 = 40_000
"""Five times this is 5 to 6 copies of the point's 34 KB."""


class GpuInputs:
    """CPU inputs whose point says that they are on a GPU."""

    def __init__(self, inputs: Any, point: AttentionPoint) -> None:
        self._inputs, self.point = inputs, point

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inputs, name)


class FakeGpuWorker(worker.Worker):
    def __init__(self, device: FakeDevice, free: int, failing: str = "") -> None:
        super().__init__(workload.get("decode"))
        self._gpu = GpuRounds(device, ClockGuard(None), L2, lambda: free)
        self.failing = failing
        self.prepared: list[str] = []
        self.sweeps = 0

    def open(self, point: dict[str, Any], seed: int, probe_bytes: int) -> dict[str, Any]:
        reply = super().open(point | {"device": "cpu"}, seed, probe_bytes)
        self._inputs = GpuInputs(self._inputs, AttentionPoint.model_validate(point))  # type: ignore[assignment]
        return reply

    def supports(self, implementation: str) -> dict[str, Any]:
        return {"ok": True, "reason": "", "remedy": ""}  # the answer on the CPU, which really computes

    def prepare(self, implementation: str, needs: int, copies: int = 1) -> dict[str, Any]:
        self.prepared.append(implementation)
        if implementation == self.failing:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        inputs = self._opened()
        self._inputs = inputs._inputs  # type: ignore[attr-defined]  # adapters must see the CPU as the device
        reply = super().prepare(implementation, needs, copies)
        self._inputs = inputs
        return reply

    def _out(self, implementation: str) -> torch.Tensor:
        return torch.empty(self._opened().out_shape(implementation))

    def _sweep_of(self, device: str) -> Any:
        def sweep() -> None:
            self.sweeps += 1

        return sweep


class InProcess(WorkerClient):
    pid = 1 << 30

    def __init__(self, worker: FakeGpuWorker) -> None:
        self.worker = worker
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def ask(self, op: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        self.requests.append((op, arguments))
        reply = main._reply(self.worker, {"id": 1, "op": op, "arguments": arguments})
        if "error" in reply:
            raise WorkerError(reply["error"]["kind"], reply["error"]["message"])
        result: dict[str, Any] = reply["ok"]
        return result

    def kill(self) -> None:
        pass


@pytest.fixture
def experiment(tmp_path: Path) -> TimedExperiment:
    (tmp_path / "gpu.yaml").write_text(TEXT)
    loaded = load_experiment(tmp_path / "gpu.yaml")
    assert isinstance(loaded, TimedExperiment)
    return loaded


def measure(
    experiment: TimedExperiment, device: FakeDevice, free: int = 8 << 30, failing: str = "", caches: Any = ("cold",)
) -> tuple[list[DecodeResult], list[InProcess]]:
    clients: list[InProcess] = []

    def start(*_: object) -> InProcess:
        clients.append(InProcess(FakeGpuWorker(device, free, failing)))
        return clients[-1]

    experiment = experiment.model_copy(update={"caches": caches})
    (point,) = experiment.points("cuda", "float32")
    target = replace(resolve_target(experiment, describing=True), device="cpu")  # where the adapters are available
    options = RunOptions(start_worker=start)
    measurer = SessionMeasurer(workload.get("decode"), experiment, target, [point], Path("log"), options)
    cases = {point: experiment.cases(point)}
    return measurer.measure([point], cases, Budget(1.0), lambda _: None)[point], clients


def test_a_point_has_three_cases_for_each_cache_and_implementation(experiment: TimedExperiment) -> None:
    cases, clients = measure(experiment, FakeDevice(), caches=("cold", "warm"))
    assert [(case.cache, case.mode, case.implementation) for case in cases] == [
        (cache, mode, name)
        for cache in ("cold", "warm")
        for mode in ("events", "graph", "eager")
        for name in ("naive", "paged_attn")
    ]
    for case in cases:
        assert case.status in ("ok", "noisy"), case.reason
        assert len(case.samples_us) == 3
        assert case.max_error is not None
        assert case.sampling is not None
        assert (case.sampling.copies > 1) == (case.cache == "cold")
        assert not case.sampling.swept
        assert (case.sampling.calls == 1) == (case.mode == "eager")
    touched = 2 * 33 * 2 * 2 * 32 * 4
    cold = next(case.sampling for case in cases if case.cache == "cold")
    assert cold is not None
    assert (cold.copies - 1) * touched <= 5 * L2 < cold.copies * touched
    assert [arguments["copies"] for op, arguments in clients[-1].requests if op == "prepare"] == [cold.copies] * 2
    assert DecodeResult.model_validate_json(cases[0].model_dump_json()) == cases[0]


@pytest.mark.parametrize(
    ("device", "status", "reason"),
    [
        ({"refuses": lambda: True}, "unsupported", "its decode cannot be captured in a CUDA graph: it reads a length"),
        ({"stale": True}, "incorrect", "replayed from a graph"),
    ],
)
def test_a_fault_of_graphs_costs_only_the_cases_of_graphs(
    experiment: TimedExperiment, device: dict[str, Any], status: str, reason: str
) -> None:
    cases, _ = measure(experiment, FakeDevice(**device))
    for case in cases:
        if case.mode == "graph":
            assert case.status == status
            assert case.reason.startswith(reason)
        else:
            assert case.status in ("ok", "noisy")


def test_if_the_copies_do_not_fit_the_cache_is_swept(
    experiment: TimedExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, _ = measure(experiment, FakeDevice(), free=0)
    assert {case.status for case in cases} == {"oom"}, "a device without free memory gives rows with status oom"
    monkeypatch.setattr(memory_guard, "room_of", lambda free: free)
    cases, clients = measure(experiment, FakeDevice(), free=150_000 + (64 << 20))
    assert {case.status for case in cases} <= {"ok", "noisy"}, cases[0].reason
    assert {(case.sampling.copies, case.sampling.swept) for case in cases if case.sampling} == {(1, True)}
    assert clients[-1].worker.sweeps


def test_an_error_that_destroys_the_context_crashes_only_the_implementation_at_fault(
    experiment: TimedExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "lost", lambda: True)  # asked after an error alone
    cases, clients = measure(experiment, FakeDevice(), failing="paged_attn")
    failed, healthy = ([case for case in cases if case.implementation == name] for name in ("paged_attn", "naive"))
    assert {case.status for case in failed} == {"crashed"}
    assert "illegal memory access" in failed[0].reason
    assert {case.status for case in healthy} <= {"ok", "noisy"}
    assert [name for client in clients for name in client.worker.prepared].count("paged_attn") == 1
