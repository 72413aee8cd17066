"""Growth: every operation runs, and slopes are those of the times."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.tree import PrefixTree
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.experiment.point import Case
from chunkbench.bench.store import Run
from chunkbench.report.build import build
from chunkbench.report.formats import render
from chunkbench.workloads.growth.methods import CHOICES
from chunkbench.workloads.growth.result import GrowthPoint, GrowthResult
from tests.command import chunkbench
from tests.invented_runs import run_in


def point_of(size: int) -> GrowthPoint:
    return GrowthPoint(dtype="float32", device="cpu", size=size)


SLOW = ("engine_step", "load", "replay", "report_rows")
"""Operations whose sample, or whose libraries, take more than a second."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CHOICES])
def test_every_operation_runs_at_its_smallest_size(name: str) -> None:
    operation = CHOICES[name]
    with operation.begin(point_of(operation.sizes[0])) as sample:
        assert sample() > 0
        assert sample() > 0  # what a sample changed is put back


def test_an_eviction_evicts() -> None:
    from chunkbench.workloads.growth import forest

    trees: list[PrefixTree] = []

    class Watched(PrefixTree):
        def __init__(self, *arguments: object, **named: object) -> None:
            super().__init__(*arguments, **named)  # type: ignore[arg-type]
            trees.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forest, "PrefixTree", Watched)
        with forest.evict(point_of(100)) as sample:
            for _ in range(5):
                sample()
    (tree,) = trees
    assert isinstance(tree.pool, ChunkPool)
    assert tree.evictable is not None
    assert tree.evictable.evictions >= 4 * 17


def result(name: str, size: int, seconds: float) -> GrowthResult:
    case = Case(point_of(size), name)
    return GrowthResult.of_case(case, experiment="growth", label=CHOICES[name].label, status="ok", seconds=(seconds,))


def grown(folder: Path, times: dict[str, dict[int, float]]) -> Run:
    results = [result(name, size, seconds) for name, sizes in times.items() for size, seconds in sizes.items()]
    return run_in(folder, results, name="growth", kind="growth", baseline="decode", implementations=list(times))


def test_slopes_are_those_of_the_last_two_decades(tmp_path: Path) -> None:
    times = {
        "join": {size: 1e-9 * size for size in (1000, 10_000, 100_000, 1_000_000)} | {1000: 5e-3},
        "match": {size: 1e-9 * size**2 for size in (1, 10, 100, 1000)},
        "plan": {100: 3e-3, 1000: 6e-3},
        "decode": {100: 0.1, 1000: 0.1},
    }
    report = build(grown(tmp_path, times))
    text = render(report, "markdown")
    assert "3 of 4 operations grow linearly or less. Steeper: Match 2.00." in text
    assert "| 1.00 |" in text.split("Join, tokens")[1].splitlines()[0]
    assert f"{math.log10(2):.2f}" in text.split("| Plan ")[1].splitlines()[0]
    beside = text.split("besides attention")[1]
    assert "| 100 | 3.0% |" in beside
    assert "| 1,000 | 6.0% |" in beside


def test_a_case_is_an_operation_at_a_size_of_its_range() -> None:
    experiment = load_experiment("growth", {"size": "1"})
    (point,) = experiment.points("cpu", "float32")
    assert {case.implementation for case in experiment.cases(point)} == {
        name for name, operation in CHOICES.items() if operation.sizes[0] == 1
    }


def test_a_run_and_its_report(tmp_path: Path) -> None:
    source = tmp_path / "small.yaml"
    rows = "implementations: [match, plan]\nbaseline: match\nsweep: [{size: [1, 10]}]"
    source.write_text(f"kind: growth\nbudget: 1s\n{rows}\n")
    done = chunkbench("run", str(source), "--out", str(tmp_path / "run"))
    assert (done.code, "Match" in done.stdout) == (0, True), done.stderr
    assert (tmp_path / "run" / "figure.png").is_file()
    source.write_text("kind: growth\nbaseline: match\nimplementations: [match]\nsweep: [{n_p: 3}]\n")
    refused = chunkbench("validate", str(source))
    assert refused.code == 2
    assert "size is missing" in refused.stdout + refused.stderr


@pytest.mark.slow
@pytest.mark.serial
def test_an_operation_that_takes_too_long_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    source = tmp_path / "small.yaml"
    rows = "implementations: [replay, match]\nbaseline: match\nsweep: [{size: [100000, 10]}]"
    source.write_text(f"kind: growth\nbudget: 4s\ncase_limit: 6s\n{rows}\n")
    done = chunkbench("run", str(source), "--out", str(tmp_path / "run"))
    assert "Replay: timeout at 100000" in done.stdout
    assert "Match" in done.stdout
