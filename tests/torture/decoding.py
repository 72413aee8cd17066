"""Short runs of decode steps that suffer: memory is short, allocations fail, time jumps and stands still.

Their worker is preloaded with `harm.cpp`; one parent worker serves all trials.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from random import Random
from unittest import mock

import psutil
import torch

from chunkbench import workloads
from chunkbench.bench.environment.cgroups import control_groups
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.experiment.point import Point
from chunkbench.bench.experiment.terms import Pages
from chunkbench.bench.runner import memory_guard
from chunkbench.bench.runner.client import ForkedWorker, WorkerProcess
from chunkbench.bench.runner.executor import LocalExecutor
from chunkbench.bench.runner.passes import RunOptions
from chunkbench.bench.runner.run import run_experiment
from chunkbench.bench.runner.target import Target, resolve_target
from chunkbench.bench.store import DecodeResult, open_run
from chunkbench.cli.progress import RunProgress
from tests.attention.contexts import TOLERANCE
from tests.torture import drawn
from tests.torture.harm import Page, library
from tests.torture.trials import Harm, Trial

NAMES = ("naive", "paged_attn", "chunk_attn", "shared_prefix_matmul")
"""Rows, where none are drawn."""
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


class Preloaded:
    """The page of the preloaded library, and the parent of all workers."""

    def __init__(self) -> None:
        workloads.register()
        preload = library()
        self.folder = Path(tempfile.mkdtemp(prefix="torture-decoding-"))
        self.page = Page(self.folder / "page")
        self.environment = {**os.environ, "LD_PRELOAD": str(preload), "TORTURE_PAGE": str(self.folder / "page")}
        self.parent = WorkerProcess(self.folder / "worker.log", "decode", environment=self.environment)
        self.parent.ask("preload", 120, implementations=drawn.rows("decode"))
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
    return resolve_target(load_experiment(write_experiment(preloaded().folder, Random(0), 40)))


def write_experiment(
    folder: Path, chance: Random, n_p: int, budget: float = 0.01, rounds: int = 3, threads: int = 2, n_c: int = 3
) -> Path:
    """In three of four experiments, `chance` draws more axes, and the rows."""
    path = folder / "torture.yaml"
    text = TEXT.format(n_p=n_p, budget=budget, rounds=rounds, threads=threads, n_c=n_c)
    kept = ("n_c", "threads", "batch_size")
    text = drawn.widened(text, chance, folder, kept) if chance.random() < 0.75 else text
    # A model's latents are large: to append a token takes milliseconds, of which the fewest rounds have many.
    path.write_text(text.replace(f"n_c: {n_c}\n", f"n_c: {min(n_c, 30)}\n") if "latent:" in text else text)
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
    with mock.patch.object(memory_guard, "probe_bytes", return_value=1 << 24):
        options = RunOptions(start_worker=start)
        run_experiment(load_experiment(spec), LocalExecutor(target()), out, False, [], watcher, options)
    return rows(out)


def rows(out: Path) -> Sequence[DecodeResult]:
    return [case for case in open_run(out).cases if isinstance(case, DecodeResult)]


LIMITS = {"address space": resource.RLIMIT_AS, "data": resource.RLIMIT_DATA}
MOMENTS = 42
"""About as many announcements does a run make."""
NATIVE_BYTES = 512
"""Smaller pieces are those of nanobind, too, which ends the process if it gets none."""
EARLY = 4
"""Announcements before a worker has what it needs: from then on its heap has room within the addresses it has."""


@contextmanager
def control_group() -> Iterator[Path | None]:
    """A control group of version 1 inside that of this process, whose limits go on. None where it may not be made."""
    here = next((folder for version, folder in control_groups("memory") if version == 1), None)
    folder = here / f"torture-{os.getpid()}" if here else None
    try:
        if folder:
            folder.mkdir()
    except OSError:
        folder = None
    yield folder
    if folder:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def short_memory() -> Iterator[Harm]:
    page, tried, hurt = preloaded().page, 0, 0
    with control_group() as limited:

        def harm(trial: Trial) -> None:
            nonlocal tried, hurt
            chance = trial.chance
            kind = ("native", "large", *LIMITS, *(("group",) if limited else ()))[trial.number % (4 + bool(limited))]
            moment = chance.randrange(EARLY if kind == "address space" else MOMENTS)
            spare, n_p = 1 << chance.randrange(12, 24), chance.choice((40, 500, 2000))
            workers: list[ForkedWorker] = []

            def act() -> None:
                if kind == "native":
                    page.fail(True, NATIVE_BYTES, chance.randrange(1, 12))
                    return
                if kind == "large":
                    page.fail(False, 1 << chance.randrange(12, 20), chance.randrange(1, 40))
                    return
                process = psutil.Process(workers[-1].pid)
                if kind in LIMITS:
                    size = process.memory_info().vms if kind == "address space" else process.memory_info().data
                    process.rlimit(LIMITS[kind], (size + spare, size + spare))
                elif limited:
                    (limited / "memory.limit_in_bytes").write_text("-1")
                    (limited / "cgroup.procs").write_text(str(process.pid))
                    with suppress(OSError):  # busy: the system could not take back as much, and sets no limit
                        (limited / "memory.limit_in_bytes").write_text(str(spare))

            spec = write_experiment(trial.folder, chance, n_p)
            try:
                made = run(spec, trial.folder / "run", Watcher(moment, act), workers.append)
            finally:
                tried, hurt = tried + (kind in ("native", "large")), hurt + page.failed
                page.fail(False, 0, 0)
            told = [f"{row.implementation} {row.n_s}: {row.status} {row.reason}" for row in made]
            assert len(made) == 2 * len(NAMES), told
            for row, line in zip(made, told, strict=True):
                assert row.status in ("ok", "noisy", "oom"), f"{kind}: {line}"
                if row.status != "oom":
                    assert [len(samples) for samples in row.samples_us] == [3, 3, 3], line
                    assert row.max_error is not None, line
                    assert row.max_error < TOLERANCE[getattr(torch, row.dtype)], line
            points = {row.n_s for row in made if row.status == "oom"}
            harness = any(row.reason.startswith("harness") for row in made)
            if kind in ("native", "large") and not harness:
                failed = [line for line, row in zip(told, made, strict=True) if row.status == "oom"]
                assert len(failed) <= 1 or all("in survey" in line for line in failed), failed
            assert not harness or len(points) == 1 or kind in LIMITS, told

        yield harm
        assert hurt or tried < 20, f"no allocation failed in {tried} trials: the library does nothing"


BUDGET_S = 0.4
SHORTEST_S, LONGEST_S = 1.0, 60.0
"""Seconds of a stop. On a busy machine a sample of some microseconds may take a tenth of a second without one."""
START_S = 30.0
"""What a run may take besides its budget, on a machine that others use too."""
LIMIT_S = 120.0
"""What takes longer than this hangs."""
HOUR = 3600
ROUND = "round"
ROUNDS, STEPS = 100_000, 300
"""So many that the budget ends a run, and that it spends most of its time in rounds."""


def counted(text: str) -> float:
    """A number of JSON, which is not negative and not endless."""
    number = float(text)
    assert math.isfinite(number), f"a number is {text}"
    assert number >= 0, f"a number is {text}"
    return number


class Announcer(RunProgress):
    """Makes a file whenever a round begins."""

    def __init__(self, path: Path) -> None:
        super().__init__(quiet=True)
        self._path = path

    def activity(self, point: Point, text: str, done: float, left_s: float) -> None:
        if ": round" in text:
            self._path.touch()


def driver(trial: Trial, budget: float) -> int:
    """A process that runs the experiment; it writes the process ids of its workers into a file."""
    pid = os.fork()
    if pid:
        return pid
    try:
        spec = write_experiment(trial.folder, trial.chance, 40, budget, ROUNDS, 1, STEPS)

        def note(worker: ForkedWorker) -> None:
            (trial.folder / "worker").write_text(str(worker.pid))

        run(spec, trial.folder / "run", Announcer(trial.folder / ROUND), note)
        os._exit(0)
    except BaseException:
        (trial.folder / "traceback").write_text(traceback.format_exc())
        os._exit(1)


def program(trial: Trial, budget: float) -> int:
    """The command itself, with a wall clock that can be set."""
    spec, log = write_experiment(trial.folder, trial.chance, 40, budget, ROUNDS, 1, STEPS), trial.folder / "traceback"
    words = [sys.executable, "-m", "chunkbench", "run", str(spec), "--out", str(trial.folder / "run")]
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    outputs = [(os.POSIX_SPAWN_DUP2, file, 1), (os.POSIX_SPAWN_DUP2, file, 2)]
    pid = os.posix_spawn(sys.executable, words, preloaded().environment, file_actions=outputs)
    os.close(file)
    return pid


def ended(pid: int, wait_s: float = 0.0) -> int | None:
    """The exit code of a process; None if it goes on after so many seconds."""
    end = time.monotonic() + wait_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.002)


def stop(pids: list[int], seconds: float) -> None:
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def suspend(trial: Trial, pid: int) -> tuple[int, float, int]:
    """Stop the worker, the driver or both while they measure. The driver's exit code, the seconds of all stops, and how
    many they were."""
    chance, stopped, noted = trial.chance, 0.0, trial.folder / "worker"
    stops = 1 + trial.number % 3
    for number in range(stops):
        (trial.folder / ROUND).unlink(missing_ok=True)
        while not (trial.folder / ROUND).exists():
            if (code := ended(pid)) is not None:
                return code, stopped, number
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.03))
        worker = int(noted.read_text())
        # One in forty is as long as the issue asks; most are short, so that there are many.
        seconds = LONGEST_S if trial.number % 40 == 39 and not stopped else chance.uniform(SHORTEST_S, 1.5 * SHORTEST_S)
        stop(chance.choice([[worker], [pid], [pid, worker], [worker, pid]]), seconds)
        stopped += seconds
    code = ended(pid, LIMIT_S)
    assert code is not None, f"the run goes on {LIMIT_S:.0f} s after the last stop"
    return code, stopped, stops


def jump(trial: Trial, pid: int) -> int:
    """Set the wall clock back and forth while the command runs."""
    page = preloaded().page
    try:
        end = time.monotonic() + LIMIT_S
        while (code := ended(pid)) is None:
            assert time.monotonic() < end, f"the run goes on after {LIMIT_S:.0f} s"
            page.clock(trial.chance.choice((-HOUR, 0, HOUR)))
            time.sleep(trial.chance.uniform(0, 0.2))
    finally:
        page.clock(0)
    return code


def check(folder: Path, began: datetime, longest_s: float) -> None:
    """Nothing negative or endless, no sample as long as a stop, no time outside of the run and an hour around it."""
    read = partial(json.loads, parse_float=counted, parse_int=counted, parse_constant=counted)
    cases = [read(line) for line in (folder / "cases.jsonl").read_text().splitlines()]
    manifest = read((folder / "manifest.json").read_text())
    for row in rows(folder):
        told = f"{row.implementation} {row.n_s}: {row.status} {row.reason}"
        assert row.status in ("ok", "noisy"), told
        longest = max(map(max, (*row.samples_us, *row.append_samples_us, *row.plan_samples_us)))
        assert longest < longest_s * 1e6, f"{told}: a sample of {longest / 1e6:.2f} s"
        calibrated = max(entry.arithmetic_us for entry in row.calibration)
        assert calibrated < longest_s * 1e6 / 8, f"{told}: calibration of {calibrated / 1e6:.2f} s"
    assert len(cases) == 2 * len(NAMES), len(cases)
    around = timedelta(hours=1, seconds=1)
    for text in (manifest["started_at"], manifest["finished_at"], *(case["started_at"] for case in cases)):
        assert began - around <= datetime.fromisoformat(text) <= datetime.now(UTC) + around, text


@contextmanager
def odd_times() -> Iterator[Harm]:
    preload, stopped_in, discarded = preloaded(), 0, 0
    preload.page.clock(HOUR)
    asked = [sys.executable, "-c", "import time; print(time.time())"]
    said = float(subprocess.run(asked, env=preload.environment, capture_output=True, check=True).stdout)
    preload.page.clock(0)
    assert abs(said - time.time() - HOUR) < HOUR / 2, f"the clock did not move: {said}"

    def harm(trial: Trial) -> int:
        nonlocal stopped_in, discarded
        began, start, stopped = datetime.now(UTC), time.monotonic(), 0.0
        jumps = trial.number % 8 == 3
        pid = (program if jumps else driver)(trial, BUDGET_S)
        try:
            code, stopped, stops = (jump(trial, pid), 0.0, 1) if jumps else suspend(trial, pid)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            ended(pid, LIMIT_S)
            raise
        trace = trial.folder / "traceback"
        assert code == 0, trace.read_text() if trace.exists() else f"exit code {code}"
        took = time.monotonic() - start
        assert took < BUDGET_S + stopped + START_S, f"{took:.1f} s, {stopped:.1f} s of them stopped"
        check(trial.folder / "run", began, SHORTEST_S)
        stopped_in += 0 if jumps else stops
        discarded += sum(row.discarded for row in rows(trial.folder / "run"))
        return stops

    yield harm
    assert discarded or stopped_in < 20, f"no sample was discarded after {stopped_in} stops: they hit nothing"
