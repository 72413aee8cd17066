from __future__ import annotations

from typing import Any

import pytest

from chunkbench.bench.analysis.derive import derive
from chunkbench.bench.analysis.expectations import outcomes
from chunkbench.bench.store.manifest import ExpectationFacts


def expectation(**changes: Any) -> ExpectationFacts:
    defaults = {"where": {}, "implementation": "chunk_attn", "metric": "speedup", "against": "naive", "bar": 1.5}
    return ExpectationFacts.model_validate(defaults | changes)


@pytest.fixture
def rows(facts):
    def case(name: str, us: float, **changes: Any):
        return facts(name, samples_us=((us, us),) * 3, **changes)

    return derive(
        [
            case("chunk_attn", 20.0, n_s=512),
            case("naive", 60.0, n_s=512),
            case("chunk_attn", 30.0, n_s=0),
            case("naive", 27.0, n_s=0),
            facts("xformers", n_s=0, status="unavailable", samples_us=()),
        ]
    )


@pytest.mark.parametrize(
    ("changes", "values", "verdicts"),
    [
        ({}, [0.9, 3.0], ["misses", "meets bar"]),
        ({"aim": 3.0}, [0.9, 3.0], ["misses", "reaches aim"]),
        ({"bar": None, "aim": 4.0}, [0.9, 3.0], ["misses", "misses"]),
        ({"where": {"n_s": "0.5 n_p"}}, [3.0], ["meets bar"]),
        ({"where": {"n_s": "1/2 n_p"}}, [3.0], ["meets bar"]),
        ({"where": {"n_s": ["0.5 n_p", "n_p"], "n_p": [1024]}}, [3.0], ["meets bar"]),
        ({"where": {"n_s": "n_p"}}, [], []),
        ({"where": {"n_p": {"low": 512, "high": 1024}}}, [], []),
        ({"where": {"tree": [[512, 32]]}}, [], []),
        ({"where": {"n_s": [0, 512]}}, [0.9, 3.0], ["misses", "meets bar"]),
        ({"where": {"n_s": 0, "n_p": 2048}}, [], []),
        ({"metric": "latency_ratio", "bar": 1.0, "aim": 0.5}, [30 / 27, 1 / 3], ["misses", "reaches aim"]),
        ({"metric": "roofline_fraction", "against": "roofline", "bar": 0.3}, [0.25, 0.375], ["misses", "meets bar"]),
        ({"metric": "append_us", "against": None, "bar": 2.0}, [2.0, 2.0], ["meets bar", "meets bar"]),
        ({"metric": "plan_us", "against": None, "bar": 0.4}, [0.5, 0.5], ["misses", "misses"]),
    ],
)
def test_verdicts(rows, changes: dict[str, Any], values: list[float], verdicts: list[str]) -> None:
    judged = outcomes(rows, [expectation(**changes)])
    assert [outcome.value for outcome in judged] == pytest.approx(values)
    assert [outcome.verdict for outcome in judged] == verdicts


def test_an_unmeasured_expectation_has_a_reason(rows) -> None:
    judged = outcomes(rows, [expectation(against="xformers"), expectation(implementation="nobody", where={"n_s": 0})])
    assert [outcome.verdict for outcome in judged] == ["not measured"] * 3
    assert [outcome.reason for outcome in judged] == [
        "xformers: unavailable",
        "xformers is not in this run",
        "not in this run",
    ]


def test_a_fraction_above_the_roofline_has_no_verdict(facts) -> None:
    rows = derive([facts(samples_us=((1.0, 1.0),))])
    (outcome,) = outcomes(rows, [expectation(metric="roofline_fraction", bar=0.5)])
    assert outcome.verdict == "not measured"
    assert "probe" in outcome.reason


def test_ranges_and_trees_are_selected_as_experiments_write_them(facts) -> None:
    tree = ((512, ((64, 2), (0, 30))),)
    rows = derive(
        [
            *(facts(name, n_p=(512, 1024)) for name in ("chunk_attn", "naive")),
            *(facts(name, n_s=None, tree=tree) for name in ("chunk_attn", "naive")),
        ]
    )

    def selected(**where: Any) -> list[Any]:
        return [(o.axes["n_p"], o.axes["tree"]) for o in outcomes(rows, [expectation(where=where)])]

    assert selected(n_p=[{"low": 512, "high": 1024}]) == [((512, 1024), None)]
    assert selected(n_p=[512, 1024]) == [(1024, tree)]  # two values, not a range
    assert selected(tree=[[512, [[64, 2], [0, 30]]]]) == [(1024, tree)]


def test_an_unknown_metric_is_not_judged(rows) -> None:
    verdicts = {(outcome.verdict, outcome.reason) for outcome in outcomes(rows, [expectation(metric="beauty")])}
    assert verdicts == {("not measured", "this version does not know the metric beauty")}
