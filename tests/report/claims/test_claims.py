"""The claims, judged by invented rows: the paper's own figures as measurements, and changed figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from chunkbench.bench.analysis.derive import Row, derive
from chunkbench.bench.store.results import DecodeResult
from chunkbench.llama import SHAPES
from chunkbench.report.claims import Claim, MachineRun, claims, differing
from chunkbench.report.claims.document import document
from chunkbench.report.claims.evidence import RunRows
from chunkbench.report.claims.judgement import Figure, Stated
from chunkbench.report.claims.judges import bounded, largest, smallest
from chunkbench.report.printed import paper_rows, table3
from chunkbench.workloads.modules.result import ModulesResult

Latencies = Mapping[tuple[int, int, str], float]


@pytest.fixture
def rows(facts) -> Callable[..., list[Row]]:
    """Rows of Table 3's setup: three rounds, each case within a thousandth of its latency."""

    def make(latencies: Latencies, **changes: Any) -> list[Row]:
        cases = [
            facts(name, n_p=n_p, n_s=n_s, samples_us=tuple((us * f, us * f) for f in (0.999, 1.0, 1.001)), **changes)
            for (n_p, n_s, name), us in latencies.items()
        ]
        return derive(cases)

    return make


def judge(*runs: Sequence[Row]) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims(runs)}


def test_without_runs_only_analytic_claims_hold() -> None:
    judged = judge()
    assert list(judged) == [row["id"] for row in paper_rows("claims")]
    by_verdict: dict[str, set[str]] = {}
    for id_, claim_ in judged.items():
        by_verdict.setdefault(claim_.verdict, set()).add(id_)
    assert by_verdict["holds"] == {
        "T1-arith", "S1-gpt3-kv", "S1-capacity", "S3-contiguity", "PA-kv13b", "PA-batch", "GQA-memory", "RA-bound",
        "RA-hit", "S3-beginning", "X-figure4", "X-52", "X-regression", "X-unit", "RG-table1", "RG-table2", "X-ring2",
        "X-weights", "PA-memory13b", "TY-bound",
    }  # fmt: skip
    assert by_verdict["cannot tell"] == {"RG-appendixD"}
    assert by_verdict["not measured"] >= {"F5-1024", "F5-2048", "T4-kv", "T4-batch", "T4-noregress"}
    assert by_verdict.keys() == {"holds", "cannot tell", "not measured"}
    assert all(not claim.rows for claim in judged.values())
    assert judged["T1-arith"].measured == 27  # of 27 figures
    assert judged["S1-gpt3-kv"].measured == 4.5
    assert judged["PA-kv13b"].measured == 800
    assert [judged[id].measured for id in ("PA-batch", "GQA-memory", "X-weights")] == [7, 8, 350]
    assert judged["PA-memory13b"].measured == 0.65


def test_the_papers_table_confirms_its_section_but_not_its_abstract(rows) -> None:
    judged = judge(rows(table3()))
    for id in ("T3-star", "T3-order", "T3-naive", "T3-hwcache", "T3-noregress", "T3-agnostic"):
        assert judged[id].verdict == "holds", judged[id].reason
        assert judged[id].rows
    assert judged["T3-star"].measured == pytest.approx(154.46 / 56)
    assert judged["T3-hwcache"].measured == pytest.approx(1 - 663.84 / 1399.51)
    assert judged["T3-order"].measured == pytest.approx(687.52 / 505.32)
    assert judged["ABS-speedup"].verdict == "more than stated"  # by the implementation that the text names
    assert judged["ABS-speedup"].measured == pytest.approx(355.44 / 56)
    assert "2.76x" in judged["ABS-speedup"].reason


def changed(factors: Mapping[str, float], where: Callable[[int, int], bool] = lambda n_p, n_s: True) -> Latencies:
    return {
        (n_p, n_s, name): us * (factors.get(name, 1.0) if where(n_p, n_s) else 1.0)
        for (n_p, n_s, name), us in table3().items()
    }


