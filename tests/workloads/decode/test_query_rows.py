"""The report and the claims of several query rows, by latencies and rates that are known; and the bytes and FLOPs."""

from __future__ import annotations

from typing import Any

import pytest

from chunkbench.bench.analysis.derive import derive, groups
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.store.results import DecodeResult, Peaks
from chunkbench.draft import parents_of, seen_pairs, why_not_verified
from chunkbench.kernels.query_rows import seen_in_draft
from chunkbench.report.build import build
from chunkbench.report.claims.evidence import Evidence, RunRows
from chunkbench.report.formats import render
from chunkbench.workloads.decode import DecodeWorkload
from chunkbench.workloads.decode.query_rows import JUDGES, over_limit, over_single, single_rows
from chunkbench.workloads.decode.query_rows_figure import draw

PEAKS = Peaks(
    read_bytes_per_s=20e9, matrix_flops_per_s=300e9, matrix_torch_flops_per_s=300e9, matrix_native_flops_per_s=200e9
)


def series(facts: Any, latencies: dict[tuple[int, str], float]) -> list[DecodeResult]:
    """(Query rows, draft) -> microseconds of ChunkAttn; vLLM takes the time of each row apart."""
    made = []
    for (rows, draft), us in latencies.items():
        for name, took in {"chunk_attn": us, "vllm_paged_attn": rows * 100.0}.items():
            made.append(
                facts(
                    name, experiment="query-rows", n_p=4096, n_s=0, n_c=2, batch_size=8, query_rows=rows, draft=draft,
                    dtype="bfloat16", peaks=(PEAKS,) * 3,
                    samples_us=tuple((took * f, took * f) for f in (0.99, 1, 1.01)),
                    unique_bytes=(20_000, 20_000), read_bytes=(20_000, 20_000), flops=(rows * 100_000,) * 2,
                )
            )  # fmt: skip
    return made


LATENCIES = {(1, "chain"): 2.0, (3, "chain"): 3.0, (17, "chain"): 8.5, (4, "1 3"): 4.0}


def test_time_over_one_row_and_over_the_limit(facts: Any) -> None:
    found = groups(derive(series(facts, LATENCIES)))
    singles = single_rows(found)
    by_rows = {group.axes["query_rows"]: group for group in found}
    assert over_single(by_rows[17], singles, "chunk_attn") == pytest.approx(4.25)
    assert over_single(by_rows[4], singles, "chunk_attn") == pytest.approx(2)  # trees are over one row, too
    assert over_single(by_rows[17], {}, "chunk_attn") is None
    # 20 kB at 20 GB/s take 1 us; 0.1 and 1.7 MFLOP at 200 GFLOP/s take 0.5 and 8.5 us.
    assert over_limit(by_rows[1].rows["chunk_attn"]) == pytest.approx(2)
    assert over_limit(by_rows[17].rows["chunk_attn"]) == pytest.approx(1)


def test_claims(facts: Any) -> None:
    def judge(name: str, *rows: DecodeResult) -> Any:
        return JUDGES[name](Evidence([RunRows(derive(rows))]))

    rows = series(facts, LATENCIES)
    assert judge("SD-loads", *rows).verdict == "holds"  # vLLM's rows take 17 times the time here
    assert judge("SD-openvino", *rows).verdict == "different here"
    assert judge("SD-openvino", *rows).measured == pytest.approx(1.5)
    assert judge("SD-loads").verdict == judge("SD-openvino").verdict == "not measured"


def test_report_and_figure(facts: Any, make_run: Any) -> None:
    run = make_run(series(facts, LATENCIES), figure="query_rows")
    report = build(run)
    text = render(report, "table")
    assert "17 query rows of each sequence take 4.25x the time of one" in text
    assert "Latency over the limit" in text
    figure = draw(report, run.manifest)
    assert figure is not None
    assert len(figure.axes[0].lines) == 3  # two implementations, and all rows apart


def test_drafts() -> None:
    assert parents_of("chain") is None
    assert parents_of("1 2 4") == (-1, 0, 0, 1, 1, 2, 2)
    assert parents_of("3") == (-1, -1, -1)
    for wrong in ("", "0 1", "1 x", "chains", "1 256"):
        with pytest.raises(ValueError, match=r"draft|256 at most"):
            parents_of(wrong)
    assert seen_pairs(7, "1 2 4") == seen_in_draft(7, parents_of("1 2 4")).sum() == 1 + 2 * 2 + 4 * 3
    assert seen_pairs(4, "chain") == 10
    assert why_not_verified(1, "chain", "none") == why_not_verified(4, "1 3", "trees") == ""
    assert "no trees" in why_not_verified(4, "1 3", "chains")
    assert "one query row" in why_not_verified(4, "chain", "none")


def test_bytes_and_flops_count_what_rows_read() -> None:
    work = DecodeWorkload()
    given = {"n_p": 100, "n_s": 0, "batch_size": 2, "kv_heads": 4, "heads": 4, "head_dim": 16, "dtype": "float32"}
    one, four = (
        AttentionPoint.model_validate({**given, "device": "cpu", "query_rows": rows, "draft": draft})
        for rows, draft in ((1, "chain"), (4, "1 3"))
    )
    amounts = [work.amounts(point, 0, "chunk_attn", True, [5]) for point in (one, four)]
    kv = 2 * 105 * 2 * 4 * 16 * 4
    assert [each.unique_bytes[0] for each in amounts] == [kv + 2 * 2 * 4 * 16 * 4, kv + 2 * 8 * 4 * 16 * 4]
    assert amounts[0].flops[0] == 4 * 4 * 16 * 2 * 105
    assert amounts[1].flops[0] == 4 * 4 * 16 * 2 * (4 * 101 + 1 + 3 * 2)  # the context, and seven pairs in the draft
