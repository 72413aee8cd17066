"""A profile in Chrome's trace format (JSON), which Perfetto and chrome://tracing open as a timeline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from chunkbench.bench.store.profile import ProfileFacts, TraceFacts, Unit
from chunkbench.run_error import RunError
from chunkbench.workloads.decode.profile_document import middle

_CALLS = {"decode": "decode", "read": "reading only", "compute": "computing only"}
"""Field of `ProfileFacts` -> name of the call in the timeline."""


def trace_json(facts: ProfileFacts, where: str, machine: str) -> str:
    """Of each kind of traced call, the call with the median time: a process whose threads work on units. `where` and
    `machine`: names of the point and of the machine. Raises `RunError` if the implementation records no units.
    """
    if not facts.decode:
        raise RunError(
            f"{facts.case.label} records no units of work, so it has no timeline; this project's CPU kernels do"
        )
    calls = [(name, middle(traces)) for field, name in _CALLS.items() if (traces := getattr(facts, field))]
    events = [event for pid, (name, trace) in enumerate(calls) for event in _events(pid, name, trace)]
    about = {"implementation": facts.case.label, "point": where, "machine": machine}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}) + "\n"


def _events(pid: int, call: str, trace: TraceFacts) -> Iterator[dict[str, Any]]:
    """The events of one call. Times are in microseconds, as the format asks."""
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": call}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for number in range(trace.threads):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": f"thread {number}"}}
    for unit in trace.units:
        yield _event(pid, unit, "shared chunks" if unit.shared else "private chunks", unit.begin_s, unit.end_s) | {
            "args": {
                "read_bytes": unit.read_bytes,
                "flops": unit.flops,
                "scores_us": 1e6 * unit.scores_s,
                "softmax_us": 1e6 * unit.softmax_s,
                "values_us": 1e6 * unit.values_s,
            }
        }
        if unit.ready_s > unit.begin_s:
            yield _event(pid, unit, "waiting for partial results", unit.begin_s, unit.ready_s)


def _event(pid: int, unit: Unit, name: str, begin_s: float, end_s: float) -> dict[str, Any]:
    times = {"ts": 1e6 * begin_s, "dur": 1e6 * (end_s - begin_s)}
    return {"ph": "X", "name": name, "cat": "attention", "pid": pid, "tid": unit.thread} | times
