"""Runs that are killed or interrupted, then resumed or refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.runner.executor import LocalExecutor, MeasuredPass
from chunkbench.bench.runner.run import run_experiment
from chunkbench.bench.runner.target import resolve_target
from chunkbench.bench.store import TORN, open_run
from tests.command import chunkbench
from tests.plugins.ray.listening import RecordingListener

EXPERIMENT = """\
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
COMMAND = [sys.executable, "-m", "chunkbench"]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "long.yaml"
    path.write_text(EXPERIMENT)
    return path


def start(spec: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    words = [*COMMAND, "run", str(spec), "--out", str(out), *more]
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=spec.parent,
        # Tests in the background ignore Ctrl-C, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )


def wait_for_points(out: Path, count: int) -> None:
    """Wait until `count` points (of two cases each) are on disk."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (out / "cases.jsonl").exists() and len(open_run(out).cases) >= 2 * count:
            return
        time.sleep(0.05)
    raise AssertionError("the run did not get that far")


def test_ctrl_c_keeps_finished_points_and_prints_the_resume_command(spec: Path, tmp_path: Path) -> None:
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


def test_resume_refuses_another_experiment(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = start(spec, out)
    wait_for_points(out, 1)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 130
    spec.write_text(EXPERIMENT.replace("n_c: 4", "n_c: 5"))
    refused = chunkbench("run", str(spec), "--out", str(out), "--resume")
    assert refused.code == 2
    assert "the experiment" in refused.stderr
    again = chunkbench("run", str(spec), "--out", str(out))
    assert again.code == 2
    assert "--resume" in again.stderr


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
