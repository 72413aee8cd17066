"""The native probes: correct sums, plausible rates, a released interpreter lock, clear errors without the module."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.read_order import ReadOrderProbe
from tests.kernels.pieces import instruction_set

needs_native = pytest.mark.skipif(cpu.native() is None, reason=cpu.why_missing() or "built")


@pytest.fixture
def native() -> ModuleType:
    module = cpu.native()
    if module is None:
        pytest.skip(cpu.why_missing())
    return module


@pytest.fixture
def cleared_cache() -> Iterator[None]:
    """Clear the cache of the loaded module before and after the test."""
    cpu._load.cache_clear()
    yield
    cpu._load.cache_clear()


# Lengths near the widest step (16 floats x 12 sums), near a cache line, and near a block of 2**20.
@pytest.mark.parametrize("count", [1, 15, 16, 17, 191, 192, 193, 4099, (1 << 20) + 7])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_instruction_set_adds_every_element_once(native: ModuleType, count: int, threads: int) -> None:
    # Sums of small whole numbers are exact in float32, in any order. Neighbours differ, so a wrong position shows.
    buffer = (torch.arange(count) % 13).float()
    for isa in native.isas():
        seconds, total = native.read_pass(buffer, threads, isa)
        assert total == buffer.double().sum().item(), isa
        assert seconds > 0


@pytest.mark.serial
def test_read_seconds_is_about_what_torch_needs(native: ModuleType) -> None:
    buffer = torch.ones(1 << 24)
    cpu.read_seconds(buffer, 1)
    native_seconds = min(cpu.read_seconds(buffer, 1) for _ in range(5))
    start = time.perf_counter()
    buffer.sum()
    torch_seconds = time.perf_counter() - start
    # No machine reads 64 MiB at 2 TB/s on one thread, and the probe is not 20 times slower than torch.sum.
    assert 64 * 2**20 / 2e12 < native_seconds < 20 * torch_seconds


@pytest.mark.serial
def test_matrix_rates_are_plausible_and_the_best_isa_is_not_slower(native: ModuleType) -> None:
    rates = {isa: max(native.matrix_flops_per_s("float32", 1, 5, isa) for _ in range(3)) for isa in native.isas()}
    assert all(1e8 < rate < 1e13 for rate in rates.values()), rates
    plain, *_, best = rates.values()
    assert best > 0.7 * plain
    for dtype in ("float32", "bfloat16", "float16"):
        assert 1e8 < cpu.matrix_flops_per_s(dtype, 2, 2) < 1e14


@pytest.mark.serial
def test_a_probe_takes_the_requested_time_and_other_python_threads_run(native: ModuleType) -> None:
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.005):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    cpu.matrix_flops_per_s("float32", 1, 200)
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert 0.19 < end - start < 1.0
    assert sum(start < tick < end for tick in ticks) >= 5


@needs_native
@pytest.mark.parametrize(
    ("buffer", "error", "message"),
    [
        (torch.ones(8, dtype=torch.float64), TypeError, "must be float32, got float64"),
        (torch.ones(8, dtype=torch.bfloat16), TypeError, "got bfloat16"),
        (torch.ones(8, 8).t(), ValueError, r"strides are \(1, 8\)"),
        (torch.ones(16)[::2], ValueError, "must be contiguous"),
        (torch.ones(0), ValueError, "empty"),
        (torch.ones(8, device="meta"), ValueError, "must be on the CPU"),
        ([1.0], TypeError, "must be a torch.Tensor, got list"),
    ],
)
def test_a_wrong_buffer_is_refused(buffer: torch.Tensor, error: type[Exception], message: str) -> None:
    assert cpu.read_seconds(torch.ones(4, 5, 6, requires_grad=True), 2) > 0  # any contiguous shape is accepted
    with pytest.raises(error, match=message):
        cpu.read_seconds(buffer, 1)


@needs_native
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("float64", 1, 1.0), "not float64"),
        (("float32", 1, 0.0), "milliseconds"),
        (("float32", 1, float("nan")), "milliseconds"),
        (("float32", 1, 1e9), "milliseconds"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: tuple[str, int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cpu.matrix_flops_per_s(*arguments)


def test_an_instruction_set_that_the_cpu_lacks_is_refused(native: ModuleType) -> None:
    absent = next(name for name in ("avx512_bf16", "avx512", "neon", "sve9") if name not in native.isas())
    with pytest.raises(ValueError, match=f"'{absent}' is not one that this CPU can run"):
        native.matrix_flops_per_s("float32", 1, 1, absent)


def test_features_agree_with_those_of_the_operating_system(native: ModuleType) -> None:
    from chunkbench.bench.environment.cpu import read_cpu

    flags = read_cpu().isa
    features = native.cpu_features()
    if read_cpu().architecture == "x86_64":
        assert features["avx2"] == ("avx2" in flags and "fma" in flags)
        assert features["avx512f"] == ("avx512f" in flags)
        assert features["f16c"] == ("f16c" in flags)
    assert cpu.isa() == native.isas()[-1]


@pytest.mark.usefixtures("cleared_cache")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("no", name="chunkbench.kernels.cpu._native"), "was not built .*compiler"),
        (ModuleNotFoundError("No module named 'half'", name="half"), "does not load: No module named 'half'"),
        (ImportError("libstdc++.so.6: version not found"), r"does not load: libstdc\+\+"),
    ],
)
def test_a_missing_module_gives_the_reason(error: ImportError, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> ModuleType:
        raise error

    monkeypatch.setattr(importlib, "import_module", refuse)
    assert cpu.native() is None
    for call in (cpu.isa, lambda: cpu.read_seconds(torch.ones(4), 1), lambda: cpu.matrix_flops_per_s("float32", 1, 1)):
        with pytest.raises(cpu.NativeMissing, match=message):
            call()


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forbids pages in a forked process")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_reading_as_the_kernels_do_touches_every_page(dtype: torch.dtype) -> None:
    """A page that may not be read ends the reading, wherever in K or V of any chunk it lies."""
    with pytest.raises(ValueError, match="16 chunks"):
        ReadOrderProbe(torch.ones(1 << 10), dtype)
    buffer = torch.ones(9 << 20)  # 36 MB: one or two sequences of 16 chunks, and a rest
    for isa in cpu.required().isas():
        with instruction_set(isa):
            reads = ReadOrderProbe(buffer, dtype)
        assert reads.bytes == 32 << 20
        assert _ending(reads, 0) == 0
        first = -buffer.data_ptr() % 4096 + buffer.data_ptr()
        pages = reads.bytes // 4096 - 1
        for page in (0, 1, pages // 7, pages // 3, pages // 2 + 5, pages - 1):
            assert _ending(reads, first + 4096 * page) == signal.SIGSEGV, (isa, page)


def _ending(reads: ReadOrderProbe, forbidden: int) -> int:
    """The signal that ends a child that reads, if a page is forbidden to it; 0 if the child ends by itself."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        torch.set_num_threads(1)
        if forbidden and ctypes.CDLL(None).mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(4096), 0):
            os._exit(1)
        reads.run()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
