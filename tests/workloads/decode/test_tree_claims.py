"""Claims on plans over prefix trees, judged by latencies whose ratios are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from chunkbench.bench.analysis.derive import derive
from chunkbench.bench.store.results import DecodeResult
from chunkbench.report.claims.evidence import Evidence, RunRows
from chunkbench.report.claims.judgement import Judgement
from chunkbench.report.printed import paper_rows, printed_of_trees
from chunkbench.workloads.decode.claims import JUDGES

Point = Callable[..., list[DecodeResult]]
ROOTS: dict[str, Any] = {
    "one": ((256, ((64, 2), (64, 2))),),
    "two": ((256, 2), (256, 2)),
    "none": ((0, 4),),
    "other": ((128, 4),),
}


def judge(id: str, *points: list[DecodeResult]) -> Judgement:
    return JUDGES[id](Evidence([RunRows(derive([case for point in points for case in point]))]))


@pytest.fixture
def point(facts) -> Point:
    """The rows of a point: three rounds of each plan within a thousandth of its latency."""

    def make(experiment: str, latencies: Mapping[str, float], tree: Any = ROOTS["one"], **axes: Any):
        batch = axes.pop("batch_size", 4)
        return [
            facts(
                name if name == "chunk_attn" else f"plan_{name}",
                experiment=f"trees-{experiment}",
                samples_us=tuple((us * f, us * f) for f in (0.999, 1.0, 1.001)),
                **{"tree": tree, "n_s": None, "batch_size": batch, **axes},
            )
            for name, us in latencies.items()
        ]

    return make


def test_every_printed_figure_has_one_unit_and_a_source() -> None:
    rows = paper_rows("trees")
    names = ("set", "where", "kv_heads", "implementation", "against", "quantity")
    assert len({tuple(row[name] for name in names) for row in rows}) == len(rows)
    assert all(float(row["value"]) > 0 and row["unit"] and row["source"] for row in rows)
    for row in rows:
        if row["set"] == "tensorrt" and row["quantity"] == "speedup":  # of rounded latencies
            at = [
                printed_of_trees("tensorrt", where=row["where"], implementation=name, quantity="latency")
                for name in ("flashinfer", "flashinfer_cascade")
            ]
            assert float(row["value"]) == pytest.approx(at[0] / at[1], rel=0.02)


def test_without_rows_and_on_a_gpu_alone() -> None:
    for id in (
        "FT-flat",
        "FT-greedy",
        "PAT-cascade",
        "PAT-naive",
        "PAT-no-sharing",
        "DF-node",
        "TRT-cascade",
        "FI-595",
    ):
        assert "`chunkbench run trees-" in judge(id).reason
    for id in ("DF-speedup", "FI-31x"):
        assert (judge(id).verdict, judge(id).reason[:14]) == ("not measured", "it needs a GPU")


@pytest.mark.parametrize(
    ("first", "second", "measured", "verdict"),
    [(2.0, 8.0, 4.0, "holds"), (1.0, 4.0, 2.0, "different here"), (0.5, 0.5, 0.5, "does not hold")],
)
def test_fasttree_by_the_geometric_mean_over_trees_and_heads(
    point: Point, first: float, second: float, measured: float, verdict: str
) -> None:
    def rows(slow: str, times: float) -> Judgement:
        one = point("fasttree", {slow: 100 * first * times, "tree_fused": 100.0})
        more_heads = point("fasttree", {slow: 30 * second * times, "tree_fused": 30.0}, kv_heads=8)
        elsewhere = point("pat", {slow: 1.0, "tree_fused": 100.0})
        return judge("FT-flat" if slow == "flat" else "FT-cascade", one, more_heads, elsewhere)

    judged = rows("node_wise", 1.0)
    assert (judged.verdict, judged.measured) == (verdict, pytest.approx(measured))
    assert "over 2 points" in judged.reason
    assert judged.low == pytest.approx(measured)  # rounds of both vary alike
    assert len(judged.rows) == 4
    assert rows("flat", 1.1).verdict == verdict  # 4.4, 2.2, and 0.55
    assert rows("flat", 2.0).verdict == {4.0: "more than stated", 2.0: "different here"}.get(measured, "does not hold")


def test_the_largest_gain_of_the_greedy_split(point: Point) -> None:
    rows = [
        point("fasttree", {"node_wise": us, "tree_fused": 100.0}, ROOTS[tree])
        for tree, us in (("one", 90.0), ("other", 240.0))
    ]
    assert (judge("FT-greedy", *rows).verdict, judge("FT-greedy", *rows).measured) == ("holds", pytest.approx(2.4))
    assert judge("FT-greedy", rows[0]).verdict == "does not hold"


def test_pat_by_the_mean_of_what_is_saved_where_something_is_shared(point: Point) -> None:
    rows = [
        point("pat", {"flat": 100.0, "node_wise": us, "pack": us / 2}, ROOTS[tree])
        for tree, us in (("one", 60.0), ("two", 100.0), ("none", 20.0))
    ]
    flat = judge("PAT-flat", *rows)
    assert (flat.verdict, flat.measured) == ("holds", pytest.approx(0.6))  # mean of 70% and 50%
    assert judge("PAT-flat", rows[1]).verdict == "different here"
    cascade = judge("PAT-cascade", *rows)
    assert (cascade.verdict, cascade.measured) == ("holds", pytest.approx(0.5))
    assert "over 1 points" in cascade.reason


def test_pat_without_sharing_and_with_an_item_per_node(point: Point) -> None:
    rows = point("pat", {"flat": 100.0, "pack": 100.4}, ROOTS["none"])
    assert judge("PAT-no-sharing", rows).verdict == "holds"
    slower = point("pat", {"flat": 100.0, "pack": 107.0}, ROOTS["none"], kv_heads=8)
    assert judge("PAT-no-sharing", rows, slower).verdict == "does not hold"
    naive = point("pat", {"node_wise": 115.0, "pack": 100.0}, kv_heads=8)
    other_heads = point("pat", {"node_wise": 90.0, "pack": 100.0})
    assert (judge("PAT-naive", naive, other_heads).verdict) == "holds"
    assert judge("PAT-naive", other_heads).verdict == "not measured"


def test_deft_node_behind_4000_tokens(point: Point) -> None:
    def rows(times: float) -> Judgement:
        axes: dict[str, Any] = {"n_p": 4100, "kv_heads": 8}
        at = (
            point("deft", {"flat": times * b, "node_wise": 1.0 * b}, ((4000, b),), batch_size=b, **axes)
            for b in (20, 64)
        )
        return judge("DF-node", *at)

    assert (rows(0.9).verdict, rows(0.9).measured) == ("holds", pytest.approx(0.9))
    assert rows(2.0).verdict == "does not hold"  # the node is faster, not slower
    assert "2.00x with 20 sequences" in rows(2.0).reason


@pytest.mark.parametrize(
    ("speedups", "verdict", "measured"),
    [
        ({128: 0.6, 256: 2.3, 4096: 32.0}, "holds", 32.0),
        ({128: 1.2, 256: 2.3, 4096: 4.0}, "different here", 4.0),
        ({256: 0.5}, "does not hold", 0.5),
        ({128: 0.6, 300: 0.9, 4096: 4.0}, "does not hold", 0.9),  # no explanation of a slower cascade
    ],
)
def test_the_cascade_by_prefix(point: Point, speedups: dict[int, float], verdict: str, measured: float) -> None:
    rows = [
        point("tensorrt", {"flat": 10 * times, "cascade": 10.0}, ((n, 128),), batch_size=128, n_p=n + 3)
        for n, times in speedups.items()
    ]
    judged = judge("TRT-cascade", *rows)
    assert (judged.verdict, judged.measured) == (verdict, pytest.approx(measured))
    assert ("faster from 128 tokens on" in judged.reason) == (128 in speedups and speedups[128] > 1)


@pytest.mark.parametrize(("one", "eight", "verdict"), [(26, 26, "holds"), (10, 26, "does not hold")])
def test_the_cascade_with_one_kv_head_and_with_eight(point: Point, one: float, eight: float, verdict: str) -> None:
    rows = [
        point("flashinfer", {"flat": flat, "cascade": cascade}, ((4000, 8),), batch_size=8, heads=8, kv_heads=kv_heads)
        for kv_heads, flat, cascade in ((1, 19.0, one), (8, 55.0, eight))
    ]
    assert judge("FI-595", *rows).verdict == verdict
    assert "(printed: 1.37)" in judge("FI-595", *rows).reason
    assert judge("FI-595", rows[0]).verdict == "not measured"
