"""The report and the claims of latent attention, by latencies and rates that are known."""

from __future__ import annotations

from typing import Any

import pytest

from chunkbench.bench.analysis.derive import derive, groups
from chunkbench.bench.store.results import DecodeResult, Peaks
from chunkbench.latent import LATENTS
from chunkbench.report.build import build
from chunkbench.report.claims.evidence import Evidence, RunRows
from chunkbench.report.formats import render
from chunkbench.workloads.decode.latent_claims import JUDGES
from chunkbench.workloads.decode.latent_figure import draw
from chunkbench.workloads.decode.latent_report import break_evens, crossing, winners

SHAPE = LATENTS["deepseek-v2-lite"].model_copy(update={"heads": None})
PEAKS = Peaks(
    read_bytes_per_s=20e9, matrix_flops_per_s=300e9, matrix_torch_flops_per_s=300e9, matrix_native_flops_per_s=200e9
)


def series(facts: Any, absorbed: dict[int, float], expanded: float, auto: float = 1.0) -> list[DecodeResult]:
    """Batch -> microseconds of the absorbed form; the expanded and the mixed form take `expanded`."""
    rows = []
    for batch, us in absorbed.items():
        latencies = {"mla_absorb_two_phase": us, "mla_naive": expanded, "mla_mixed": expanded}
        latencies["mla_auto"] = auto * min(us, expanded)
        rows += [
            facts(
                name, experiment="mla", latent=SHAPE, heads=16, kv_heads=1, head_dim=576, n_p=4096, n_s=4096, n_c=2,
                batch_size=batch, dtype="bfloat16", peaks=(PEAKS,) * 3,
                samples_us=tuple((took * f, took * f) for f in (0.999, 1.0, 1.001)),
                kv_bytes=150 if name == "mla_mixed" and batch > 1 else 100,
            )
            for name, took in latencies.items()
        ]  # fmt: skip
    return rows


def test_where_two_curves_cross() -> None:
    assert crossing([(1, 0.5), (4, 2.0), (8, 3.0)]) == pytest.approx(2)  # half of the way, on logarithmic axes
    assert crossing([(2, 0.5), (3, 1.0)]) == pytest.approx(3)
    assert crossing([(1, 1.2), (2, 1.5)]) is crossing([(1, 0.5)]) is None


def test_break_even_and_winners(facts: Any) -> None:
    rows = derive(series(facts, {1: 100.0, 4: 400.0, 8: 800.0}, 200.0, auto=1.01), "mla_auto")
    (one,) = break_evens(groups(rows))
    assert one.predicted == pytest.approx(320 * 2 * 200e9 / (2176 * 20e9))  # 2.9
    assert one.measured == pytest.approx(2)
    found = winners(groups(rows))
    # With one sequence nothing is expanded.
    assert [(each.predicted, each.fastest) for each in found] == [("mla_mixed", "mla_mixed")] * 2
    assert all(each.auto == pytest.approx(1.01) for each in found)


def test_claims(facts: Any) -> None:
    def judge(name: str, *rows: DecodeResult) -> Any:
        return JUDGES[name](Evidence([RunRows(derive(rows))]))

    fast, slow = series(facts, {1: 100.0, 8: 800.0}, 200.0), series(facts, {1: 100.0, 8: 210.0}, 200.0)
    assert judge("TY-attention", *fast).verdict == "holds"
    assert judge("TY-attention", *fast).measured == pytest.approx(4)
    assert judge("TY-attention", *slow).verdict == "different here"
    assert judge("TY-bound").verdict == "holds"
    assert judge("TY-break-even", *fast).verdict == "holds"  # 2 measured, 2.9 predicted
    assert judge("TY-break-even", *series(facts, {4: 100.0, 8: 250.0}, 200.0)).verdict == "different here"
    assert judge("TY-break-even").verdict == judge("TY-attention").verdict == "not measured"


def test_report_and_figure(facts: Any, make_run: Any) -> None:
    run = make_run(series(facts, {1: 100.0, 4: 400.0, 8: 800.0}, 200.0), figure="latent", baseline="mla_auto")
    report = build(run)
    text = render(report, "table")
    assert "It pays to expand what 2.0 sequences share (2.9 predicted, 16 heads)." in text
    assert "The rates predict the faster form at 2 of 2 points" in text
    assert draw(report, run.manifest) is not None
