"""Claims on plans over prefix trees that are judged by rules of their own, by latencies whose ratios are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from chunkbench.bench.analysis.derive import derive
from chunkbench.bench.store.results import DecodeResult
from chunkbench.report.claims.evidence import Evidence, RunRows
from chunkbench.report.claims.judgement import Judgement
from chunkbench.workloads.decode.claims import JUDGES

Point = Callable[..., list[DecodeResult]]


def judge(id: str, *points: list[DecodeResult]) -> Judgement:
    return JUDGES[id](Evidence([RunRows(derive([case for point in points for case in point]))]))


@pytest.fixture
def point(facts) -> Point:
    """The rows of a point: three rounds of each plan within a thousandth of its latency."""

    def make(experiment: str, latencies: Mapping[str, float], tree: Any, **axes: Any):
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


def test_claims_on_a_gpus_time_need_a_gpu(point: Point) -> None:
    """With 256 speculated tokens after 1,000."""

    def judged(device: str, flat: float) -> Judgement:
        latencies, axes = {"flat": flat, "node_wise": 10.0}, {"batch_size": 256, "n_p": 1001, "device": device}
        return judge("DF-speedup", point("deft", latencies, ((1000, 256),), **axes))

    assert judged("cpu", 100.0).verdict == "not measured"
    assert judged("cuda", 36.0).verdict == "holds"
    assert judged("cuda", 20.0).verdict == "different here"
    assert judged("cuda", 9.0).verdict == "does not hold"