@pytest.mark.parametrize(
    ("factors", "id", "verdict"),
    [
        ({"chunk_attn": 1.3}, "T3-star", "different here"),
        ({"chunk_attn": 3.5}, "T3-star", "does not hold"),
        ({"chunk_attn": 0.5}, "T3-star", "more than stated"),
        ({"chunk_attn": 0.9}, "T3-star", "more than stated"),
        ({"chunk_attn": 1.6}, "ABS-speedup", "holds"),
        ({"chunk_attn": 2.5}, "ABS-speedup", "different here"),
        ({"paged_attn_star": 1.5}, "T3-order", "does not hold"),
        ({"naive": 0.7}, "T3-order", "does not hold"),
        ({"paged_attn_star": 1.5}, "T3-hwcache", "different here"),
        ({"naive": 0.1}, "T3-naive", "does not hold"),
        ({"paged_attn_star": 2.5}, "T3-hwcache", "does not hold"),
        ({"paged_attn_star": 0.5}, "T3-hwcache", "more than stated"),
        ({"chunk_attn": 1.2}, "T3-noregress", "does not hold"),
        ({"chunk_attn": 1.09}, "T3-noregress", "does not hold"),
    ],
)
def test_verdicts_follow_the_figures(factors: Mapping[str, float], id: str, verdict: str, rows) -> None:
    judged = judge(rows(changed(factors)))[id]
    assert judged.verdict == verdict, judged.reason
    assert judged.measured is not None


def test_dependence_on_n_s_is_separated_from_noise(rows, facts) -> None:
    dependent = changed({"flash_attn": 1.2}, lambda n_p, n_s: n_s == 0)
    judged = judge(rows(dependent))["T3-agnostic"]
    assert judged.verdict == "does not hold"
    assert judged.measured == pytest.approx(0.2, abs=0.02)
    noisy = derive(
        [
            facts("naive", n_p=1024, n_s=n_s, samples_us=tuple((us, us) for us in samples))
            for n_s, samples in ((0, (90.0, 100.0, 130.0)), (512, (95.0, 110.0, 120.0)))
        ]
        + [facts("chunk_attn", n_p=1024, n_s=n_s) for n_s in (0, 512)]
    )
    assert judge(noisy)["T3-agnostic"].verdict == "cannot tell"


def test_a_change_of_the_machines_own_speed_is_no_dependence_on_n_s(rows, facts) -> None:
    def case_at(name: str, n_s: int, us: float, sweep_us: float) -> DecodeResult:
        calibration = ({"arithmetic_us": 100.0, "memory_us": sweep_us},) * 3
        return facts(name, n_p=1024, n_s=n_s, samples_us=((us, us),) * 3, calibration=calibration)

    def run(sweep_us: float) -> list[Row]:
        points = ((0, 100.0, 2000.0), (512, 110.0, sweep_us))
        return derive([case_at(name, *point) for point in points for name in ("naive", "chunk_attn")])

    assert judge(run(2010.0))["T3-agnostic"].verdict == "does not hold"
    judged = judge(run(2400.0))["T3-agnostic"]
    assert judged.verdict == "different here"
    assert "the machine's own speed changed by 20%" in judged.reason


def test_a_run_without_an_implementation_does_not_hide_another_run(rows) -> None:
    complete = rows(table3(), experiment="table3")
    star = {key: us for key, us in changed({"chunk_attn": 1.3}).items() if key[2] in ("chunk_attn", "paged_attn_star")}
    partial = rows(star, experiment="figure3")
    for order in ((complete, partial), (partial, complete)):
        judged = judge(*order)
        assert judged["T3-naive"].verdict == "holds"
        assert judged["T3-star"].measured == pytest.approx(154.46 / 56)  # a run of `table3` counts first


def test_the_faster_kernel_of_a_column_counts_and_is_named(rows) -> None:
    ours = {(n_p, n_s): us for (n_p, n_s, name), us in table3().items() if name == "paged_attn_star"}
    vllm = {(*point, "vllm_paged_attn_star"): us * 0.5 for point, us in ours.items()}
    judged = judge(rows({**table3(), **vllm}))["T3-star"]
    assert judged.verdict == "different here"
    assert "over vLLM* at 1024" in judged.reason
    assert judged.measured == pytest.approx(154.46 / 56 / 2)


def test_the_last_run_counts_and_other_setups_do_not_count(rows) -> None:
    first, second = rows(table3()), rows(changed({"chunk_attn": 1.3}))
    assert judge(first, second)["T3-star"].verdict == "different here"
    assert judge(second, first)["T3-star"].verdict == "holds"
    for other in ({"head_dim": 64}, {"protocol": "paper"}, {"cache": "warm"}, {"kv_heads": 8}):
        assert judge(rows(table3(), **other))["T3-star"].verdict == "not measured"


