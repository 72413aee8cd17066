from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkbench.bench.store import Manifest, Noise, Run, open_run
from chunkbench.report.compare.history import history
from tests.invented_facts import MakeFacts


def recording(facts: MakeFacts, number: int, us: float, model: str = "A", **changes: Any) -> list[Run]:
    manifest = {
        "schema_version": 4,
        "started_at": f"2026-01-{number:02}T00:00:00+00:00",
        "git": {"commit": f"{number:040x}", "dirty": False},
        "environment": {"cpu": {"model": model}},
    }
    made = Manifest.model_validate(manifest)
    cases = [facts(key="k", samples_us=((us, us),) * 3, **({"machine": made.only_machine} | changes))]
    return [Run(Path("run"), made, cases)]


def test_a_change_is_found_with_its_commit(facts: MakeFacts) -> None:
    rng = np.random.default_rng(0)
    levels = [100.0] * 8 + [120.0] * 8
    runs = [recording(facts, 1 + i, us * rng.lognormal(0, 0.02)) for i, us in enumerate(levels)]
    (series,) = history(list(reversed(runs)), "latency", 0.05, 0.99)  # history sorts the runs by time
    assert [change.index for change in series.changes] == [8]
    assert series.changes[0].commit == f"{9:040x}"[:12]
    assert 1.15 < series.changes[0].ratio < 1.25
    assert [m.started_at for m in series.measurements] == sorted(m.started_at for m in series.measurements)


def test_each_machine_has_its_own_series(facts: MakeFacts) -> None:
    runs = [recording(facts, 1 + i, 100.0 if i < 6 else 300.0, "A" if i < 6 else "B") for i in range(12)]
    all_series = history(runs, "latency", 0.05, 0.99)
    assert [(series.machine, len(series.measurements), series.changes) for series in all_series] == [
        (1, 6, ()),
        (2, 6, ()),
    ]


def test_equal_machines_with_different_ids_are_two_machines(facts: MakeFacts) -> None:
    runs = [recording(facts, 1 + i, 100.0, machine=f"host-{i % 2}") for i in range(4)]
    assert [(series.machine, len(series.measurements)) for series in history(runs, "latency", 0.05, 0.99)] == [
        (1, 2),
        (2, 2),
    ]


def test_only_undisturbed_processes_count_if_there_are_any(facts: MakeFacts) -> None:
    runs = recording(facts, 1, 100.0) + recording(facts, 1, 900.0, noise=Noise(foreign_cpus=1.0))
    (series,) = history([runs], "latency", 0.05, 0.99)
    assert series.measurements[0].latency_us == pytest.approx(100.0)
    assert series.measurements[0].undisturbed


@pytest.mark.parametrize(
    ("name", "value", "unit"),
    [("kv_bytes", 64.0, "bytes"), ("token_rate", 10_000.0, "tokens/s"), ("append", 1e-3, "us")],
)
def test_other_figures_have_a_history(facts: MakeFacts, name: str, value: float, unit: str) -> None:
    values = {"kv_bytes": 64, "batch_size": 1, "append_samples_us": ((0.0, 0.0),) * 3}
    runs = [recording(facts, 1 + i, 100.0, **values) for i in range(2)]
    (series,) = history(runs, name, 0.05, 0.99)
    assert [measurement.value for measurement in series.measurements] == pytest.approx([value] * 2)
    assert {measurement.latency_us for measurement in series.measurements} == {None}
    assert (series.metric, series.unit) == (name, unit)


def test_kinds_of_work_have_figures_of_the_same_name() -> None:
    paths = ("replays/replay-table4", "epyc-zen4-2-cores/table4-smollm2", "xeon-amx-2-cores/table4-ablations")
    recorded = [open_run(Path(__file__).parents[3] / "results" / "recorded" / path) for path in paths]
    all_series = history([[run] for run in recorded], "first_token_p50", 0.05, 0.99)
    assert len(all_series) == sum(len(run.cases) for run in recorded)
    assert {series.unit for series in all_series} == {"s"}


def test_a_figure_of_zero_has_a_history_without_changes(facts: MakeFacts) -> None:
    runs = [recording(facts, 1 + i, 100.0, deviation=float(i)) for i in range(4)]
    (series,) = history(runs, "deviation", 0.05, 0.99)
    assert (series.levels, series.changes) == ([1.5], ())
