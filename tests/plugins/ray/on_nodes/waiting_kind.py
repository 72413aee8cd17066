"""A kind of work that waits instead of measuring, so that faults of a cluster can be tested in seconds.

It reads what to do from the folder that CHUNKBENCH_TEST_FOLDER names: `seconds`, how long a point takes; `kill`, the
n_p of a point that kills its process; `stop`, the n_p of a point that stops its process once. It writes a line for
every point that it begins and ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chunkbench import workloads
from chunkbench.bench import workload
from chunkbench.bench.experiment.point import AttentionPoint, Case
from chunkbench.bench.runner.case_facts import now
from chunkbench.bench.runner.passes import Budget, RunOptions, Workplace
from chunkbench.bench.runner.target import Target
from chunkbench.bench.store import DecodeResult
from chunkbench.workloads.decode import DecodeWorkload
from chunkbench.workloads.decode.spec import DecodeExperiment

FOLDER = "CHUNKBENCH_TEST_FOLDER"
_POLL_S = 0.02


class WaitingWorkload(DecodeWorkload):
    """Decode attention, whose points wait."""

    name = "waiting"

    def passes(self, points: Iterable[AttentionPoint]) -> list[tuple[AttentionPoint, ...]]:
        return [(point,) for point in points]

    def weight(self, point: AttentionPoint, seed: int) -> int:
        return 1

    def start(
        self,
        experiment: DecodeExperiment,
        target: Target,
        points: Sequence[AttentionPoint],
        place: Workplace[DecodeResult],
        options: RunOptions,
    ) -> WaitingMeasurer:
        return WaitingMeasurer(experiment, target)


def add() -> None:
    """Register the kind, after all others: the first one is the default."""
    workloads.register()
    workload.add(WaitingWorkload())


class WaitingMeasurer:
    """Waits."""

    styles: Mapping[str, Mapping[str, Any]] = {}

    def __init__(self, experiment: Any, target: Target) -> None:
        self._experiment, self._machine = experiment, target.machine

    def measure(
        self,
        points: Sequence[AttentionPoint],
        cases_of: Mapping[AttentionPoint, Sequence[Case]],
        budget: Budget,
        announce: Callable[[str], None],
    ) -> dict[AttentionPoint, list[DecodeResult]]:
        (point,) = points
        folder = Path(os.environ[FOLDER])
        self._note(folder, "begin", point)
        if _asked(folder / "kill") == point.n_p:
            os.kill(os.getpid(), signal.SIGKILL)
        if _asked(folder / "stop") == point.n_p:
            (folder / "stop").unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        seconds = float((folder / "seconds").read_text())
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, left))
            budget.share_done = 1 - max(0.0, left) / seconds
        self._note(folder, "end", point)
        same = {"experiment": self._experiment.name, "status": "ok", "started_at": now(), "machine": self._machine}
        cases = cases_of[point]
        return {point: [DecodeResult.of_case(case, label=case.implementation, **same) for case in cases]}

    def close(self) -> None:
        """Nothing to release."""

    def _note(self, folder: Path, what: str, point: AttentionPoint) -> None:
        with (folder / "measured.log").open("a") as file:
            file.write(f"{what} {point.n_p} {self._machine} {time.monotonic()}\n")


def _asked(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):  # the test may take it away at any time
        return int(path.read_text())
    return None
