"""Time that jumps and stands still: the wall clock is set, processes are stopped and continued."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from time import time as wall_clock
from typing import Any

from chunkbench.bench.experiment.point import Point
from chunkbench.cli.progress import RunProgress
from tests.torture.decoding import NAMES, preloaded, rows, run, write_experiment
from tests.torture.trials import Harm, Part, Trial

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


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in JSON, each with the name of its field."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from numbers(member, key)
    elif isinstance(value, list):
        for member in value:
            yield from numbers(member, name)
    elif isinstance(value, (int, float)):
        yield name, value


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
        spec = write_experiment(trial.folder, 40, budget, ROUNDS, 1, STEPS)
        noted = trial.folder / "worker"
        run(
            spec,
            trial.folder / "run",
            Announcer(trial.folder / ROUND),
            lambda worker: void(noted.write_text(str(worker.pid))),
        )
        os._exit(0)
    except BaseException:
        (trial.folder / "traceback").write_text(traceback.format_exc())
        os._exit(1)


def void(_: object) -> None:
    """Takes what a callback must not return."""


def program(trial: Trial, budget: float) -> int:
    """The command itself, with a wall clock that can be set."""
    spec, log = write_experiment(trial.folder, 40, budget, ROUNDS, 1, STEPS), trial.folder / "traceback"
    words = [sys.executable, "-m", "chunkbench", "run", str(spec), "--out", str(trial.folder / "run")]
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    outputs = [(os.POSIX_SPAWN_DUP2, file, 1), (os.POSIX_SPAWN_DUP2, file, 2)]
    pid = os.posix_spawn(sys.executable, words, preloaded().environment, file_actions=outputs)
    os.close(file)
    return pid


def ended(pid: int, wait_s: float = 0.0) -> int | None:
    """The exit code of a process; None if it goes on after so many seconds."""
    end = monotonic() + wait_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if monotonic() >= end:
            return None
        sleep(0.002)


def stop(pids: list[int], seconds: float) -> None:
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        sleep(seconds)
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
            sleep(0.002)
        sleep(chance.uniform(0, 0.03))
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
        end = monotonic() + LIMIT_S
        while (code := ended(pid)) is None:
            assert monotonic() < end, f"the run goes on after {LIMIT_S:.0f} s"
            page.clock(trial.chance.choice((-HOUR, 0, HOUR)))
            sleep(trial.chance.uniform(0, 0.2))
    finally:
        page.clock(0)
    return code


def check(folder: Path, began: datetime, longest_s: float) -> None:
    """Nothing negative or endless, no sample as long as a stop, no time outside of the run and an hour around it."""
    cases = [json.loads(line) for line in (folder / "cases.jsonl").read_text().splitlines()]
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, number in numbers([cases, manifest]):
        assert math.isfinite(number), f"{name} is {number}"
        assert number >= 0, f"{name} is {number}"
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
def trials() -> Iterator[Harm]:
    preload, stopped_in, discarded = preloaded(), 0, 0
    preload.page.clock(HOUR)
    asked = [sys.executable, "-c", "import time; print(time.time())"]
    said = float(subprocess.run(asked, env=preload.environment, capture_output=True, check=True).stdout)
    preload.page.clock(0)
    assert abs(said - wall_clock() - HOUR) < HOUR / 2, f"the clock did not move: {said}"

    def harm(trial: Trial) -> int:
        nonlocal stopped_in, discarded
        began, start, stopped = datetime.now(UTC), monotonic(), 0.0
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
        took = monotonic() - start
        assert took < BUDGET_S + stopped + START_S, f"{took:.1f} s, {stopped:.1f} s of them stopped"
        check(trial.folder / "run", began, SHORTEST_S)
        stopped_in += 0 if jumps else stops
        discarded += sum(row.discarded for row in rows(trial.folder / "run"))
        return stops

    yield harm
    assert discarded or stopped_in < 20, f"no sample was discarded after {stopped_in} stops: they hit nothing"


PART = Part(
    "time",
    "the wall clock set back and forth an hour, and the worker, the driver or both stopped (SIGSTOP, SIGCONT) for "
    "up to a minute during rounds",
    "no negative time, no sample of a decode step that contains a stop, the budget kept",
    trials,
    minutes=8,
)
