"""Counts events of a process with Linux's `perf stat`, while the process works."""

from __future__ import annotations

import math
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import sleep

EVENTS = ("cycles", "instructions", "cache-references", "cache-misses", "dTLB-load-misses")
_ATTACH_S = 0.3
"""Seconds that `perf` gets to attach itself. The counted process waits meanwhile."""
_END_S = 10.0
"""Seconds that `perf` gets to print its counts."""


class NoCounters(Exception):
    """This machine has no usable hardware counters. The message says why."""


def counted(pid: int, work: Callable[[], int], events: Sequence[str] = EVENTS) -> dict[str, float]:
    """Count events of a process while `work` runs. Raises `NoCounters`.

    `work` returns how many units of work it did. The result has the counts per unit.
    """
    command = ["perf", "stat", "-x", ",", "-e", ",".join(events)]
    numbers = {**os.environ, "LC_ALL": "C"}
    # Many virtual machines have no counters: ask before the work is done.
    parse(_printed(_started([*command, "true"], numbers)))
    perf = _started([*command, "-p", str(pid)], numbers)
    try:
        sleep(_ATTACH_S)
        units = work()
    except BaseException:
        _end(perf)
        raise
    perf.send_signal(signal.SIGINT)
    return {event: count / units for event, count in parse(_printed(perf)).items()}


def _started(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    # In a session of its own, so that all processes that perf starts can be ended with perf.
    try:
        return subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise NoCounters(f"the program perf does not start: {error.strerror}") from None


def _printed(perf: subprocess.Popen[str]) -> str:
    """All output of `perf`. Raises `NoCounters` if `perf` does not end in time."""
    try:
        return perf.communicate(timeout=_END_S)[1]
    except subprocess.TimeoutExpired:
        _end(perf)
        raise NoCounters(f"the program perf did not end within {_END_S:g} s") from None


def _end(perf: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(perf.pid, signal.SIGKILL)
    perf.communicate()


def parse(text: str) -> dict[str, float]:
    """Event -> count in the output of `perf stat -x ,`. Raises `NoCounters` with perf's own message if there are no
    counts."""
    counts, refusals = {}, []
    for line in text.splitlines():
        value, _, event, *more = [*line.split(","), "", ""]
        if len(more) < 4:  # not a line of counts but an explanation
            refusals.append(line.strip())
        elif value.startswith("<"):
            refusals.append(f"{event} {value.strip('<>')} here; virtual machines often hide counters")
        else:
            try:
                count = float(value)
            except ValueError:  # an explanation with commas
                refusals.append(line.strip())
                continue
            if 0 <= count < math.inf:
                counts[event] = count
            else:
                refusals.append(f"perf counted {value} {event}: not a count")
    if not counts:
        raise NoCounters(next((text for text in refusals if text and text != "Error:"), "perf stat printed nothing"))
    return counts
