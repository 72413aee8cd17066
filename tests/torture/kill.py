"""Processes of runs are killed at random moments; then the run is resumed until it ends."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import psutil

from tests.torture.tiny import POINTS, ROWS, TinyRun, kinds
from tests.torture.trials import Harm, Part, Trial

MOST_KILLS = 3
LONGEST_S = {"replay": 0.2, "decode": 1.0, "layer": 1.0, "ring": 1.0, "serving": 2.0}
"""How long after a point is on disk a process is killed, at most: about the time of a point."""
START_S = 8.0
"""The same after the start, where no point is on disk."""
FAILED = "crashed,error,timeout"
VICTIMS = ("driver", "another")


@contextmanager
def trials(most: int = MOST_KILLS, only: str = "", victims: Sequence[str] = VICTIMS) -> Iterator[Harm]:
    """A trial kills one process or several, one after the other, in a run whose kind goes round."""
    available = [only] if only else kinds()

    def harm(trial: Trial) -> int:
        run = TinyRun(available[trial.number % len(available)], trial.folder)
        with run.cleaned():
            return kills(run, trial, most, victims)

    yield harm


def kills(run: TinyRun, trial: Trial, most: int, victims: Sequence[str]) -> int:
    """How many processes were killed."""
    finished: list[bytes] = []
    ports: set[int] = set()
    killed = 0
    run.start()
    for _ in range(trial.chance.randint(1, most)):
        victim = wait_for_moment(run, trial, victims)
        if victim is None:
            break
        ports |= run.ports()
        finished = check_kept(run, finished)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
            killed += 1
        if victim.pid == run.driver.pid:
            run.driver.wait()
            run.check_released(ports)
            finished = check_kept(run, finished)
            run.start()
    code = run.end()
    if code == 2 and "--resume continues the run" in run.errors:  # a worker was killed before it had started
        code = run.complete()
    assert code in (0, 3), f"{run.kind}: exit code {code}: {run.errors}"
    finished = check_kept(run, finished)
    run.check_released(ports)
    if code == 3:
        # A point is measured again as a whole.
        size = ROWS[run.kind]
        points = [finished[first : first + size] for first in range(0, len(finished), size)]
        finished = [line for point in points if not any(map(failed, point)) for line in point]
        code = run.complete("--retry", FAILED)
        assert code == 0, f"{run.kind}: exit code {code} after --retry: {run.errors}"
    run.check_complete(finished)
    return killed


def wait_for_moment(run: TinyRun, trial: Trial, victims: Sequence[str]) -> psutil.Process | None:
    """Wait for a moment, then choose a process. None if the run ended before."""
    points = trial.chance.randrange(POINTS)
    wanted = trial.chance.choice(victims)
    delay = trial.chance.uniform(0, LONGEST_S[run.kind] if points else START_S)
    which = trial.chance.random()
    while len(run.finished()) < points * ROWS[run.kind] and run.driver.poll() is None:
        time.sleep(0.01)
    end = time.monotonic() + delay
    while run.driver.poll() is None:
        others = [process for process in run.processes() if process.pid != run.driver.pid]
        if time.monotonic() >= end and (wanted == "driver" or others):
            return psutil.Process(run.driver.pid) if wanted == "driver" else others[int(which * len(others))]
        time.sleep(0.01)
    return None


def check_kept(run: TinyRun, before: list[bytes]) -> list[bytes]:
    """The finished lines now; those of earlier are among them."""
    now = run.finished()
    lost = [line for line in before if line not in now]
    assert not lost, f"{run.kind}: {len(lost)} finished rows are gone or changed: {lost[0][:300]!r}"
    return now


def failed(line: bytes) -> bool:
    """Whether a row has a status that is measured again."""
    return json.loads(line)["status"] in FAILED.split(",")


PART = Part(
    "kill",
    "SIGKILL to the driver, a worker, a server under load, a rank of a ring, at random moments of decode, layer, "
    "serving, replay and ring runs, then `--resume`",
    "every finished point is there once with its samples unchanged, the run ends complete, no orphan process, no "
    "lock, no port is left",
    trials,
    short=partial(trials, most=1, only="decode", victims=("driver",)),
    minutes=10,
)
