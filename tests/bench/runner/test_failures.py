"""Broken implementations: each gives rows with a status and a reason, and leaves all other rows intact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from chunkbench.bench import workload
from chunkbench.bench.environment import git_state
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.runner.client import WorkerClient, WorkerCrashed, WorkerError
from chunkbench.bench.runner.executor import LocalExecutor, MeasuredPass
from chunkbench.bench.runner.passes import Budget, RunOptions
from chunkbench.bench.runner.point_driver import PointDriver, WorkerLost
from chunkbench.bench.runner.run import DEFAULT_OPTIONS, run_experiment
from chunkbench.bench.runner.session_measurer import SessionMeasurer
from chunkbench.bench.runner.survey import survey
from chunkbench.bench.runner.target import resolve_target
from chunkbench.bench.store import TORN, DecodeResult, open_run
from chunkbench.cli.progress import RunProgress
from chunkbench.run_error import RunError
from tests.command import chunkbench
from tests.plugins.ray.listening import RecordingListener
from tests.waiting import wait_until

EXPERIMENT = """\
name: failures
title: implementations that fail
dtype: float32
budget: 20s
case_limit: 2s
max_rounds: 3
implementations: [{names}]
defaults: {{n_c: 3, batch_size: 2, heads: 2, head_dim: 32, chunk_size: 16}}
sweep:
  - {{n_p: 40, n_s: [0, 32]}}
"""


def measure(
    tmp_path: Path,
    names: Sequence[str],
    listener: RunProgress | None = None,
    resume: bool = False,
    options: RunOptions = DEFAULT_OPTIONS,
) -> dict[tuple[str, int | None], DecodeResult]:
    spec = tmp_path / "failures.yaml"
    spec.write_text(EXPERIMENT.format(names=", ".join(names)))
    experiment = load_experiment(spec)
    listener = listener or RunProgress(quiet=True)
    outcome = run_experiment(
        experiment, LocalExecutor(resolve_target(experiment)), tmp_path / "run", resume, [], listener, options
    )
    assert not outcome.interrupted
    return {(case.implementation, case.n_s): case for case in outcome.run.cases}


class Killer(RunProgress):
    """Kills the worker after the first point: between two requests, so that no implementation is to blame."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.killed = 0

    def point_finished(
        self, point: AttentionPoint, cases: Sequence[DecodeResult], took_s: float, done: float, left_s: float
    ) -> None:
        for child in psutil.Process().children():
            if not self.killed and "chunkbench.worker" in " ".join(child.cmdline()):
                child.kill()
                self.killed += 1


def test_a_worker_that_is_killed_between_points_costs_nothing(tmp_path: Path) -> None:
    killer = Killer()
    cases = measure(tmp_path, ["naive", "chunk_attn"], killer)
    assert killer.killed == 1
    git = json.loads((tmp_path / "run" / "manifest.json").read_text())["git"]
    assert (git and git["commit"]) == ((here := git_state()) and here["commit"])
    assert len(cases) == 4
    assert {case.status for case in cases.values()} <= {"ok", "noisy"}


def test_a_worker_that_never_starts_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match=r"a worker process does not start: .*code 1") as raised:
        measure(tmp_path, ["naive", "chunk_attn"])
    assert raised.value.remedy == "resume"


@pytest.mark.usefixtures("fakes")
def test_broken_implementations_give_a_row_each_and_do_not_affect_the_others(tmp_path: Path) -> None:
    broken = {
        "fake_dies_at_once": ("crashed", "SIGSEGV"),
        "fake_gone": ("error", "its adapter does not load: ModuleNotFoundError: No module named 'chunkbench_gone'"),
        "fake_raises": ("error", "no kernel for this shape"),
        "fake_hangs": ("timeout", "no answer within 2 s"),
        "fake_nan": ("incorrect", "NaN"),
        "fake_wrong": ("incorrect", "max_error"),
        "fake_dies": ("crashed", "SIGKILL"),
        "fake_boasts": ("error", "64 bytes"),
        "fake_late": ("incorrect", "after 3 completion tokens"),
    }
    healthy = ["naive", "chunk_attn", "shared_prefix_matmul"]
    cases = measure(tmp_path, [*broken, *healthy])
    assert len(cases) == 2 * (len(broken) + len(healthy))
    for n_s in (0, 32):
        for name, (status, reason) in broken.items():
            case = cases[name, n_s]
            assert case.status == status, case
            assert reason in case.reason
            # What is found after the rounds keeps its samples in the facts.
            assert len(case.samples_us) == (3 if name in ("fake_boasts", "fake_late") else 0)
        for name in healthy:
            case = cases[name, n_s]
            assert case.status in ("ok", "noisy"), case
            assert [len(samples) for samples in case.samples_us] == [3, 3, 3]
            assert case.max_error is not None
            assert case.max_error < 1e-5
            assert len(case.peaks) == 3


