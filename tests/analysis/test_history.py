from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from chunkbench.analysis.history import history
from chunkbench.store.facts import CaseFacts, Noise
from tests.analysis.conftest import MakeFacts


@dataclass
class Run:
    cases: list[CaseFacts]
    manifest: dict[str, Any]


def recording(facts: MakeFacts, number: int, us: float, model: str = "A", **changes: Any) -> list[Run]:
    manifest = {
        "started_at": f"2026-01-{number:02}T00:00:00+00:00",
        "git": {"commit": f"{number:040x}", "dirty": False},
        "environment": {"cpu": {"model": model}},
    }
    return [Run([facts(key="k", samples_us=((us, us),) * 3, **changes)], manifest)]


def test_a_change_is_found_with_its_commit(facts: MakeFacts) -> None:
    dice = np.random.default_rng(0)
    levels = [100.0] * 8 + [120.0] * 8
    runs = [recording(facts, 1 + i, us * dice.lognormal(0, 0.02)) for i, us in enumerate(levels)]
    (series,) = history(list(reversed(runs)), 0.05, 0.99)  # in whatever order they were found
    assert [change.index for change in series.changes] == [8]
    assert series.changes[0].commit == f"{9:040x}"[:12]
    assert 1.15 < series.changes[0].ratio < 1.25
    assert [m.started_at for m in series.measurements] == sorted(m.started_at for m in series.measurements)


def test_machines_make_series_of_their_own(facts: MakeFacts) -> None:
    runs = [recording(facts, 1 + i, 100.0 if i < 6 else 300.0, "A" if i < 6 else "B") for i in range(12)]
    found = history(runs, 0.05, 0.99)
    assert [(one.machine, len(one.measurements), one.changes) for one in found] == [(1, 6, ()), (2, 6, ())]


def test_calm_processes_count_where_there_are_any(facts: MakeFacts) -> None:
    runs = recording(facts, 1, 100.0) + recording(facts, 1, 900.0, noise=Noise(foreign_cpus=1.0))
    (series,) = history([runs], 0.05, 0.99)
    assert series.measurements[0].latency_us == pytest.approx(100.0)
    assert series.measurements[0].calm
