"""Two sides measured in interleaved pairs, until there are verdicts; and real builds of revisions."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chunkbench.bench.environment import git_state
from chunkbench.bench.environment.revision import PROJECT, git_output
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.runner.target import resolve_target
from chunkbench.bench.store import open_run, open_runs
from chunkbench.cli.progress import RepeatProgress
from chunkbench.report.compare.builds import Build
from chunkbench.report.compare.compare import Options
from chunkbench.report.compare.interleaved import InterleavedJob
from chunkbench.report.compare.regress import looks, regress
from chunkbench.report.compare.sides import Side, _check_measures, interpreters
from chunkbench.report.compare.verdicts import Comparison
from chunkbench.run_error import RunError
from tests.command import chunkbench
from tests.example_project import committed_example, slower_by
from tests.waiting import wait_until

FAULTY = str(Path(__file__).parents[2] / "slowed_worker.py")
needs_checkout = pytest.mark.skipif(git_state() is None or not shutil.which("git"), reason="not a git checkout")


Measure = Callable[..., Comparison]


@pytest.fixture
def measure(spec: Path, tmp_path: Path) -> Measure:
    """Measures pairs of processes, two at least. HEAD may get a fault."""

    def measure_pairs(*fault: str, processes: int = 2, **changes: Any) -> Comparison:
        experiment = load_experiment(spec).model_copy(update={"budget_s": 0.01, **changes})
        head = Side("head", "HEAD", program=[FAULTY, *fault] if fault else [])
        (tmp_path / "out").mkdir()
        with RepeatProgress(quiet=True) as progress:
            job = InterleavedJob(experiment, resolve_target(experiment), tmp_path / "out", progress, processes)
            outcome = regress(job, Side("base", "BASE"), head, Options())
        assert outcome.comparison is not None
        assert not outcome.interrupted
        return outcome.comparison

    return measure_pairs


@pytest.mark.slow  # the test of somebody else's project finds a slower HEAD in make test
@pytest.mark.serial
def test_pairs_go_on_until_there_is_a_verdict(measure: Measure) -> None:
    alone = {"implementations": ("chunk_attn",), "baseline": "chunk_attn"}
    comparison = measure("chunk_attn", "9.0", processes=10, budget_s=10.0, **alone)
    (case,) = (case for case in comparison.cases if case.metric == "latency")
    assert case.verdict == "slower"
    assert case.head_units == 10  # a verdict after the first look
    assert comparison.settings.looks > 1


def test_a_head_that_crashes_is_missing_and_the_other_case_is_measured(measure: Measure) -> None:
    comparison = measure("chunk_attn", "crash")
    cases = {case.implementation: case for case in comparison.cases}
    assert (cases["chunk_attn"].verdict, cases["chunk_attn"].failed) == ("missing", True)
    assert "SIGABRT" in cases["chunk_attn"].reason
    assert cases["paged_attn"].head_units == 2
    assert comparison.exit_code == 3


def test_the_number_of_pairs_doubles_from_look_to_look_until_the_time_is_over() -> None:
    assert looks(12, 30.0, 120.0) == pytest.approx([30, 60, 120])
    assert looks(12, 25.0, 120.0) == pytest.approx([25, 54.77, 120], rel=1e-3)
    assert looks(12, 100.0, 120.0) == [100.0, 200.0]  # the second look comes also under load
    assert looks(2, 100.0, 120.0) == [100.0]  # four pairs never have a verdict


def worktrees() -> str | None:
    return git_output(PROJECT, "worktree", "list")


@pytest.mark.slow
@needs_checkout
@pytest.mark.timeout(600)
def test_the_base_revision_is_built_measured_and_cleaned_up(spec: Path, tmp_path: Path) -> None:
    before = worktrees()
    words = ["regress", "--base", "HEAD", str(spec), "--processes", "2", "--budget", "100ms"]
    command, out = [sys.executable, "-m", "chunkbench", *words], tmp_path / "out"
    # The current folder is the checkout: the worker of BASE must not import the package in it.
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False, cwd=PROJECT)
    assert done.returncode == 0, done.stderr + (out / "build.log").read_text()
    assert "HEAD and BASE interleaved" in done.stdout
    head, base = (open_run(tmp_path / "out" / side / "1") for side in ("head", "base"))
    assert base.manifest.git.commit == git_output(PROJECT, "rev-parse", "HEAD")
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
        wait_until(lambda: bool(list(temporary.glob("chunkbench-*/source"))), 120)
        os.killpg(process.pid, signal.SIGTERM)  # as a CI system does when a job is cancelled
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert not list(temporary.glob("chunkbench-*"))
    assert worktrees() == before


@pytest.mark.timeout(300)
@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_both_revisions_of_somebody_elses_project_are_built(tmp_path: Path) -> None:
    project = committed_example(tmp_path, budget="1s")
    with project.module.open("a") as file:  # changed, and not committed
        file.write(slower_by(19))
    words = ["regress", "--base", "HEAD", "--processes", "3", "--confidence", "0.5", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "chunkbench", *words, "--out", str(tmp_path / "out")],
        cwd=project.module.parent, env=project.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    comparison = Comparison.model_validate_json(done.stdout)
    (case,) = (case for case in comparison.cases if case.metric == "latency")
    assert case.verdict == "slower"
    assert comparison.head.commit != comparison.base.commit  # the working tree is marked as modified


def test_an_experiment_that_measures_nothing_of_a_project_is_refused(spec: Path, tmp_path: Path) -> None:
    info = tmp_path / "my_kernel-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kernel\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[chunkbench.baselines]\nmy_kernel = my_kernel:MyKernel\n")
    with pytest.raises(RunError, match="measures nothing of this project, which registers my_kernel"):
        _check_measures(load_experiment(spec), Build("c0ffee", False, tmp_path))


def test_neither_interpreter_imports_what_lies_in_pythonpath(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One folder for both would compare a package with itself."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "chunkbench.py").write_text("raise ImportError('that of PYTHONPATH')\n")
    said: list[str] = []
    for side in interpreters(sys.executable, said.append):
        worker = side.start(tmp_path / f"{side.name}.log", load_experiment(spec))
        worker.kill()
    assert len(said) == 1
    assert said[0].startswith("PYTHONPATH is left out: ")


HERE = ["--base-python", sys.executable]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --base REV or --base-python PYTHON"),
        (["--base", "HEAD", *HERE], "give either --base REV or --base-python PYTHON"),
        (["--base-python", "/no/python"], "No such file"),
        (["--base-python", shutil.which("true") or "true"], "no Python interpreter"),
        ([*HERE, "--fail-on", "slow"], "'slow' is none of slower, incorrect"),
        ([*HERE, "--threshold", "five"], "write a share such as 5%"),
        ([*HERE, "--metric", "plans"], "no figure of kind: decode; did you mean plan? There are"),
        pytest.param(["--base=no-such-branch"], "no such revision in", marks=needs_checkout),
        pytest.param(["--base=--upload-pack=x"], "no such revision in", marks=needs_checkout),
    ],
)
def test_messages_for_wrong_usage(spec: Path, tmp_path: Path, words: list[str], message: str) -> None:
    done = chunkbench("regress", str(spec), *words, "--out", str(tmp_path / "out"))
    assert done.code == 2
    assert message in done.stderr


def test_another_interpreter_is_compared_with_this_one_in_pairs_of_rounds(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--base-python", sys.executable, str(spec), "--processes", "2", "--budget", "10ms", "--format", "json"]
    done = chunkbench("regress", *words, "--out", str(out))
    assert done.code == 0, done.stderr
    comparison = Comparison.model_validate_json(done.stdout)
    assert not comparison.differences
    assert comparison.settings.interleaved
    # Two pairs are never enough for 99%: no verdict may say that something changed.
    assert {case.verdict for case in comparison.cases} == {"inconclusive"}
    assert all(case.reason == "2 and 2 pairs are too few for this confidence" for case in comparison.cases)
    base_runs, head_runs = (open_runs(out / name) for name in ("base", "head"))
    assert len(base_runs) == len(head_runs) == 2
    assert [run.path for run in open_runs(out)] == [run.path for run in head_runs]
    for base_run, head_run in zip(base_runs, head_runs, strict=True):
        assert base_run.manifest.interleaved_with == head_run.manifest.interleaved_with
        for base, head in zip(base_run.cases, head_run.cases, strict=True):
            assert (base.key, base.status in ("ok", "noisy")) == (head.key, True)
            assert len(base.samples_us) == len(head.samples_us) >= 3
