"""The timed loop on a GPU: with a fake device, and on a real one, which behaves like the fake one."""

from __future__ import annotations

import math
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.experiment.terms import Mode
from chunkbench.bench.measure.clocks import ClockGuard
from chunkbench.bench.measure.gpu_loop import (
    L2_FACTOR,
    MOST_COPIES,
    CaptureError,
    calls_of,
    decode_once,
    rotation,
    run_gpu_round,
    runs_of,
)
from chunkbench.bench.measure.loop import Round
from chunkbench.bench.measure.peaks import PeakProbe
from chunkbench.bench.runner.executor import LocalExecutor
from chunkbench.bench.runner.run import run_experiment
from chunkbench.bench.runner.target import resolve_target
from chunkbench.bench.workers.checks import make_check
from chunkbench.bench.workers.gpu_rounds import cuda_rounds
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.cli.progress import RunProgress
from tests.baselines.checked import make_point
from tests.bench.measure.conftest import FakeDevice, FakeFeed, FakeSession


def measured(
    mode: Mode, copies: int, n_c: int = 3, timed: tuple[int, ...] = (1, 3), sweep: bool = False, **device: Any
) -> tuple[Round, FakeDevice]:
    fake = FakeDevice(**device)
    sessions = [FakeSession(number, fake) for number in range(copies)]

    def sweep_cache() -> None:
        fake.log.append(("sweep", None))

    swept, out = sweep_cache if sweep else None, torch.empty(1)
    return run_gpu_round(sessions, FakeFeed(), out, n_c, timed, 7, mode, swept, fake, ClockGuard(None)), fake


def timed_calls(log: list[tuple[str, object]]) -> list[list[tuple[int, int, float]]]:
    """The decode calls between each pair of events."""
    spans: list[list[Any]] = []
    inside = False
    for event, detail in log:
        if event == "mark":
            inside = not inside
            if inside:
                spans.append([])
        elif inside and event == "decode":
            spans[-1].append(detail)
        elif inside:
            assert event == "replay", "there are only calls between two events"
    return spans


@given(st.integers(1, 20), st.sampled_from(["events", "graph"]))
def test_a_sample_between_events_is_the_mean_of_calls_that_rotate_over_all_copies(copies: int, mode: Mode) -> None:
    result, fake = measured(mode, copies)
    calls = calls_of(mode, copies)
    assert result.decode_us == pytest.approx([10.0, 10.0])
    samples = timed_calls(fake.log)
    assert [len(sample) for sample in samples] == [calls, calls]
    for step, sample in zip((1, 3), samples, strict=True):
        assert [number for number, _, _ in sample] == [call % copies for call in range(calls)]
        assert {held for _, held, _ in sample} == {step}, "every copy holds the same tokens"


@given(st.integers(1, 20), st.sampled_from(["events", "graph", "eager"]))
def test_all_other_copies_run_between_two_calls_of_a_copy(copies: int, mode: Mode) -> None:
    _, fake = measured(mode, copies)
    for preparing, entries in groupby(fake.log, key=lambda entry: entry[0] in ("append", "plan")):
        numbers = [detail[0] for event, detail in entries if event == "decode"]  # type: ignore[index]
        if not preparing and len(numbers) > copies:
            for start in range(len(numbers) - copies):
                assert sorted(numbers[start : start + copies]) == list(range(copies))


@given(st.integers(1, 20))
def test_the_wall_clock_times_another_copy_at_every_step(copies: int) -> None:
    steps = tuple(range(1, 7))
    result, fake = measured("eager", copies, n_c=6, timed=steps)
    assert len(result.decode_us) == 6
    timed = []
    for index, (event, detail) in enumerate(fake.log):
        if event == "decode" and fake.log[index - 1][0] == "synchronise" and fake.log[index + 1][0] == "synchronise":
            timed.append(detail[0])  # type: ignore[index]
    assert len(set(timed)) == min(copies, 6)


