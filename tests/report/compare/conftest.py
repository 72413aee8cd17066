"""Runs of one case with invented times, for tests of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkbench.bench.store import Calibration, DecodeResult, Manifest, Run
from chunkbench.report.compare.verdicts import CaseVerdict, Comparison
from tests.invented_runs import MakeFacts

ENVIRONMENT: dict[str, Any] = {
    "cpu": {"model": "Invented", "threads": 2, "isa": ["avx2"]},
    "memory_bytes": 2**34,
    "gpus": [],
    "python": "CPython 3.11.7",
    "torch": {"version": "2.13.0", "threads": 2},
    "packages": {},
}


def run_of(cases: Sequence[DecodeResult], torn: bool = False, **manifest: Any) -> Run:
    values = {"schema_version": 4, "environment": ENVIRONMENT, "device": "cpu"} | manifest
    made = Manifest.model_validate(values)
    measured_here = [case.model_copy(update={"machine": made.only_machine}) for case in cases]
    return Run(Path("run"), made, measured_here, torn)


class RunMaker:
    """Makes runs of one case with invented times of about 100 us times `factor`."""

    def __init__(self, facts: MakeFacts, seed: int = 0) -> None:
        self._facts, self._rng = facts, np.random.default_rng(seed)

    def case(self, factor: float = 1.0, rounds: int = 20, disturbed: float = 0.3, **changes: Any) -> DecodeResult:
        """The case. In a share `disturbed` of its rounds, another tenant slows the arithmetic and the case by 40%."""
        is_slow = self._rng.random(rounds) < disturbed
        times = 100 * factor * self._rng.lognormal(0.0, 0.03, rounds) * np.where(is_slow, 1.4, 1.0)
        arithmetic = 60 * self._rng.lognormal(0.0, 0.004, rounds) * np.where(is_slow, 1.4, 1.0)
        values: dict[str, Any] = {
            "key": "k",
            "samples_us": tuple((float(t), float(t)) for t in times),
            "calibration": tuple(Calibration(arithmetic_us=float(y)) for y in arithmetic),
            "kv_bytes": 4096,
            "work_items": 8,
            "threads": 2,
            "isa": "avx2",
        }
        return self._facts(**(values | changes))

    def runs(self, processes: int, factor: float = 1.0, **changes: Any) -> list[Run]:
        return [run_of([self.case(factor, **changes)]) for _ in range(processes)]


def only(comparison: Comparison) -> CaseVerdict:
    assert len(comparison.cases) == 1, comparison.cases
    return comparison.cases[0]


@pytest.fixture
def make(facts: MakeFacts) -> RunMaker:
    return RunMaker(facts)
