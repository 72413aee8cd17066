"""What Linux's `perf stat` counts in a process while it works."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from time import sleep

EVENTS = ("cycles", "instructions", "cache-references", "cache-misses", "dTLB-load-misses")
_ATTACH_S = 0.3
"""How long `perf` may need until it counts; the process only waits then."""


class NoCounters(Exception):
    """This machine cannot count; the message says why."""


def counted(pid: int, work: Callable[[], int], events: Sequence[str] = EVENTS) -> dict[str, float]:
    """Counts of a process for each unit of `work`, which returns the number of units. Raises `NoCounters`."""
    command = ["perf", "stat", "-x", ",", "-e", ",".join(events)]
    numbers = {**os.environ, "LC_ALL": "C"}
    try:  # many virtual machines have no counters: ask before the work is done
        parse(subprocess.run([*command, "true"], capture_output=True, text=True, check=False, env=numbers).stderr)
    except OSError as error:
        raise NoCounters(f"the program perf does not start: {error.strerror}") from None
    with subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.PIPE, text=True, env=numbers) as perf:
        try:
            sleep(_ATTACH_S)
            units = work()
        finally:
            perf.send_signal(signal.SIGINT)
            text = perf.communicate()[1]
    return {event: count / units for event, count in parse(text).items()}


def parse(text: str) -> dict[str, float]:
    """Event -> count in the output of `perf stat -x ,`. Raises `NoCounters` if it has none, in perf's words."""
    counts, refusals = {}, []
    for line in text.splitlines():
        value, _, event, *more = [*line.split(","), "", ""]
        if len(more) < 4:  # not a line of counts: perf explains itself
            refusals.append(line.strip())
        elif value.startswith("<"):
            refusals.append(f"{event} {value.strip('<>')} here; virtual machines often hide counters")
        else:
            try:
                counts[event] = float(value)
            except ValueError:  # an explanation with commas
                refusals.append(line.strip())
    if not counts:
        raise NoCounters(next((text for text in refusals if text and text != "Error:"), "perf stat printed nothing"))
    return counts
