"""Speed-ups between machines, dtypes and implementations, on invented facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkbench.bench.store import Manifest, Run
from chunkbench.report.compare.compare import NothingToCompare
from chunkbench.report.compare.speedups import Speedups, speedups
from chunkbench.report.compare.speedups_table import document
from chunkbench.report.formats import render
from tests.invented_runs import MakeFacts

DICE = np.random.default_rng(0)


def run_of(facts: MakeFacts, times: dict[str, float], rounds: int = 40, **changes: Any) -> Run:
    """A run of one point. All its implementations are slower in the same rounds."""
    machine = DICE.lognormal(0.0, 0.2, rounds)
    cases = [
        facts(name, samples_us=tuple((us * m * DICE.lognormal(0.0, 0.01),) for m in machine), steps=(1,), **changes)
        for name, us in times.items()
    ]
    return Run(Path("run"), Manifest.model_validate({"schema_version": 4}), cases, torn=False)


def between(base: Run, head: Run, what: Any = "dtypes", over: str | None = None) -> Speedups:
    return speedups([base], [head], what, over, threshold=0.05, confidence=0.99)


@pytest.mark.parametrize(
    ("factor", "rounds", "change"),
    [(1.0, 40, "same"), (1.5, 40, "larger"), (0.7, 40, "smaller"), (2.0, 3, "inconclusive")],
)
def test_speedups_of_two_dtypes(facts: MakeFacts, factor: float, rounds: int, change: str) -> None:
    base = run_of(facts, {"naive": 400.0, "chunk_attn": 100.0}, rounds, dtype="float32")
    head = run_of(facts, {"naive": 90.0, "chunk_attn": 22.5 / factor}, rounds, dtype="bfloat16")
    (entry,) = between(base, head).speedups
    assert entry.base == pytest.approx(4.0, rel=0.02)
    assert entry.head == pytest.approx(4.0 * factor, rel=0.02)
    assert entry.change == change
    assert (entry.low is None) == (rounds == 3)
    assert entry.axes["dtype"] == "bfloat16"


def test_machines_may_differ_in_device_and_threads(facts: MakeFacts) -> None:
    base = run_of(facts, {"naive": 400.0, "chunk_attn": 100.0}, threads=2)
    head = run_of(facts, {"naive": 40.0, "chunk_attn": 5.0}, device="cuda", mode="graph", threads=None)
    (entry,) = between(base, head, "machines").speedups
    assert entry.ratio == pytest.approx(2.0, rel=0.03)
    with pytest.raises(NothingToCompare, match="no point in common"):
        between(base, head, "dtypes")


def test_implementations_that_only_one_side_measured_are_paired(facts: MakeFacts) -> None:
    base = run_of(facts, {"naive": 400.0, "mine": 100.0})
    head = run_of(facts, {"naive": 800.0, "yours": 100.0})
    (entry,) = between(base, head, "implementations").speedups
    assert (entry.base_implementation, entry.head_implementation) == ("mine", "yours")
    assert entry.ratio == pytest.approx(2.0, rel=0.03)
    assert "| mine | yours |" in render(document(between(base, head, "implementations")), "markdown")
    with pytest.raises(NothingToCompare, match="no implementation that the other lacks"):
        between(base, base, "implementations")


def test_the_common_implementation_must_be_in_both(facts: MakeFacts) -> None:
    base = run_of(facts, {"naive": 400.0, "chunk_attn": 100.0})
    head = run_of(facts, {"paged_attn": 400.0, "chunk_attn": 100.0})
    with pytest.raises(NothingToCompare, match=r"naive: not measured in .*; both measured chunk_attn") as caught:
        between(base, head, over="naive")
    assert caught.value.remedy == "name the common implementation"


def test_a_swept_dtype_is_refused(facts: MakeFacts) -> None:
    run = run_of(facts, {"naive": 400.0, "chunk_attn": 100.0}, dtype="float32")
    run.cases += run_of(facts, {"naive": 400.0, "chunk_attn": 100.0}, dtype="float16").cases
    with pytest.raises(NothingToCompare, match="more than once at a point, with different values of dtype"):
        between(run, run)


def test_of_several_processes_only_cases_of_one_process_are_paired(facts: MakeFacts) -> None:
    whole = [run_of(facts, {"naive": 400.0, "chunk_attn": 100.0}) for _ in range(9)]
    broken = run_of(facts, {"naive": 4000.0, "chunk_attn": 1.0})
    broken.cases = broken.cases[:1]  # its chunk_attn crashed
    (entry,) = speedups([broken, *whole], whole, "machines", None, threshold=0.05, confidence=0.99).speedups
    assert entry.change == "same"
    assert entry.base == pytest.approx(4.0, rel=0.02)
