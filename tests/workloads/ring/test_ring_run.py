"""Runs of `kind: ring`: two real ranks through the command line, and made-up ranks that fail."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest

from chunkbench.bench.environment import read_environment
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.experiment.point import Case
from chunkbench.bench.runner.passes import Budget, Workplace
from chunkbench.bench.runner.target import Target
from chunkbench.bench.store import Run, open_run
from chunkbench.report import files
from chunkbench.workloads.ring import measure
from chunkbench.workloads.ring.launch import GivenWorld, RankLostError, Ranks
from chunkbench.workloads.ring.measure import RingMeasurer, _Tried
from chunkbench.workloads.ring.methods import CHOICES
from chunkbench.workloads.ring.placement import Scheme
from chunkbench.workloads.ring.rank import Answer
from chunkbench.workloads.ring.result import RingPoint, RingResult
from chunkbench.workloads.ring.spec import RingExperiment
from chunkbench.workloads.ring.task import Task
from tests.command import chunkbench
from tests.workloads.made import ring_result

TINY = """\
kind: ring
dtype: float32
budget: 1s
case_limit: 30s
rounds: 3
implementations: [one_process, ring, tree_decode]
defaults: {ranks: 2, heads: 2, head_dim: 32, threads: 1}
sweep:
  - {n_p: 256}
  - {n_p: 256, phase: decode, batch_size: 3}
