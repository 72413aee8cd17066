"""Two revisions measured in turns, and a real build of the base revision."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkbench.cli.progress import RepeatProgress
from chunkbench.environment import git_state
from chunkbench.environment.revision import PROJECT
from chunkbench.experiment import load_experiment
from chunkbench.regression.compare import Options, compare
from chunkbench.regression.job import Job
from chunkbench.regression.paired import PairedRuns, Side, Turns
from chunkbench.regression.verdicts import Comparison
from chunkbench.runner.client import WorkerProcess
from chunkbench.runner.target import resolve
from chunkbench.store import open_run
from tests.command import chunkbench
from tests.example_project import committed_example
from tests.slowed_example import slower_by

FAULTY = str(Path(__file__).parents[1] / "slowed_worker.py")
needs_checkout = pytest.mark.skipif(git_state() is None or not shutil.which("git"), reason="not a git checkout")


Measure = Callable[..., PairedRuns]


@pytest.fixture
def measure(spec: Path, start_worker: Callable[..., WorkerProcess], tmp_path: Path) -> Measure:
    """Measures two pairs of processes. HEAD may get a fault."""

    def measure_pairs(*fault: str) -> PairedRuns:
        experiment = load_experiment(spec).model_copy(update={"budget_s": 0.1})  # the budget adds no more pairs
        command = [sys.executable, FAULTY, *fault] if fault else None
        names = experiment.implementations
        base = Side("base", lambda: start_worker(*names), {})
        head = Side("head", lambda: start_worker(*names, command=command), {})
        with RepeatProgress(quiet=True) as progress:
            job = Job(experiment, resolve(experiment), tmp_path / "out", progress)
            return Turns(job, base, head).measure(processes=2)

    return measure_pairs


def test_rounds_come_in_pairs(measure: Measure) -> None:
    pairs = measure()
    assert len(pairs.base) == len(pairs.head) == 2
    for base_run, head_run in zip(pairs.base, pairs.head, strict=True):
        assert base_run.manifest.in_turns_with == head_run.manifest.in_turns_with
        for base, head in zip(base_run.cases, head_run.cases, strict=True):
            assert (base.key, base.status in ("ok", "noisy")) == (head.key, True)
            assert len(base.samples_us) == len(head.samples_us) >= 3
    comparison = compare(pairs.base, pairs.head, Options())
    assert comparison.settings.in_turns
    # Two pairs are never enough for 99%: no verdict may say that something changed.
    assert {case.verdict for case in comparison.cases} == {"inconclusive"}
    assert all("too few for this confidence" in case.reason for case in comparison.cases)


@pytest.mark.serial
def test_a_head_that_is_three_times_as_slow(measure: Measure) -> None:
    pairs = measure("chunk_attn", "2.0")
    cases = {case.implementation: case for case in compare(pairs.base, pairs.head, Options()).cases}
    assert cases["chunk_attn"].ratio is not None
    assert cases["paged_attn"].ratio is not None
    assert cases["chunk_attn"].ratio > 1.5 * cases["paged_attn"].ratio


def test_a_head_that_crashes_is_missing_and_the_other_case_is_measured(measure: Measure) -> None:
    pairs = measure("chunk_attn", "crash")
    comparison = compare(pairs.base, pairs.head, Options())
    cases = {case.implementation: case for case in comparison.cases}
    assert (cases["chunk_attn"].verdict, cases["chunk_attn"].failed) == ("missing", True)
    assert cases["paged_attn"].head_units == 2
    assert comparison.exit_code == 3


def worktrees() -> str:
    return subprocess.run(
        ["git", "-C", str(PROJECT), "worktree", "list"], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
@needs_checkout
@pytest.mark.timeout(600)
def test_the_base_revision_is_built_measured_and_cleaned_up(spec: Path, tmp_path: Path) -> None:
    before = worktrees()
    command = [sys.executable, "-m", "chunkbench", "regress", "--base", "HEAD", str(spec), "--processes", "2"]
    out = tmp_path / "out"
    # The current folder is the checkout: the worker of BASE must not import the package in it.
    done = subprocess.run(
        [*command, "--again", "0", "--out", str(out)], capture_output=True, text=True, check=False, cwd=PROJECT
    )
    assert done.returncode == 0, done.stderr + (out / "build.log").read_text()
    assert "HEAD and BASE measured" in done.stdout
    head, base = (open_run(tmp_path / "out" / side / "1") for side in ("head", "base"))
    assert (
        base.manifest.git.commit
        == subprocess.run(
            ["git", "-C", str(PROJECT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    assert [case.isa for case in head.cases] == [case.isa for case in base.cases]
    assert worktrees() == before


@needs_checkout
@pytest.mark.timeout(300)
def test_an_interrupted_build_is_removed(spec: Path, tmp_path: Path) -> None:
    before, temporary = worktrees(), tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "chunkbench", "regress", "--base", "HEAD", str(spec), "--out", str(tmp_path / "out")],
        cwd=PROJECT,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not list(temporary.glob("chunkbench-*/source")) and time.monotonic() < deadline:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGTERM)  # as a CI system does when a job is cancelled
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert not list(temporary.glob("chunkbench-*"))
    assert worktrees() == before


@needs_checkout
@pytest.mark.parametrize(
    ("ref", "message"), [("no-such-branch", "no such revision in"), ("--upload-pack=x", "no such revision in")]
)
def test_an_unknown_revision(spec: Path, tmp_path: Path, ref: str, message: str) -> None:
    done = chunkbench("regress", f"--base={ref}", str(spec), "--out", str(tmp_path / "out"))
    assert done.code == 2
    assert message in done.stderr


@pytest.mark.timeout(300)
@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_both_revisions_of_somebody_elses_project_are_built(tmp_path: Path) -> None:
    project, out = committed_example(tmp_path, budget="1s"), tmp_path / "out"
    with project.module.open("a") as file:  # changed, and not committed
        file.write(slower_by(19))
    words = ["regress", "--base", "HEAD", "--processes", "2", "--again", "0", "--format", "json", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "chunkbench", *words],
        cwd=project.module.parent, env=project.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    comparison = Comparison.model_validate_json(done.stdout)
    (case,) = (case for case in comparison.cases if case.metric == "latency")
    assert case.verdict == "slower"
    sources = {source.package: source for source in comparison.sources}
    assert not sources["my-kernel"].same
    assert sources["chunkbench"].same
    nothing = subprocess.run(
        [sys.executable, "-m", "chunkbench", *words[:3], "gate", "--out", str(tmp_path / "other")],
        cwd=project.path, env=project.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert nothing.returncode == 2
    assert "measures nothing of this project, which registers my_kernel" in nothing.stderr
