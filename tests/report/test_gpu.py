"""A run on a GPU with every mode and cache: the tables are readable, and the footer says what a number means."""

from __future__ import annotations

from typing import Any

from chunkbench.bench.store.results import GpuSampling, GpuState, Peaks
from chunkbench.report import build, render

MODES = {"events": 1.0, "graph": 1.02, "eager": 1.4}


def cases(make_case: Any, **more: Any) -> list[Any]:
    made = []
    for implementation, us in (("naive", 900.0), ("flash_attn", 700.0), ("chunk_attn", 100.0)):
        for cache in ("cold", "warm"):
            for mode, factor in MODES.items():
                copies = 15 if cache == "cold" and implementation == "chunk_attn" else 1
                calls = 1 if mode == "eager" else max(8, copies)
                sampling = GpuSampling(copies=copies, calls=calls, swept=False, l2_bytes=50 << 20)
                values = {"device": "cuda", "dtype": "float16", "cache": cache, "mode": mode, "sampling": sampling}
                peaks = Peaks(
                    read_bytes_per_s=3e12,
                    matrix_flops_per_s=6e14,
                    matrix_torch_flops_per_s=6e14,
                    sum_bytes_per_s=3e12,
                    copy_bytes_per_s=2.8e12,
                )
                rounds = [us * factor, us * factor * 1.01, us * factor]
                made.append(make_case(implementation, us=rounds, **(values | {"peaks": (peaks,) * 3} | more)))
    return made


def test_every_cache_and_mode_has_its_own_row(make_case: Any, make_run: Any) -> None:
    report = build(make_run(cases(make_case)))
    assert report.varying == ("cache", "mode")
    latencies = report.tables[0]
    assert [tuple(cell.text for cell in row[:2]) for row in latencies.rows] == [
        (cache, mode) for cache in ("cold", "warm") for mode in ("eager", "events", "graph")
    ]
    assert "at each of 6 points" in report.headline
    assert any("once for each cache and mode" in line for line in report.legend)
    assert not any("Partial" in line for line in report.warnings), "a point timed in six ways is one point"
    text = render(report, "table")
    assert max(map(len, text.splitlines())) < 140


def test_the_footer_says_what_a_sample_is(make_case: Any, make_run: Any) -> None:
    footer = dict(build(make_run(cases(make_case))).footer)
    for text in (
        "events = decode called 8 to 15 times between two CUDA events",
        "graph = the same",
        "eager = wall time of 1 call",
        "cold L2 = calls in turn on 1 to 15 copies of its K/V, in total more than five times the L2 cache (52.43 MB)",
        "warm L2 = one copy",
    ):
        assert text in footer["samples"]
    assert "nvidia-ml-py is not installed" in footer["gpu"]
    assert "the higher of reading and copying" in footer["peaks"]


def test_the_footer_has_the_state_of_the_device_once(make_case: Any, make_run: Any) -> None:
    usual = GpuState(sm_mhz=1980, memory_mhz=2619, power_w=400.2, temperature_c=50, other_processes=0, other_bytes=0)
    slowed = GpuState(sm_mhz=1500, power_w=690.0, throttled_by=("power cap",), other_processes=2, other_bytes=3 << 30)
    footer = dict(build(make_run(cases(make_case, gpu=(usual, slowed, usual), discarded=4))).footer)
    assert footer["gpu"] == (
        "clock 1500 to 1980 MHz, memory clock 2619 MHz, power 400 to 690 W, temperature 50 °C, "
        "slowed down in 18 of 54 rounds (power cap), at most 2 other processes on the device with 3 GiB"
    )
    assert "72 samples discarded (clock throttled, or process suspended)" in footer["timing"]


def test_the_footer_names_a_sweep_in_place_of_copies(make_case: Any, make_run: Any) -> None:
    swept = GpuSampling(copies=1, calls=8, swept=True, l2_bytes=50 << 20)
    footer = dict(build(make_run(cases(make_case, sampling=swept))).footer)
    assert "cold L2 in 9 cases = a buffer read before each call" in footer["samples"]


def test_the_footer_of_a_cpu_run_has_no_topics_of_a_gpu(make_case: Any, make_run: Any) -> None:
    assert not {"samples", "gpu"} & {*dict(build(make_run([make_case("chunk_attn")])).footer)}