"""


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run where variables of a launcher are set."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def run(folder: Path, text: str, *more: str) -> tuple[object, str, Run]:
    (folder / "tiny.yaml").write_text(text)
    done = chunkbench("run", str(folder / "tiny.yaml"), "-q", "--out", str(folder / "run"), *more)
    return done.code, done.stdout + done.stderr, open_run(folder / "run")


def found(run: Run) -> dict[tuple[str, str], RingResult]:
    return {(case.phase, case.implementation): case for case in run.cases if isinstance(case, RingResult)}


def answer(error: float | None = 1e-7, seconds: float = 0.5, peak: int | None = 1000) -> Answer:
    return Answer(seconds, 0.3, 0.1, 0.2, 64, peak, error, (("compute", 0.0, 0.3),), "here")


def point(**axes: Any) -> RingPoint:
    given = {"device": "cpu", "dtype": "float32", "n_p": 256, "heads": 2, "head_dim": 32, **axes}
    return RingPoint.model_validate(RingPoint.completed(given))


class MadeRanks:
    """Stands for ranks: the ring fails as a test says, other schemes take half a second."""

    started: ClassVar[list[MadeRanks]]
    passes: ClassVar[list[tuple[str, bool, bool, int]]]
    """Movement, whether it is checked, whether it is warmed up, repeats."""
    fails: ClassVar[Mapping[int, RankLostError]] = {}
    """Number of a pass of the ring, of all ranks -> its error."""
    probe_fails: ClassVar[RankLostError | None] = None
    seconds: ClassVar[float] = 0.5

    def __init__(self, ranks: int, *_: object) -> None:
        self.ranks = ranks
        self.started.append(self)
        self.closed = False

    def run(self, scheme: Scheme, task: Task, link: int | None, *rest: object, **how: Any) -> list[Answer]:
        assert not self.closed
        self.passes.append((scheme.movement, how["check"], how["warm"], how["repeats"]))
        number = sum(movement == "ring" for movement, *_ in self.passes) - 1
        if scheme.movement == "ring" and number in self.fails:
            self.closed = True
            raise self.fails[number]
        return [answer(1e-7 if how["check"] else None, self.seconds) for _ in range(2)]

    def probe(self, *_: object) -> list[dict[str, float]]:
        if self.probe_fails is not None:
            self.closed = True
            raise self.probe_fails
        return [{"flops_per_s": 1e9, "bytes_per_s": 1e8}, {"flops_per_s": 3e9, "bytes_per_s": 3e8}]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> type[MadeRanks]:
    """The class that measurers start ranks of; a test may change it."""

    class Made(MadeRanks):
        started: ClassVar[list[MadeRanks]] = []
        passes: ClassVar[list[tuple[str, bool, bool, int]]] = []

    monkeypatch.setattr(measure, "Ranks", Made)
    return Made


@pytest.mark.parametrize(
    ("errors", "dtype", "reason"),
    [
        ([1e-7, math.nan], "float32", "rank 1 returned NaN; allowed is 1e-05"),
        ([math.nan, math.nan], "float32", "rank 0 returned NaN; allowed is 1e-05"),
        ([None, 0.0], "float32", "rank 0 returned NaN; allowed is 1e-05"),
        ([0.0, 2e-5], "float32", "rank 1 returned an error of 2e-05; allowed is 1e-05"),
        ([math.inf, 0.0], "float32", "rank 0 returned an error of inf; allowed is 1e-05"),
        ([0.0, 2e-5], "bfloat16", ""),
        ([0.0, 0.03], "bfloat16", "rank 1 returned an error of 0.03; allowed is 0.02"),
    ],
)
def test_a_wrong_rank_is_named(errors: list[float | None], dtype: str, reason: str) -> None:
    one = _Tried(CHOICES["ring"], rounds=[[answer(error) for error in errors]])
    RingMeasurer._judge(one, point(dtype=dtype))
    assert (one.status, one.reason) == ("incorrect" if reason else "ok", reason)


def test_a_run_measures_checks_and_goes_on(made: type[MadeRanks], tmp_path: Path) -> None:
    # Less repeated, so that the test takes less time; tests of the report draw it.
    real = mock.patch.multiple(measure, Ranks=Ranks, _LEAST_S=0.01)
    with real, mock.patch.object(files, "write_all"):
        code, printed, done = run(tmp_path, TINY)
    assert code == 0, printed
    cases = found(done)
    assert len(done.cases) == len(cases) == 6
    unable = cases.pop(("prefill", "tree_decode"))
    assert (unable.status, unable.reason, unable.times) == ("unsupported", "is for phase: decode", ())
    for case in cases.values():
        assert case.status == "ok", case.reason
        assert case.max_error is not None
        assert 0 < case.max_error < 1e-5
        # The first pass of three was checked, and is not timed where passes are short.
        assert [len(times) for times in case.times] == [2, 2]
        assert len(case.timeline) == len(case.ranks_facts) == 2
        assert case.flops_per_s
        assert case.bytes_per_s
        assert (case.threads, case.hosts) == (1, 1)
    assert {key: [rank.pairs for rank in case.ranks_facts] for key, case in cases.items()} == {
        ("prefill", "one_process"): [256 * 257 // 2, 0],
        ("prefill", "ring"): [128 * 129 // 2, 128 * 129 // 2 + 128**2],
        ("decode", "one_process"): [3 * 256, 0],
        ("decode", "tree_decode"): [3 * 128] * 2,
        ("decode", "ring"): [2 * 256, 256],
    }

    # Without the second point and a part of its line, the run goes on there; made-up ranks show what is measured then.
    lines = (done.path / "cases.jsonl").read_text().splitlines(keepends=True)
    (done.path / "cases.jsonl").write_text("".join(lines[:3]) + lines[3][:50])
    code, printed, resumed = run(tmp_path, TINY, "--resume")
    assert code == 0, printed
    assert resumed.cases[:3] == done.cases[:3]
    assert [case.key for case in resumed.cases] == [case.key for case in done.cases]
    assert {case.rounds for case in resumed.cases[3:]} == {((0.5e6,),) * 2}
    assert len(made.started) == 1


def measured(
    made: type[MadeRanks],
    folder: Path,
    at: RingPoint,
    names: tuple[str, ...] = ("one_process", "ring"),
    budget_s: float = 60,
) -> dict[str, RingResult]:
    """What a measurer finds at a point, in at most four rounds."""
    path = folder / "made.yaml"
    path.write_text(f"kind: ring\nrounds: 4\nimplementations: [{', '.join(names)}]\nsweep: [{{n_p: 256}}]\n")
    experiment = load_experiment(path)
    assert isinstance(experiment, RingExperiment)
    target = Target("cpu", "float32", read_environment(), "machine")
    measurer = RingMeasurer(experiment, target, Workplace(folder / "log"))
    cases = {at: [Case(at, name) for name in names]}
    budget, shares = Budget(budget_s), list[float]()
    results = measurer.measure([at], cases, budget, lambda text: shares.append(budget.share_done))[at]
    assert shares == sorted(shares)
    measurer.close()
    assert all(ranks.closed for ranks in made.started)
    return {result.implementation: result for result in results}


def test_only_the_scheme_that_loses_a_rank_fails(made: type[MadeRanks], tmp_path: Path) -> None:
    made.fails = {1: RankLostError("rank 1 was killed by SIGKILL", "crashed")}
    results = measured(made, tmp_path, point())
    ring, one = results["ring"], results["one_process"]
    assert (ring.status, ring.reason, ring.times) == ("crashed", "rank 1 was killed by SIGKILL", ())
    assert (one.status, len(one.times), one.flops_per_s, one.bytes_per_s) == ("ok", 3, 2e9, 2e8)
    assert len(made.started) == 2
    assert [movement for movement, *_ in made.passes].count("ring") == 2, "a scheme that failed has no further pass"


@pytest.mark.parametrize(
    ("seconds", "budget_s", "passes", "timed"),
    [
        # Four of 0.03 s are a sample of 0.1 s; the first one is not timed.
        (0.03, 60, [(True, False, 1), *[(False, True, 4)] * 3], 3),
        (1.5, 60, [(True, False, 1), *[(False, False, 1)] * 3], 4),
        (1.5, 0, [(True, False, 1), *[(False, False, 1)] * 2], 3),  # a budget never leaves less than three rounds
    ],
)
def test_every_scheme_is_checked_once_and_short_passes_are_repeated(
    made: type[MadeRanks], tmp_path: Path, seconds: float, budget_s: float, passes: list[Any], timed: int
) -> None:
    made.seconds = seconds
    results = measured(made, tmp_path, point(), budget_s=budget_s)
    for movement in ("none", "ring"):
        assert [tuple(rest) for name, *rest in made.passes if name == movement] == passes
    assert {len(result.times) for result in results.values()} == {timed}
    assert [rank.peak_bytes for rank in results["ring"].ranks_facts] == [1000, 1000]


def test_ranks_of_another_library_say_nothing_of_what_they_sent(made: type[MadeRanks], tmp_path: Path) -> None:
    results = measured(made, tmp_path, point(), ("one_process", "sdpa", "torch_ring"))
    sent = {name: {rank.sent_bytes for rank in result.ranks_facts} for name, result in results.items()}
    assert sent == {"one_process": {64}, "sdpa": {64}, "torch_ring": {None}}


def test_what_does_not_fit_starts_no_ranks(made: type[MadeRanks], tmp_path: Path) -> None:
    results = measured(made, tmp_path, point(n_p=1 << 40))
    assert {result.status for result in results.values()} == {"oom"}
    assert "are available" in results["ring"].reason
    assert made.started == []


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("launched")
def test_ranks_of_a_launcher_measure_only_points_of_as_many_and_are_not_started_again(
    made: type[MadeRanks], tmp_path: Path
) -> None:
    made.fails = {0: RankLostError("rank 1 is gone", "timeout")}
    with mock.patch.object(GivenWorld, "dismiss") as dismiss:
        four = measured(made, tmp_path, point(ranks=4))
        assert dismiss.call_count == 1, "nothing was measured, so the other ranks may end"
        two = measured(made, tmp_path, point())
        assert dismiss.call_count == 1
    assert {(result.status, result.reason) for result in four.values()} == {
        ("unsupported", "this run was started with WORLD_SIZE=2")
    }
    assert (two["ring"].status, two["ring"].reason) == ("timeout", "rank 1 is gone")
    assert two["one_process"].status == "error"
    assert "start all of them again" in two["one_process"].reason
    assert len(made.started) == 1


@pytest.mark.usefixtures("launched")
def test_a_rank_of_a_launcher_that_the_probe_loses_is_named(made: type[MadeRanks], tmp_path: Path) -> None:
    made.probe_fails = RankLostError("rank 1 is gone", "timeout")
    told = sorted((result.status, result.reason) for result in measured(made, tmp_path, point()).values())
    assert told == [
        ("error", "the ranks of this run have ended; start all of them again"),
        ("timeout", "rank 1 is gone"),
    ]


def test_a_result_has_all_ranks_in_every_round() -> None:
    result = ring_result("ring")
    again = RingResult.model_validate_json(result.model_dump_json())
    assert again == result
    assert [round_[0] for round_ in result.rounds] == pytest.approx([2e5, 2.5e5, 1.6e5])  # of the slower rank
    broken = json.loads(result.model_dump_json())
    broken["times"][1].pop()
    with pytest.raises(ValueError, match="does not have one entry for each of 2 ranks"):
        RingResult.model_validate(broken)


def test_the_plan_names_points_and_schemes(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    done = chunkbench("run", str(tmp_path / "tiny.yaml"), "--dry-run")
    assert done.code is None or done.code == 0
    assert "2 points, at most 3 passes of each scheme" in done.stdout
    assert "Tree decode" in done.stdout
    assert "phase=decode" in done.stdout
