"""Texts for the footer of runs on a GPU: what was timed, how caches were made cold, and the state of the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chunkbench.bench.store.results import GpuState, TimedResult
from chunkbench.report.numbers import count, extent, gigabytes, megabytes

UNKNOWN = (
    "clocks, power and other processes are not known (nvidia-ml-py is not installed, or does not find this device), "
    "and no sample was discarded"
)


def samples(timed: Sequence[TimedResult]) -> str:
    """Explain what a sample of each mode is, and what cold and warm caches are. Empty if no case was timed on a GPU."""
    parts = []
    for mode, how in (
        ("events", "decode called {} times between two CUDA events, and the device never waits for the host"),
        ("graph", "{} replays of decode, captured in CUDA graphs, between two CUDA events"),
        ("eager", "wall time of {} call, with the wait for the device"),
    ):
        calls = [case.sampling.calls for case in timed if case.sampling and case.mode == mode]
        parts += [f"{mode} = {how.format(extent(calls))}"] if calls else []
    cold = [case.sampling for case in timed if case.sampling and case.cache == "cold"]
    copies = [sampling.copies for sampling in cold if not sampling.swept]
    if copies:
        l2 = megabytes(max(sampling.l2_bytes for sampling in cold))
        noun = "copies" if max(copies) > 1 else "copy"
        parts.append(
            f"cold L2 = calls in turn on {extent(copies)} {noun} of its K/V, "
            f"in total more than five times the L2 cache ({l2} MB)"
        )
    swept = len(cold) - len(copies)
    if swept:
        cases = count(swept, "case")
        parts.append(
            f"cold L2 in {cases} = a buffer read before each call, because the copies do not fit or would be too many"
        )
    if any(case.sampling and case.cache == "warm" for case in timed):
        parts.append("warm L2 = one copy, called repeatedly")
    return "; ".join(parts)


def conditions(timed: Sequence[TimedResult]) -> str:
    """Describe the state of the GPU: clocks, power, temperature, reasons for lower clocks, and other processes."""
    if not any(case.sampling for case in timed):
        return ""
    states = [state for case in timed for state in case.gpu]
    if not states:
        return UNKNOWN
    parts = [
        _between("clock", (state.sm_mhz for state in states), "MHz"),
        _between("memory clock", (state.memory_mhz for state in states), "MHz"),
        _between("power", (state.power_w for state in states), "W"),
        _between("temperature", (state.temperature_c for state in states), "°C"),
        _slowed(states),
        _other_processes(states),
    ]
    return ", ".join(part for part in parts if part)


def _slowed(states: Sequence[GpuState]) -> str:
    reasons = dict.fromkeys(reason for state in states for reason in state.throttled_by)
    if not reasons:
        return "never slowed down"
    rounds = sum(bool(state.throttled_by) for state in states)
    return f"slowed down in {rounds} of {count(len(states), 'round')} ({', '.join(reasons)})"


def _other_processes(states: Sequence[GpuState]) -> str:
    known = [state for state in states if state.other_processes is not None]
    if not known:
        return ""
    most = max(known, key=lambda state: state.other_processes or 0)
    if not most.other_processes:
        return "no other process on the device"
    memory = f" with {gigabytes(most.other_bytes)}" if most.other_bytes else ""
    return f"at most {most.other_processes} other processes on the device{memory}"


def _between(name: str, values: Iterable[float | None], unit: str) -> str:
    known = [round(value) for value in values if value is not None]
    return f"{name} {extent(known)} {unit}" if known else ""
