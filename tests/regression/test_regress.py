"""Two revisions measured in turns, and the base revision built for real."""

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
from chunkbench.regression.paired import Measured, Side, Turns
from chunkbench.runner.client import WorkerProcess
from chunkbench.runner.target import resolve
from chunkbench.store import open_run

FAULTY = str(Path(__file__).parents[2] / "benchmarks" / "slowed_worker.py")
needs_checkout = pytest.mark.skipif(git_state() is None or not shutil.which("git"), reason="not a git checkout")


Measure = Callable[..., Measured]


@pytest.fixture
def measure(spec: Path, start_worker: Callable[..., WorkerProcess], tmp_path: Path) -> Measure:
    """Measures four pairs of processes; HEAD may be given a fault."""

    def measured(*fault: str) -> Measured:
        experiment = load_experiment(spec).model_copy(update={"budget_s": 0.1})  # no more pairs than are asked for
        command = [sys.executable, FAULTY, *fault] if fault else None
        base = start_worker(*experiment.implementations)
        head = start_worker(*experiment.implementations, command=command)
        sides = Side("base", base, {}), Side("head", head, {})
        with RepeatProgress(quiet=True) as progress:
            return Turns(experiment, resolve(experiment), *sides, tmp_path / "out", progress).measure(4)

    return measured


def test_rounds_come_in_pairs(measure: Measure) -> None:
    found = measure()
    assert len(found.base) == len(found.head) == 4
    for one, other in zip(found.base, found.head, strict=True):
        assert one.manifest.in_turns_with == other.manifest.in_turns_with
        for ours, theirs in zip(one.cases, other.cases, strict=True):
            assert (ours.key, ours.status in ("ok", "noisy")) == (theirs.key, True)
            assert len(ours.samples_us) == len(theirs.samples_us) >= 3
    comparison = compare(found.base, found.head, Options())
    assert comparison.settings.in_turns
    # Four pairs are never enough for 99%: whatever the machine did, nothing may be called changed.
    assert {case.verdict for case in comparison.cases} == {"inconclusive"}
    assert all("too few for this confidence" in case.reason for case in comparison.cases)


def test_head_three_times_as_slow_shows(measure: Measure) -> None:
    found = measure("chunk_attn", "2.0")
    cases = {case.implementation: case for case in compare(found.base, found.head, Options()).cases}
    assert cases["chunk_attn"].ratio is not None
    assert cases["paged_attn"].ratio is not None
    assert cases["chunk_attn"].ratio > 1.5 * cases["paged_attn"].ratio


def test_a_head_that_crashes_is_missing_and_the_other_case_is_measured(measure: Measure) -> None:
    found = measure("chunk_attn", "crash")
    comparison = compare(found.base, found.head, Options())
    cases = {case.implementation: case for case in comparison.cases}
    assert (cases["chunk_attn"].verdict, cases["chunk_attn"].failed) == ("missing", True)
    assert cases["paged_attn"].head_units == 4
    assert comparison.exit_code == 3


def worktrees() -> str:
    return subprocess.run(
        ["git", "-C", str(PROJECT), "worktree", "list"], capture_output=True, text=True, check=True
    ).stdout


@needs_checkout
@pytest.mark.timeout(600)
def test_the_base_revision_is_built_measured_and_cleaned_up(spec: Path, tmp_path: Path) -> None:
    before = worktrees()
    command = [sys.executable, "-m", "chunkbench", "regress", "--base", "HEAD", str(spec), "--processes", "2"]
    out = tmp_path / "out"
    # From the checkout itself: the base worker must not find the package that lies there.
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
def test_interrupted_while_building_it_leaves_nothing_behind(spec: Path, tmp_path: Path) -> None:
    before, temporary = worktrees(), tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "chunkbench", "regress", "--base", "HEAD", str(spec), "--out", "out"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not list(temporary.glob("chunkbench-base-*/source")) and time.monotonic() < deadline:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGTERM)  # what a CI system does when a job is cancelled
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert not list(temporary.glob("chunkbench-base-*"))
    assert worktrees() == before


@needs_checkout
@pytest.mark.parametrize(
    ("ref", "message"), [("no-such-branch", "no such revision here"), ("--upload-pack=x", "no such revision here")]
)
def test_a_revision_that_is_not_there(spec: Path, tmp_path: Path, ref: str, message: str) -> None:
    command = [sys.executable, "-m", "chunkbench", "regress", f"--base={ref}", str(spec)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