@pytest.mark.usefixtures("fakes")
def test_retry_measures_only_the_points_of_failed_rows_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["fake_mends", "chunk_attn"]
    broken = measure(tmp_path, names)
    assert broken["fake_mends", 0].status in ("ok", "noisy")
    assert broken["fake_mends", 32].status == "error"
    assert broken["fake_mends", 32].reason.startswith("in prepare: RuntimeError: out of order (chunkbench_fakes.py:")
    assert measure(tmp_path, names, resume=True) == broken, "without retry, a failed row counts as measured"
    monkeypatch.setenv("CHUNKBENCH_FAKE_MENDED", "1")
    mended = measure(tmp_path, names, resume=True, options=RunOptions(retry=frozenset({"error"})))
    assert mended["fake_mends", 32].status in ("ok", "noisy")
    assert len(mended) == 4
    for name in names:
        assert mended[name, 0] == broken[name, 0], "this point had no row with status error"
    assert mended["chunk_attn", 32] != broken["chunk_attn", 32], "all rows of a point are measured together"


class Scripted(WorkerClient):
    """Gives these answers, one after the other, and raises those that are errors."""

    pid = os.getpid()

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self._answers = [*answers]

    def ask(self, op: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {**answer}

    def kill(self) -> None:
        """Nothing."""


def test_a_survey_without_memory_gives_rows_with_status_oom() -> None:
    worker = Scripted(WorkerError("oom", "no memory"))
    _, traits = survey(["naive"], "cpu", lambda: worker)
    assert (traits["naive"].status, traits["naive"].reason) == ("oom", "in survey: no memory")


def test_a_point_is_tried_again_when_the_system_killed_the_worker_for_memory(tmp_path: Path) -> None:
    surveyed = {"chunk_attn": {"label": "ChunkAttn", "ok": False, "reason": "not here"}}
    killed = WorkerCrashed("the system ran out of memory and killed the process", "oom")
    workers = [Scripted(surveyed, {}, killed), Scripted({}, {"threads": 1})]  # behind the survey: reserve, open
    (tmp_path / "x.yaml").write_text(EXPERIMENT.format(names="chunk_attn"))
    experiment = load_experiment(tmp_path / "x.yaml")
    target = resolve_target(experiment)
    point = experiment.points("cpu", "float32")[0]
    options = RunOptions(start_worker=lambda *_: workers.pop(0))
    measurer = SessionMeasurer(workload.of(experiment), experiment, target, [point], tmp_path / "log", options)
    cases = {point: experiment.cases(point)}
    (row,) = measurer.measure([point], cases, Budget(1.0), lambda _: None)[point]
    assert (row.status, row.reason) == ("unavailable", "not here")
    assert workers == []


def test_what_was_timed_across_a_suspension_is_timed_again() -> None:
    suspended = {"samples_us": [1.0, 2.0], "suspended": True}

    def answered(*answers: dict[str, Any]) -> dict[str, Any]:
        unused: Any = None
        return PointDriver(unused, unused, {}, Scripted(*answers), unused, []).housekeeping("peaks")

    last = {"samples_us": [3.0], "discarded": 1}
    assert answered(suspended, suspended, last) == {"samples_us": [3.0], "discarded": 5}
    with pytest.raises(WorkerLost, match="the worker was suspended 4 times in a row"):
        answered(*[suspended] * 4)


RESUMED = """\
name: long
title: four points that take a while
dtype: float32
budget: 5s
precision: 0.0001
implementations: [naive, chunk_attn]
defaults: {n_c: 4, batch_size: 2, heads: 2, head_dim: 32, chunk_size: 16}
sweep:
  - {n_p: [40, 48, 56, 64], n_s: 32}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "long.yaml"
    path.write_text(RESUMED)
    return path


def start(spec: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "chunkbench", "run", str(spec), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=spec.parent,
        # Tests in the background ignore Ctrl-C, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )


def wait_for_points(out: Path, count: int) -> None:
    """Wait until `count` points (of two cases each) are on disk."""
    wait_until(lambda: (out / "cases.jsonl").exists() and len(open_run(out).cases) >= 2 * count)


def test_ctrl_c_keeps_finished_points_which_only_the_same_experiment_resumes(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = start(spec, out)
    wait_for_points(out, 1)
    os.kill(running.pid, signal.SIGINT)
    printed, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "--resume" in errors
    assert str(out) in errors
    assert "Partial run (interrupted): " in printed
    assert 2 <= len(open_run(out).cases) < 8
    spec.write_text(RESUMED.replace("n_c: 4", "n_c: 5"))
    for words, message in ((["--resume"], "the experiment"), ([], "--resume")):
        refused = chunkbench("run", str(spec), "--out", str(out), *words)
        assert refused.code == 2
        assert message in refused.stderr


class Idle(LocalExecutor):
    """Measures nothing."""

    def measure(self, *_: object) -> Generator[MeasuredPass, None, None]:
        yield from ()


def test_resume_tells_that_a_last_line_was_cut_short(spec: Path, tmp_path: Path) -> None:
    experiment, out, listener = load_experiment(spec), tmp_path / "run", RecordingListener()
    idle = Idle(resolve_target(experiment))
    run_experiment(experiment, idle, out, False, [], listener)
    (out / "cases.jsonl").write_text('{"key": "a')
    run_experiment(experiment, idle, out, True, [], listener)
    assert listener.problems == [f"{out}: {TORN}; it is removed, and its point is measured again"]
    assert (out / "cases.jsonl").read_text() == ""