@pytest.mark.parametrize("mode", ["events", "graph", "eager"])
def test_every_call_of_a_step_has_its_own_queries(mode: Mode) -> None:
    _, fake = measured(mode, 3, n_c=1, timed=(1,))
    queries = [detail[2] for event, detail in fake.log if event == "decode"][:-1]  # type: ignore[index]
    assert len(set(queries)) == len(queries), "no query repeats, so an old output is never the right one"


@pytest.mark.parametrize("mode", ["events", "graph"])
def test_with_a_sweep_each_call_has_its_own_events(mode: Mode) -> None:
    result, fake = measured(mode, 1, n_c=1, timed=(1,), sweep=True)
    assert [len(span) for span in timed_calls(fake.log)] == [1] * calls_of(mode, 1)
    events = [event for event, _ in fake.log]
    first = events.index("sweep")
    assert events[first : first + 3] == ["sweep", "stall", "mark"], "the sweep is not timed"
    assert events.count("sweep") == calls_of(mode, 1)
    assert result.decode_us == pytest.approx([10.0])


def test_every_timed_step_captures_a_new_graph() -> None:
    """An old graph does not know a changed plan. One graph holds all calls of a sample."""
    _, fake = measured("graph", 2, n_c=4, timed=(1, 2, 4))
    assert [detail for event, detail in fake.log if event == "capture"] == [1, 1, 1]
    assert {detail for event, detail in fake.log if event == "replay"} == {8}
    _, fake = measured("graph", 1, n_c=1, timed=(1,), sweep=True)
    assert [detail for event, detail in fake.log if event == "capture"] == [8]


@pytest.mark.parametrize("mode", ["events", "graph", "eager"])
def test_drift_compares_a_timed_output_with_a_repeated_call(mode: Mode) -> None:
    result, _ = measured(mode, 2)
    assert result.drift == 0.0
    if mode == "graph":  # a replay that computes nothing leaves the output of the capture, which had other queries
        result, _ = measured(mode, 2, stale=True)
        assert result.drift > 1e-3


def test_a_decode_that_cannot_be_captured_raises() -> None:
    with pytest.raises(CaptureError, match="cannot be captured"):
        measured("graph", 1, refuses=lambda: True)


@pytest.mark.parametrize("mode", ["events", "graph", "eager"])
def test_the_output_belongs_to_the_queries_and_a_replay_that_does_nothing_leaves_nan(mode: Mode) -> None:
    for stale in (False, True):
        fake, out = FakeDevice(stale=stale), torch.empty(1)
        decode_once(FakeSession(0, fake), torch.tensor([21.0]), out, mode, fake)
        assert math.isnan(out) if stale and mode == "graph" else float(out) == 42.0


MB = 1 << 20


@given(st.integers(1, 1 << 32), st.integers(1, 1 << 27), st.integers(0, 1 << 30), st.integers(0, 1 << 36))
def test_copies_exceed_the_cache_and_fit_the_room_or_a_sweep_replaces_them(
    touched: int, l2: int, spare: int, room: int
) -> None:
    need = touched + spare
    copies, sweep = rotation(touched, l2, need, room)
    if sweep:
        assert copies == 1
        assert touched <= L2_FACTOR * l2
        too_many = MOST_COPIES * touched <= L2_FACTOR * l2
        assert too_many or (L2_FACTOR * l2 // touched + 1) * need > room
    else:
        assert copies * touched > L2_FACTOR * l2
        assert (copies - 1) * touched <= L2_FACTOR * l2, "no more copies than needed"
        assert copies == 1 or copies * need <= room
        assert copies <= MOST_COPIES


@given(st.integers(1, MOST_COPIES))
def test_a_sample_calls_all_copies_equally_often(copies: int) -> None:
    assert calls_of("eager", copies) == 1
    for mode in ("events", "graph"):
        calls = calls_of(mode, copies)
        assert calls % copies == 0
        assert calls >= 8
        assert calls - copies < 8
        assert runs_of(mode, copies) > calls


CUDA_EXPERIMENT = """\
device: cuda
implementations: [naive]
baseline: naive
caches: [cold, warm]
budget: 5s
max_rounds: 3
defaults: {n_c: 2, batch_size: 32, heads: 32, head_dim: 128}
sweep:
  - {n_p: 256, n_s: 128}
"""


@pytest.fixture
def inputs() -> PooledInputs:
    shape = {"n_p": 512, "n_s": 256, "n_c": 2, "chunk_size": 64, "block_size": 32}
    return PooledInputs(make_point(**shape, dtype="float16", device="cuda"), seed=0)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["events", "graph", "eager"])
