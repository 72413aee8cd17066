"""What the paper printed, beside results; rankings; facts of GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from chunkbench.bench.store.results import GpuSampling, GpuState, Peaks
from chunkbench.report.book import build_book
from chunkbench.report.build import build
from chunkbench.report.formats import render
from chunkbench.report.printed import paper_ratio, paper_us, rows, table3
from chunkbench.report.ranking import TITLE
from chunkbench.workloads.decode import ranking_figure
from tests.invented_runs import POINTS

COLUMNS = {"naive", "xformers", "flash_attn", "paged_attn", "paged_attn_star", "chunk_attn"}


def test_table_3_is_complete_and_in_microseconds(facts) -> None:
    assert set(table3()) == {(*point, column) for point in POINTS for column in COLUMNS}
    # Table 1: 687.74 us for 32 sequences of 2048 tokens. Over 64 steps the mean context is 2048 + 32 tokens.
    assert paper_us(facts("paged_attn", n_p=2048, n_s=0)) == pytest.approx(687.74 * 2080 / 2048, rel=0.01)
    assert paper_us(facts("naive", n_p=4096, n_s=4096)) == 1370.41


@pytest.mark.parametrize(("n", "times"), [(1024, 2.76), (2048, 3.06), (4096, 3.22)])
def test_ratios_with_everything_shared(facts, n: int, times: float) -> None:
    for name in ("paged_attn_star", "vllm_paged_attn_star"):
        assert paper_ratio(facts(name, n_p=n, n_s=n), "chunk_attn") == pytest.approx(times, abs=0.005)
    # Section 4.1: at 4096 shared tokens, Naive takes 6.6 times as long as ChunkAttn.
    assert paper_ratio(facts("naive", n_p=4096, n_s=4096), "chunk_attn") == pytest.approx(6.6, abs=0.05)


@pytest.mark.parametrize(
    "change",
    [
        {"n_p": 1000},
        {"n_p": (512, 1024)},
        {"n_s": 100},
        {"n_s": None, "tree": ((512, 32),)},
        {"n_c": 32},
        {"batch_size": 16},
        {"heads": 16, "kv_heads": 16},
        {"kv_heads": 8},
        {"head_dim": 64},
        {"chunk_size": 32},
        {"prompts": 2},
    ],
)
def test_another_setup_has_no_number(facts, change: dict[str, object]) -> None:
    assert paper_us(facts(**change)) is None
    assert paper_ratio(facts(**change), "chunk_attn") is None


def test_rows_have_the_figures_of_the_paper_at_its_points(facts) -> None:
    cases = [
        facts(),
        facts("xformers", status="unavailable", samples_us=()),
        facts("shared_prefix_matmul"),  # the paper lacks it
        facts(n_s=511),
    ]
    found = [row.derived for row in rows(cases, "chunk_attn", 0.95)]
    assert [(one.latency_us, one.paper_us, one.paper_ratio) for one in found] == [
        (15.0, 198.87, 1.0),
        (None, 385.79, 385.79 / 198.87),
        (15.0, None, None),
        (15.0, None, None),
    ]


def at(make_case, n_s: int, **us: float):
    return [make_case(name, n_s=n_s, us=[mean] * 3) for name, mean in us.items()]


@pytest.fixture
def trees(make_case, make_run):
    """Where all is shared, a fixed planner is twice as slow; at the other points ours loses 2% and 25%."""
    cases = [
        *at(make_case, 1024, chunk_attn=100.0, plan_flat=200.0, naive=400.0),
        *at(make_case, 512, chunk_attn=102.0, plan_flat=100.0, naive=400.0),
        *at(make_case, 0, chunk_attn=125.0, plan_flat=110.0, naive=100.0),
    ]
    return make_run(cases, figure="ranking", name="trees-fasttree", implementations=["plan_flat", "chunk_attn"])


def test_rows_stand_against_the_fastest_row_of_each_point_ablations_too(trees) -> None:
    report = build(trees)
    table = report.tables[0]
    assert table.title == "Ranking over all points"
    assert [[cell.text for cell in row][:6] for row in table.rows] == [
        ["ChunkAttn", "3", "1.08x", "1.25x", "67%", "67%"],  # 1 * 1.02 * 1.25 = 1.275
        ["plan_flat", "3", "1.30x", "2.00x", "33%", "33%"],  # 2 * 1 * 1.1 = 2.2
        ["Naive", "3", "2.52x", "4.00x", "33%", "33%"],  # 4 * 4 * 1 = 16
    ]
    assert report.verdict == "ChunkAttn is more than 3% slower at 1 of 3 points (n_s): 0 than Naive (0.80x)."
    for words in ("at least 0.97 of the fastest row's speed at 2 of 3 points", "1.08x", "plan_flat", "1.30x"):
        assert words in report.headline


def test_the_figure_has_a_step_for_each_point(trees) -> None:
    drawn = ranking_figure.draw(build(trees), trees.manifest)
    assert drawn is not None
    (plot,) = drawn.axes
    first = plot.lines[0]
    assert list(first.get_xdata()) == pytest.approx([1, 1, 1.02, 1.25, 4])
    assert list(first.get_ydata()) == pytest.approx([0, 100 / 3, 200 / 3, 100, 100])


def test_several_runs_of_a_machine_are_ranked_together(trees, make_case, make_run) -> None:
    other = make_run(at(make_case, 0, chunk_attn=100.0, plan_flat=400.0), figure="ranking", name="trees-pat")
    book = build_book([trees, other], trees.path)
    (table,) = book.rankings
    assert [row[1].text for row in table.rows] == ["4", "4", "3"]
    assert table.title.startswith("Invented CPU 9000")
    for form in ("markdown", "html"):
        assert TITLE in render(book, form)
    assert not build_book([trees], trees.path).rankings


PEAKS = Peaks(
    read_bytes_per_s=3e12, matrix_flops_per_s=6e14, matrix_torch_flops_per_s=6e14, sum_bytes_per_s=3e12,
    copy_bytes_per_s=2.8e12,
)  # fmt: skip
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
                rounds = [us * factor, us * factor * 1.01, us * factor]
                made.append(make_case(implementation, us=rounds, **(values | {"peaks": (PEAKS,) * 3} | more)))
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


def test_the_footer_names_a_sweep_in_place_of_copies_and_on_a_cpu_nothing(make_case: Any, make_run: Any) -> None:
    swept = GpuSampling(copies=1, calls=8, swept=True, l2_bytes=50 << 20)
    footer = dict(build(make_run(cases(make_case, sampling=swept))).footer)
    assert "cold L2 in 9 cases = a buffer read before each call" in footer["samples"]
    assert not {"samples", "gpu"} & {*dict(build(make_run([make_case("chunk_attn")])).footer)}
