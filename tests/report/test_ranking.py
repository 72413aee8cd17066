"""How rows rank over many points, in a run and over several runs of a machine."""

from __future__ import annotations

import pytest

from chunkbench.report import build, build_book, render
from chunkbench.report.ranking import TITLE
from chunkbench.workloads.decode import ranking


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
    assert report.headline == (
        "ChunkAttn has at least 0.97 of the fastest row's speed at 2 of 3 points, or maybe at 2; its latency is 1.08x "
        "of the fastest row's (geometric mean), that of the best other row, plan_flat, 1.30x."
    )


def test_the_figure_has_a_step_for_each_point(trees) -> None:
    drawn = ranking.draw(build(trees), trees.manifest)
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
