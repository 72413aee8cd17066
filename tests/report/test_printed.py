"""What the paper printed, beside results; rankings; facts of GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chunkbench.bench.store.manifest import Manifest
from chunkbench.bench.store.results import GpuSampling, GpuState
from chunkbench.report.book import build_book
from chunkbench.report.build import build
from chunkbench.report.formats import render
from chunkbench.report.printed import paper_ratio, paper_us, table3
from chunkbench.report.ranking import TITLE
from chunkbench.workloads.decode import ranking_figure
from tests.invented_runs import POINTS

COLUMNS = {"naive", "xformers", "flash_attn", "paged_attn", "paged_attn_star", "chunk_attn"}


def test_table_3_is_complete_and_in_microseconds(facts) -> None:
    assert set(table3()) == {(*point, column) for point in POINTS for column in COLUMNS}
    # Table 1: 687.74 us for 32 sequences of 2048 tokens. Over 64 steps the mean context is 2048 + 32 tokens.
    assert paper_us(facts("paged_attn", n_p=2048, n_s=0)) == pytest.approx(687.74 * 2080 / 2048, rel=0.01)
    assert paper_us(facts("naive", n_p=4096, n_s=4096)) == 1370.41


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


def test_the_footer_tells_of_other_processes_and_of_discarded_samples(make_case: Any, make_run: Any) -> None:
    usual = GpuState(sm_mhz=1980, memory_mhz=2619, power_w=400.2, temperature_c=50, other_processes=0, other_bytes=0)
    slowed = GpuState(sm_mhz=1500, power_w=690.0, throttled_by=("power cap",), other_processes=2, other_bytes=3 << 30)
    sampling = GpuSampling(copies=1, calls=8, swept=False, l2_bytes=50 << 20)
    case = make_case("chunk_attn", device="cuda", sampling=sampling, gpu=(usual, slowed, usual), discarded=4)
    footer = dict(build(make_run([case])).footer)
    assert "in 1 of 3 rounds (power cap), at most 2 other processes on the device with 3 GiB" in footer["gpu"]
    assert "4 samples discarded (clock throttled, or process suspended)" in footer["timing"]


def test_the_footer_tells_of_a_control_group_that_limits_memory(make_case: Any, make_run: Any) -> None:
    run = make_run([make_case("chunk_attn")])
    footers = []
    for limit in (None, 12 << 30, 48 << 30):  # the last one is more than the machine has
        changed = run.manifest.model_dump(mode="json")
        for machine in changed["machines"].values():
            machine["memory_limit_bytes"] = limit
        footers.append(dict(build(replace(run, manifest=Manifest.model_validate(changed))).footer)["machine"])
    assert footers[1].replace(" (a control group allows 12 GiB)", "") == footers[0] == footers[2] != footers[1]
