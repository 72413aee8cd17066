"""The plan of a run: its cases, the memory that the largest point needs, an estimate of the time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from chunkbench import kinds
from chunkbench.analysis.statistics import MIN_TIMED_STEPS
from chunkbench.baselines.contract import Answer
from chunkbench.baselines.registry import Registry
from chunkbench.environment import available_memory, gpu_memory
from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.point import Point
from chunkbench.runner import memory_guard
from chunkbench.runner.session_work import SessionWork
from chunkbench.runner.target import Target


def describe_plan(experiment: TimedExperiment, work: SessionWork, target: Target) -> str:
    """The plan as text. Only the read bandwidth is measured, for a few milliseconds."""
    points = experiment.points(target.device, target.dtype)
    registry: Registry = kinds.get(experiment.kind).implementations()
    states = {name: registry.availability(name, target.device) for name in experiment.implementations}
    device_absent = target.device == "cuda" and not target.environment.gpus
    shares_storage = {
        name: shared
        for name, (_, answer) in states.items()
        if (shared := _shares_storage(registry, name, answer, device_absent)) is not None
    }
    cases = sum(len(experiment.cases(point)) for point in points)
    lines = [
        f"{experiment.name}: {experiment.title}",
        f"{len(points)} points, {cases} cases, on {target.device} in {target.dtype}, seed {experiment.seed}",
        *(["PyTorch sees no NVIDIA GPU here: this is the plan for a machine with one"] if device_absent else []),
        *_caches_and_modes(experiment, points[0]),
        "",
    ]
    for name, (label, answer) in states.items():
        state = "will be measured" if answer.ok else f"unavailable: {answer.reason}"
        lines.append(f"  {name:<22} {label:<20} {state}")
    lines.append("")
    for point in points:
        lines.append("  " + _describe(point))
    if shares_storage:
        room = _room(target)
        seed = experiment.seed
        needs = {
            point: {name: work.needs(point, seed, name, shared) for name, shared in shares_storage.items()}
            for point in points
        }
        lines += ["", *_memory(experiment, points, needs, room), _time(experiment, points, needs, target)]
    return "\n".join(lines)


def _describe(point: Point) -> str:
    names = [name for name in Point.model_fields if name not in ("dtype", "device")]
    axes = {name: getattr(point, name) for name in names if getattr(point, name) is not None}
    return " ".join(f"{name}={value}" for name, value in axes.items()).replace("(", "[").replace(")", "]")


def _shares_storage(registry: Registry, name: str, answer: Answer, device_absent: bool) -> bool | None:
    """Whether an implementation holds shared prefixes once; None if it would not be measured.

    If the device is absent, every implementation whose adapter loads counts, so that the plan shows its memory.
    """
    if answer.ok:
        return registry.load(name).shares_storage
    if device_absent:
        with contextlib.suppress(Exception):  # the list of implementations says why it does not load
            return registry.load(name).shares_storage
    return None


def _caches_and_modes(experiment: TimedExperiment, point: Point) -> list[str]:
    """The caches and modes in which each point is timed; nothing on a CPU."""
    if point.device == "cpu" or not experiment.timed:
        return []
    pairs = dict.fromkeys(f"{case.cache} {case.mode}" for case in experiment.cases(point))
    return [f"each point: {', '.join(pairs)}"]


def _room(target: Target) -> int | None:
    """Bytes available for K and V on the device of the run; None if this machine does not have the device."""
    free = available_memory() if target.device == "cpu" else gpu_memory()
    return None if free is None else memory_guard.room_of(free)


def _memory(
    experiment: TimedExperiment, points: Sequence[Point], needs: Mapping[Point, Mapping[str, int]], room: int | None
) -> list[str]:
    """Memory of the point that needs most, and the number of memory groups of its implementations."""
    largest = max(points, key=lambda point: sum(needs[point].values()))
    sizes = needs[largest]
    together = memory_guard.gigabytes(sum(sizes.values()))
    text = f"memory: the largest point ({_describe(largest)}) needs {together} of K/V for all implementations at once"
    if largest.device == "cuda":
        text += "; with cold caches, copies of each small session until they exceed five times the L2 cache"
    if room is None:
        return [text]
    grouping = memory_guard.group(sizes, list(sizes), experiment.baseline, room - memory_guard.probe_bytes(room))
    lines = [
        f"{text};",
        f"  {memory_guard.gigabytes(room)} are available, so it runs in {len(grouping.groups)} group(s)",
    ]
    lines += [f"  {name}: oom, {reason}" for name, reason in grouping.too_large.items()]
    return lines


def _time(
    experiment: TimedExperiment, points: Sequence[Point], needs: Mapping[Point, Mapping[str, int]], target: Target
) -> str:
    """The budget; on a CPU also the time of the fewest rounds, estimated from the bandwidth, if it is longer."""
    text = f"time: the budget is {experiment.budget_s / 60:.1f} min"
    if target.device == "cuda":
        return text
    buffer = np.ones(1 << 24, dtype=np.float32)
    started = perf_counter()
    buffer.sum()
    bandwidth = buffer.nbytes / (perf_counter() - started)
    bytes_read = 0
    for point in points:
        calls = experiment.min_rounds * min(point.n_c, MIN_TIMED_STEPS)
        bytes_read += sum(needs[point].values()) * (calls + 3)  # preparing reads or writes K/V about three times
    least_s = bytes_read / bandwidth
    if least_s > experiment.budget_s:
        text += f", but the fewest rounds need about {least_s / 60:.1f} min, so the run takes that long"
    return text
