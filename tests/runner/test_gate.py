"""The gate for real, on a point of a millisecond: with nothing changed, and with a worker that is faulty on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chunkbench.analysis.compare import Options, compare
from chunkbench.cli.progress import RepeatProgress
from chunkbench.experiment import Experiment, load_experiment
from chunkbench.runner.gate import Gated, gate, next_number, repeater
from chunkbench.runner.run import resolve
from chunkbench.store import RunError, open_runs

ROOT = Path(__file__).parents[2]
FAULTY = str(ROOT / "benchmarks" / "slowed_worker.py")
SPEC = """\
name: tiny
dtype: float32
implementations: [paged_attn, chunk_attn]
budget: 2s
case_limit: 5s
defaults: {n_c: 2, batch_size: 4, heads: 2, head_dim: 64, chunk_size: 16, threads: 1}
sweep:
  - {n_p: 256, n_s: n_p}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    path = tmp_path / "tiny.yaml"
    path.write_text(SPEC)
    return load_experiment(path)


@pytest.fixture
def recording(tmp_path: Path, experiment: Experiment) -> Path:
    target = resolve(experiment)
    path = tmp_path / "recording"
    with RepeatProgress(quiet=True) as progress, repeater(experiment, target, path, [], progress) as measuring:
        runs, interrupted = measuring.measure(experiment, path, 3)
    assert len(runs) == 3
    assert not interrupted
    return path


def gated(experiment: Experiment, recording: Path, out: Path, *fault: str, again: int = 1) -> Gated:
    target = resolve(experiment)
    worker = [sys.executable, FAULTY, *fault] if fault else None
    with RepeatProgress(quiet=True) as progress, repeater(experiment, target, out, [], progress, worker) as measuring:
        return gate(experiment, measuring, open_runs(recording), Options(), 3, again, out, target)


def test_a_recording_is_several_runs_and_can_be_added_to(recording: Path, experiment: Experiment) -> None:
    runs = open_runs(recording)
    assert [run.path.name for run in runs] == ["1", "2", "3"]
    for run in runs:
        assert {case.implementation for case in run.cases} == {"paged_attn", "chunk_attn"}
        assert all(len(case.yardsticks) == len(case.samples_us) >= 3 for case in run.cases)
        assert all(not case.peaks for case in run.cases)
    target = resolve(experiment)
    assert next_number(recording, experiment, target) == 4
    assert next_number(recording.parent / "new", experiment, target) == 1
    with pytest.raises(RunError, match="is a run, not a recording"):
        next_number(recording / "1", experiment, target)
    other = experiment.model_copy(update={"seed": 1})
    with pytest.raises(RunError, match="cannot be added to"):
        next_number(recording, other, target)


def test_wrong_results_are_found(recording: Path, experiment: Experiment, tmp_path: Path) -> None:
    found = gated(experiment, recording, tmp_path / "out", "chunk_attn", "wrong").comparison
    assert found is not None
    assert found.exit_code == 3
    assert {case.implementation: case.verdict for case in found.cases if case.failed} == {"chunk_attn": "incorrect"}


def test_a_crash_is_found_and_costs_nobody_else(recording: Path, experiment: Experiment, tmp_path: Path) -> None:
    found = gated(experiment, recording, tmp_path / "out", "chunk_attn", "crash").comparison
    assert found is not None
    assert found.exit_code == 3
    crashed = next(case for case in found.cases if case.implementation == "chunk_attn")
    assert (crashed.verdict, crashed.failed) == ("missing", True)
    assert "SIGABRT" in crashed.reason
    assert next(case for case in found.cases if case.implementation == "paged_attn").head_rounds > 0


def test_twice_as_slow_is_measured_again(recording: Path, experiment: Experiment, tmp_path: Path) -> None:
    found = gated(experiment, recording, tmp_path / "out", "chunk_attn", "1.0", again=2).comparison
    assert found is not None
    slowed = next(case for case in found.cases if case.implementation == "chunk_attn" and case.metric == "latency")
    # How sure three processes can be depends on the machine; that it was looked at again does not.
    assert slowed.ratio is None or slowed.ratio > 1.3
    assert slowed.verdict in ("slower", "inconclusive")
    assert slowed.verdict == "inconclusive" or slowed.remeasured
    assert (tmp_path / "out" / "head" / "3" / "cases.jsonl").exists()


def run_cli(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "chunkbench", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
    )


def test_the_command_records_and_gates(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(SPEC)
    few = ("--processes", "2", "--budget", "1s")
    done = run_cli("gate", "tiny.yaml", "--record", "rec", *few, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "recorded 6 processes in rec" in done.stderr
    done = run_cli("gate", "tiny.yaml", "--against", "rec", "--out", "out", *few, "--format", "json", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["exit_code"] == done.returncode
    assert (tmp_path / "out" / "comparison.xml").exists()
    again = run_cli("gate", "tiny.yaml", "--against", "rec", "--out", "out", cwd=tmp_path)
    assert again.returncode == 2
    assert "is not empty" in again.stderr
    compared = compare(open_runs(tmp_path / "rec"), open_runs(tmp_path / "out" / "head"), Options())
    assert compared.settings.timed_cases == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gate", "tiny.yaml"], "either --against RECORDED or --record RECORDED"),
        (["gate", "tiny.yaml", "--against", "nowhere"], "no such run directory"),
        (["gate", "tiny.yaml", "--against", ".", "--fail-on", "slow"], "'slow' is none of slower, incorrect"),
        (["gate", "tiny.yaml", "--against", ".", "--threshold", "five"], "write a share such as 5%"),
        (["gate", "missing.yaml", "--against", "."], "no such file"),
    ],
)
def test_wrong_usage_says_what_to_mend(tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "tiny.yaml").write_text(SPEC)
    done = run_cli(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
