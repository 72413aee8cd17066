"""Tests that need a GPU: the real device behaves like the fake one that the other tests of the loop use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.measure.gpu_loop import CaptureError, decode_once, run_gpu_round
from chunkbench.bench.measure.peaks import PeakProbe
from chunkbench.bench.runner.executor import LocalExecutor
from chunkbench.bench.runner.run import run_experiment
from chunkbench.bench.runner.target import resolve_target
from chunkbench.bench.workers.checks import make_check
from chunkbench.bench.workers.gpu_rounds import cuda_rounds
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.cli.progress import RunProgress

pytestmark = pytest.mark.gpu
POINT = {
    "n_p": 512, "n_s": 256, "n_c": 2, "batch_size": 4, "heads": 4, "kv_heads": 4, "head_dim": 64, "chunk_size": 64,
    "block_size": 32, "dtype": "float16", "device": "cuda",
}  # fmt: skip
EXPERIMENT = """\
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
    return PooledInputs(AttentionPoint.model_validate(POINT), seed=0)


@pytest.mark.parametrize("mode", ["events", "graph", "eager"])
def test_copies_take_turns_in_every_mode(mode: str, inputs: PooledInputs) -> None:
    from chunkbench.bench.measure.clocks import ClockGuard
    from chunkbench.bench.measure.cuda import CudaDevice, clock_reader

    copies = [REGISTRY.load("naive").prepare(inputs) for _ in range(3)]
    out = torch.empty(4, 4, 64, dtype=torch.float16, device="cuda")
    guard = ClockGuard(clock_reader())
    result = run_gpu_round(copies, inputs, out, 2, (1, 2), 1, mode, None, CudaDevice(), guard)  # type: ignore[arg-type]
    assert len(result.decode_us) == 2
    assert all(1 < us < 1e5 for us in result.decode_us)


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


def test_peaks_are_plausible_for_a_gpu() -> None:
    peaks = PeakProbe("cuda", "float16", 1).probe()
    assert peaks.sum_bytes_per_s is not None
    assert peaks.copy_bytes_per_s is not None
    assert peaks.read_bytes_per_s == max(peaks.sum_bytes_per_s, peaks.copy_bytes_per_s) > 1e11
    assert peaks.matrix_flops_per_s > 1e12


def test_the_device_reports_free_memory_and_an_l2_cache() -> None:
    room = cuda_rounds().room()
    assert 0 < room["free_bytes"] <= torch.cuda.get_device_properties(0).total_memory
    assert room["l2_bytes"] > 1 << 18


def test_a_run_measures_every_cache_and_mode(tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text(EXPERIMENT)
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
