"""Shows the progress of a run: a bar on a terminal, elsewhere one line per point. With `--quiet`, only problems."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.table import Column

from chunkbench.bench.experiment.point import Point
from chunkbench.bench.store import MEASURED, Result
from chunkbench.report.numbers import count


class RunProgress:
    """Prints the progress of a run to standard error, because standard output has only the result."""

    def __init__(self, quiet: bool, several_machines: bool = False) -> None:
        """`several_machines`: print the machine of every point."""
        self._console = Console(stderr=True, highlight=False)
        self._quiet, self._several = quiet, several_machines
        self._by_machine: Counter[str] = Counter()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._points = self._number = 0

    def __enter__(self) -> RunProgress:
        if not self._quiet and self._console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.fields[point]}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=10),
                TextColumn("{task.percentage:>3.0f}%", table_column=Column(no_wrap=True)),
                TimeElapsedColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
                # A narrow terminal cuts this text, and nothing else.
                TextColumn("[dim]{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
                console=self._console,
                transient=True,
                expand=True,
            )
            self._task = self._bar.add_task("run", total=1.0, point="starting", left="", text="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._several and self._by_machine:
            shares = ", ".join(f"{machine} {count(n, 'point')}" for machine, n in sorted(self._by_machine.items()))
            self._print(f"points by machine: {shares}")

    def started(self, path: Path, points: int, finished: int) -> None:
        self._points, self._number = points, finished
        kept = f", {finished} already done" if finished else ""
        if not self._quiet:
            self._print(f"{count(points, 'point')}{kept} -> {path}")

    def activity(self, point: Point, text: str, done: float, left_s: float) -> None:
        if self._bar is not None:
            name = f"{self._number + 1}/{self._points} {point.brief}"
            self._bar.update(self._task, completed=done, point=name, text=text, left=_left(left_s))

    def point_finished(self, point: Point, cases: Sequence[Result], took_s: float, done: float, left_s: float) -> None:
        self._number += 1
        statuses = Counter(case.status for case in cases)
        measured = sum(statuses[status] for status in MEASURED)
        others = ", ".join(f"{n} {status}" for status, n in statuses.items() if status not in MEASURED)
        rounds = max((len(case.rounds) for case in cases), default=0)
        repeated = f"{count(rounds, cases[0].REPEATED)}, " if rounds else ""
        machine = f" on {cases[0].machine}" if self._several else ""
        self._by_machine[cases[0].machine] += 1
        if not self._quiet:
            self._print(
                f"{self._number:>3}/{self._points} {point.brief:<28} {measured} {cases[0].VERB}{machine}"
                f"{f', {others}' if others else ''}; {repeated}{took_s:.0f} s; {_left(left_s)}"
            )

    def problem(self, text: str) -> None:
        """Print a problem, also with `--quiet`."""
        self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
        sys.stderr.flush()


class RepeatProgress:
    """Prints the progress of many short runs: a status line on a terminal, elsewhere one line."""

    def __init__(self, quiet: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._quiet = quiet
        self._process = ""
        self._problems: set[str] = set()
        self._started = monotonic()

    def __enter__(self) -> RepeatProgress:
        if not self._quiet and self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def building(self, what: str, log: Path) -> None:
        """Say that a revision is built, which may take minutes, and where the output goes."""
        if not self._quiet:
            text = f"building {what} (with native code: some minutes on two cores); output: {log}"
            self._console.print(text, markup=False, soft_wrap=True)
        if self._status is not None:
            self._status.update(f"building {what}")

    def started(self, path: Path, points: int, finished: int) -> None:
        """Note that a process starts. The first process prints the folder of the runs."""
        if path.name == "1" and not self._quiet:
            self._console.print(f"{count(points, 'point')} -> {path.parent}", markup=False, soft_wrap=True)
        self._process = f"{path.parent.name}, process {path.name}"

    def activity(self, point: Point, text: str, done: float, left_s: float) -> None:
        if self._status is not None:
            seconds = monotonic() - self._started
            self._status.update(f"{self._process}: {point.brief} {text}  [dim]{seconds:.0f} s so far")

    def point_finished(self, point: Point, cases: Sequence[Result], took_s: float, done: float, left_s: float) -> None:
        """Print nothing, because a process needs only about a second per point."""

    def problem(self, text: str) -> None:
        """Print a problem, also with `--quiet`, but each text only once."""
        if text not in self._problems:
            self._problems.add(text)
            self._console.print(text, markup=False, soft_wrap=True)


def _left(seconds: float) -> str:
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left"