def figure3(rows, gain: Mapping[int, float]) -> list[Row]:
    def latencies(times: float) -> Latencies:
        factors = {"chunk_attn": 1.0, "paged_attn_star": times, "paged_attn": 1.9 * times}
        return {(2048, 2048, name): 100 * factor for name, factor in factors.items()}

    return [row for n_c, times in gain.items() for row in rows(latencies(times), n_c=n_c)]


@pytest.mark.parametrize(
    ("gain", "verdicts"),
    [
        ({64: 3.1, 512: 2.0, 2048: 1.5}, ["holds", "holds", "holds"]),
        ({64: 1.2, 512: 1.9, 2048: 1.1}, ["different here", "different here", "does not hold"]),
    ],
)
def test_the_gain_shrinks_while_sequences_diverge(rows, gain: Mapping[int, float], verdicts: list[str]) -> None:
    judged = judge(figure3(rows, gain))
    assert [judged[id].verdict for id in ("F3-512", "F3-2048", "F3-decay")] == verdicts


def test_where_64_completion_tokens_were_not_measured_another_length_counts_and_is_said(rows) -> None:
    few, alone = rows(table3(), n_c=8), rows({(1024, 1024, name): 50.0 for name in ("chunk_attn", "naive")}, n_c=1)
    judged = judge(few, alone)
    assert judged["T3-star"].verdict == "holds"
    assert "at n_c = 8, because 64 was not measured" in judged["T3-star"].reason
    assert judged["F3-512"].verdict == "not measured"
    assert "n_c" not in judge(few, alone, rows(table3()))["T3-star"].reason


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ({4: 90, 16: 100, 96: 50}, "holds"),
        ({4: 100, 16: 98, 96: 50}, "cannot tell"),
        ({4: 100, 16: 80, 96: 80}, "different here"),
        ({4: 50, 16: 80, 96: 100}, "does not hold"),
        ({1: 20, 4: 50, 16: 80}, "not measured"),
    ],
)
def test_a_peak_elsewhere_counts_where_intervals_are_apart(rates: Mapping[int, int], verdict: str, facts) -> None:
    cases = [
        facts(
            name,
            n_p=2048,
            n_s=2048,
            batch_size=b,
            experiment="figure4",
            samples_us=tuple((1e3 * b / rate * f,) * 2 for f in (0.97, 1.0, 1.03)),
        )
        for b, rate in rates.items()
        for name in ("naive", "chunk_attn")
    ]
    assert judge(derive(cases))["F4-peak"].verdict == verdict


def test_a_figure_below_the_papers_within_the_scatter_has_no_verdict(facts) -> None:
    def at(b: int, *samples: float) -> DecodeResult:
        return facts("chunk_attn", n_p=2048, n_s=2048, batch_size=b, samples_us=tuple((us, us) for us in samples))

    clear = derive([at(16, 16.0, 16.0, 16.0), at(96, 80.0, 80.0, 80.0)])
    assert judge(clear)["F4-growth"].verdict == "different here"
    scattered = derive([at(16, 15.0, 16.0, 18.0), at(96, 70.0, 80.0, 82.0)])
    judged = judge(scattered)["F4-growth"]
    assert judged.verdict == "cannot tell"
    assert "the interval lies on both sides of the bound" in judged.reason


def modules(attention: Mapping[int, float]) -> list[Row]:
    """Rows of Table 1: 100 us for each of the two products."""
    cases = [
        ModulesResult.model_validate(
            {"key": f"{name} {b}", "experiment": "table1", "implementation": name, "label": name, "batch_size": b}
            | {"model": SHAPES["llama2-7b"], "n_p": 2048, "n_c": 1, "dtype": "float32", "device": "cpu", "status": "ok"}
            | {"protocol": "strict", "cache": "cold", "mode": "eager", "steps": (1,), "groups": (0, 0)}
            | {"samples_us": ((us,), (us * 1.01,))}
        )
        for b, attention_us in attention.items()
        for name, us in (("qkv_projection", 100.0), ("mlp", 100.0), ("self_attention", attention_us))
    ]
    return derive(cases)


@pytest.mark.parametrize(
    ("attention", "verdict"),
    [
        ({1: 10, 32: 500, 64: 1000}, "holds"),
        ({1: 10, 32: 100, 64: 1000}, "different here"),
        ({1: 1000, 32: 100, 64: 100}, "does not hold"),
        ({1: 10}, "not measured"),
    ],
)
def test_the_share_of_attention(attention: Mapping[int, float], verdict: str) -> None:
    assert judge(modules(attention))["T1-attention"].verdict == verdict


