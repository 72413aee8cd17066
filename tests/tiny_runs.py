"""Fixtures: an experiment with a point of a millisecond, failing implementations, workers that end with their test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chunkbench.baselines import registry
from chunkbench.bench.experiment.terms import Pages
from chunkbench.bench.runner.client import WorkerProcess

FAKES = Path(__file__).parent / "fakes"
TINY = """\
name: tiny
dtype: float32
implementations: [paged_attn, chunk_attn]
budget: 500ms
case_limit: 5s
defaults: {n_c: 2, batch_size: 4, heads: 2, head_dim: 64, chunk_size: 16, threads: 1}
sweep:
  - {n_p: 256, n_s: n_p}
"""


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registers the failing implementations here and in the workers that the test starts."""
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), *([inherited] if inherited else [])]))
    monkeypatch.syspath_prepend(FAKES)
    registry.REGISTRY.refresh()
    yield
    registry.REGISTRY.refresh()


@pytest.fixture(scope="session")
def tiny() -> str:
    """An experiment on a point of a millisecond."""
    return TINY


@pytest.fixture
def spec(tiny: str, tmp_path: Path) -> Path:
    """The tiny experiment as a file."""
    path = tmp_path / "tiny.yaml"
    path.write_text(tiny)
    return path


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers that have imported the given implementations; they end with the test."""
    workers: list[WorkerProcess] = []

    def start(*implementations: str, command: list[str] | None = None, pages: Pages = "huge") -> WorkerProcess:
        # Two threads may start workers at the same time.
        worker = WorkerProcess(tmp_path / f"worker-{uuid.uuid4().hex}.log", "decode", pages, command)
        workers.append(worker)
        worker.ask("preload", 120, implementations=list(implementations))
        return worker

    yield start
    for worker in workers:
        worker.kill()