def test_copies_take_turns_in_every_mode(mode: str, inputs: PooledInputs) -> None:
    from chunkbench.bench.measure.cuda import CudaDevice, clock_reader

    copies = [REGISTRY.load("naive").prepare(inputs) for _ in range(3)]
    out = torch.empty(4, 4, 64, dtype=torch.float16, device="cuda")
    guard = ClockGuard(clock_reader())
    result = run_gpu_round(copies, inputs, out, 2, (1, 2), 1, mode, None, CudaDevice(), guard)  # type: ignore[arg-type]
    assert len(result.decode_us) == 2
    assert all(1 < us < 1e5 for us in result.decode_us)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_decode_once_gives_the_right_output_in_every_mode(mode: str, inputs: PooledInputs) -> None:
    from chunkbench.bench.measure.cuda import CudaDevice

    session = REGISTRY.load("naive").prepare(inputs)
    session.append(*inputs.completion(1))
    session.plan()
    check = make_check(inputs, 1, 5)
    out = torch.empty(4, 4, 64, dtype=torch.float16, device="cuda")
    decode_once(session, check.q, out, mode, CudaDevice())  # type: ignore[arg-type]
    assert check.max_error(out) < 4e-3


@pytest.mark.gpu
def test_after_a_failed_capture_pytorch_works_as_before() -> None:
    from chunkbench.bench.measure.cuda import CudaDevice

    device, x = CudaDevice(), torch.ones(8, device="cuda")
    with pytest.raises(CaptureError, match="cannot be captured"):
        device.capture([[lambda: print(x.sum().item())]])
    torch.cuda.empty_cache()  # raises if the allocator is still in capture mode
    assert torch.randn(4, device="cuda").isfinite().all()  # raises if the generator is still in capture mode
    (replay,) = device.capture([[lambda: x.add_(1)]])  # type: ignore[list-item]
    before = float(x[0])
    replay()
    assert float(x[0]) == before + 1


@pytest.mark.gpu
def test_peaks_are_plausible_for_a_gpu() -> None:
    peaks = PeakProbe("cuda", "float16", 1).probe()
    assert peaks.sum_bytes_per_s is not None
    assert peaks.copy_bytes_per_s is not None
    assert peaks.read_bytes_per_s == max(peaks.sum_bytes_per_s, peaks.copy_bytes_per_s) > 1e11
    assert peaks.matrix_flops_per_s > 1e12


@pytest.mark.gpu
def test_the_device_reports_free_memory_and_an_l2_cache() -> None:
    room = cuda_rounds().room()
    assert 0 < room["free_bytes"] <= torch.cuda.get_device_properties(0).total_memory
    assert room["l2_bytes"] > 1 << 18


@pytest.mark.gpu
def test_a_run_measures_every_cache_and_mode(tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text(CUDA_EXPERIMENT)
    experiment = load_experiment(tmp_path / "gpu.yaml")
    run = run_experiment(
        experiment, LocalExecutor(resolve_target(experiment)), tmp_path / "run", False, [], RunProgress(quiet=True)
    ).run
    assert {(case.cache, case.mode) for case in run.cases} == {
        (cache, mode) for cache in ("cold", "warm") for mode in ("events", "graph", "eager")
    }
    for case in run.cases:
        assert case.status in ("ok", "noisy"), case.reason
        assert case.sampling is not None
        assert len(case.peaks) == len(case.samples_us)