@pytest.mark.parametrize(("n_c", "verdict"), [(8, "different here"), (64, "holds")])
def test_whole_chunks_explain_a_smaller_gain(n_c: int, verdict: str, facts) -> None:
    """A sequence's own tokens take one chunk of 64."""
    held = {("naive", b): b * (1024 + n_c) for b in (8, 32)} | {("chunk_attn", b): 1024 + b * 64 for b in (8, 32)}
    cases = [
        facts(name, n_p=1024, n_s=1024, n_c=n_c, batch_size=b, samples_us=(), kv_bytes=tokens * 16384)
        for (name, b), tokens in held.items()
    ]
    judged = judge(derive(cases))["S3-sharing"]
    assert (judged.verdict, judged.measured) == (verdict, pytest.approx((1024 + 32 * n_c) / (1024 + 32 * 64)))


@pytest.mark.parametrize(
    ("direction", "bound", "decimals", "low", "high", "verdict"),
    [
        ("at least", 2.8, 1, 2.29, 3.12, "cannot tell"),
        ("at least", 2.8, 1, 2.75001, 3.12, "holds"),
        ("at least", 2.8, 1, 1.2, 2.74, "wrong"),
        ("at most", 1.0, 1, 0.91, 1.06, "cannot tell"),
        ("at most", 1.0, 1, 0.91, 1.04, "holds"),
        ("at most", 0.03, 2, 0.24, 0.43, "wrong"),
        ("at least", 0.70, 2, 0.6951, 0.6951, "holds"),
    ],
)
def test_both_ends_of_the_interval_are_rounded_and_compared(
    direction: Any, bound: float, decimals: int, low: float, high: float, verdict: str
) -> None:
    assert Stated(direction, bound, decimals).verdict(low, high) == verdict


def test_the_figure_that_decides_comes_first_and_a_cause_explains_no_speed_up_below_1(rows) -> None:
    (row,) = rows({(1024, 0, "naive"): 1.0})
    at_least = Stated("at least", 2.0, 1)

    def judged(*values: float, stated: Stated = at_least, **changes: Any) -> tuple[Any, ...]:
        found = [Figure(value, value, value + 0.1, (row,), f"at {place}") for place, value in enumerate(values)]
        words = "{each}; {it:.1f}, {least:.1f} to {most:.1f} of {count}"
        judgement = bounded(found, stated, words, ("rows", "table3"), cause="a cause", cause_above=1, **changes)
        return judgement.verdict, judgement.measured, judgement.reason

    each = "3.00 at 0, 1.50 at 1, 4.00 at 2"
    assert judged(3, 1.5, 4) == ("different here", 1.5, f"{each}; 1.5, 1.5 to 4.0 of 3; a cause")
    assert judged(3, 0.8)[:2] == ("does not hold", 0.8)
    assert judged(3, 0.95)[:2] == ("cannot tell", 0.95)  # 0.95 to 1.05: no effect is possible
    assert judged(3, 1.5, 4, order=largest) == ("holds", 4, f"{each}; 4.0, 1.5 to 4.0 of 3")
    assert judged(3, 1.5, 4, order=smallest)[1] == 1.5
    assert judged(3, 1.5, 4, order=list)[:2] == ("holds", 3)
    assert judged(0.9, 1.5, stated=Stated("at most", 1.0, 1))[:2] == ("different here", 1.5)
    assert judged()[2] == "it needs rows, which `chunkbench run table3` measures"


def test_verdicts_that_differ_between_runs_of_one_machine_are_named(rows) -> None:
    runs = {"monday": rows(table3()), "friday": rows(changed({"chunk_attn": 1.3})), "other": rows(table3())}
    found = differing([MachineRun("one", name, RunRows(run)) for name, run in runs.items()])
    assert found["T3-star"] == {"monday": "holds", "friday": "different here", "other": "holds"}
    assert "T3-agnostic" not in found
    footer = dict(document({"": claims(list(runs.values()))}, list(runs), found).footer)
    assert "T3-star: holds in monday, different here in friday, holds in other" in footer["differs between runs"]
    assert "differs between runs" not in dict(document({"": []}, []).footer)
