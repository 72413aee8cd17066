"""Short runs of decode steps whose worker is preloaded with `harm.cpp`; one parent worker serves all trials."""

from __future__ import annotations

import atexit
import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from unittest import mock

from chunkbench import workloads
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.experiment.terms import Pages
from chunkbench.bench.runner import memory_guard
from chunkbench.bench.runner.client import ForkedWorker, WorkerProcess
from chunkbench.bench.runner.executor import LocalExecutor
from chunkbench.bench.runner.passes import RunOptions
from chunkbench.bench.runner.run import run_experiment
from chunkbench.bench.runner.target import Target, resolve_target
from chunkbench.bench.store import DecodeResult, open_run
from chunkbench.cli.progress import RunProgress
from tests.torture.harm import library

NAMES = ("naive", "paged_attn", "chunk_attn", "shared_prefix_matmul")
TEXT = f"""\
name: torture
title: runs that suffer
dtype: float32
implementations: [{", ".join(NAMES)}]
caches: [warm]
budget: {{budget}}s
case_limit: 120s
max_rounds: {{rounds}}
precision: 0.0001
defaults: {{{{n_c: {{n_c}}, threads: {{threads}}, batch_size: 2, heads: 4, head_dim: 64, chunk_size: 16}}}}
sweep:
  - {{{{n_p: {{n_p}}, n_s: [0, 32]}}}}
"""
_PROBE = 1 << 24


class Page:
    """The numbers that preloaded processes read. See `harm.cpp`."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def clock(self, seconds: int) -> None:
        """Move the wall clock so far from the real one."""
        struct.pack_into("q", self._map, 0, seconds)

    def fail(self, native: bool, least: int, until: int) -> None:
        """Let one allocation fail; with 0, none."""
        struct.pack_into("qqqq", self._map, 8, native, least, until, 0)

    @property
    def failed(self) -> int:
        number: int = struct.unpack_from("q", self._map, 32)[0]
        return number


class Preloaded:
    """The page of the preloaded library, and the parent of all workers."""

    def __init__(self) -> None:
        workloads.register()
        preload = library()
        self.folder = Path(tempfile.mkdtemp(prefix="torture-decoding-"))
        self.page = Page(self.folder / "page")
        self.environment = {**os.environ, "LD_PRELOAD": str(preload), "TORTURE_PAGE": str(self.folder / "page")}
        self.log = self.folder / "worker.log"
        self.parent = WorkerProcess(self.log, "decode", environment=self.environment)
        self.parent.ask("preload", 120, implementations=list(NAMES))
        self.owner = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        if os.getpid() == self.owner:
            self.parent.kill()
            shutil.rmtree(self.folder, ignore_errors=True)


@cache
def preloaded() -> Preloaded:
    """Made once in a process. Raises Unavailable."""
    return Preloaded()


@cache
def target() -> Target:
    """This machine, read once."""
    return resolve_target(load_experiment(write_experiment(preloaded().folder, 40)))


def write_experiment(
    folder: Path, n_p: int, budget: float = 0.01, rounds: int = 3, threads: int = 2, n_c: int = 3
) -> Path:
    path = folder / "torture.yaml"
    path.write_text(TEXT.format(n_p=n_p, budget=budget, rounds=rounds, threads=threads, n_c=n_c))
    return path


class Watcher(RunProgress):
    """Calls `act` before the work of a number that was drawn."""

    def __init__(self, moment: int, act: Callable[[], None]) -> None:
        super().__init__(quiet=True)
        self._left, self._act = moment, act

    def activity(self, *_: object) -> None:
        if self._left == 0:
            self._act()
        self._left -= 1


def run(spec: Path, out: Path, watcher: RunProgress, started: Callable[[ForkedWorker], None]) -> Sequence[DecodeResult]:
    """Measure in this process, with forked workers; `started` gets each of them. The rows."""
    parent = preloaded().parent

    def start(log: Path, kind: str, pages: Pages) -> ForkedWorker:
        worker = parent.fork()
        started(worker)
        return worker

    # Probes of half a gigabyte would take most of a trial.
    with mock.patch.object(memory_guard, "probe_bytes", return_value=_PROBE):
        options = RunOptions(start_worker=start)
        run_experiment(load_experiment(spec), LocalExecutor(target()), out, False, [], watcher, options)
    return rows(out)


def rows(out: Path) -> Sequence[DecodeResult]:
    return [case for case in open_run(out).cases if isinstance(case, DecodeResult)]
