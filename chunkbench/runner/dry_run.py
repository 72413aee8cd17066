"""What a run would do: cases, the memory that the largest point needs, an estimate of the time."""

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
    """The plan as text; nothing is measured but a few milliseconds of read bandwidth."""
    points = experiment.points(target.device, target.dtype)
    registry: Registry = kinds.get(experiment.kind).implementations()
    states = {name: registry.availability(name, target.device) for name in experiment.implementations}
    absent = target.device == "cuda" and not target.environment.gpus
    shares = {
        name: shared
        for name, (_, answer) in states.items()
        if (shared := _shares(registry, name, answer, absent)) is not None
    }
    cases = sum(len(experiment.cases(point)) for point in points)
    lines = [
        f"{experiment.name}: {experiment.title}",
        f"{len(points)} points, {cases} cases, on {target.device} in {target.dtype}, seed {experiment.seed}",
        *(["PyTorch sees no NVIDIA GPU here: this is what a run would do where there is one"] if absent else []),
        *_ways(experiment, points[0]),
        "",
    ]
    for name, (label, answer) in states.items():
        state = "will be measured" if answer.ok else f"unavailable: {answer.reason}"
        lines.append(f"  {name:<22} {label:<20} {state}")
    lines.append("")
    for point in points:
        lines.append("  " + _describe(point))
    if shares:
        room = _room(target)
        seed = experiment.seed
        needs = {
            point: {name: work.needs(point, seed, name, shared) for name, shared in shares.items()} for point in points
        }
        lines += ["", *_memory(experiment, points, needs, room), _time(experiment, points, needs, target)]
    return "\n".join(lines)


def _describe(point: Point) -> str:
    names = [name for name in Point.model_fields if name not in ("dtype", "device")]
    axes = {name: getattr(point, name) for name in names if getattr(point, name) is not None}
    return " ".join(f"{name}={value}" for name, value in axes.items()).replace("(", "[").replace(")", "]")


def _shares(registry: Registry, name: str, answer: Answer, absent: bool) -> bool | None:
    """Whether an implementation holds shared prefixes once; None where it would not be measured.

    Where the device is `absent`, of every one whose adapter loads: what the others need is still worth knowing.
    """
    if answer.ok:
        return registry.load(name).shares_storage
    if absent:
        with contextlib.suppress(Exception):  # why it does not load is said in the list
            return registry.load(name).shares_storage
    return None


def _ways(experiment: TimedExperiment, point: Point) -> list[str]:
    """How each point is timed, on a device that can do more than one way."""
    if point.device == "cpu" or not experiment.timed:
        return []
    ways = dict.fromkeys(f"{case.cache} {case.mode}" for case in experiment.cases(point))
    return [f"each point: {', '.join(ways)}"]


def _room(target: Target) -> int | None:
    """Bytes for K and V where the run would be; None where that is not here."""
    free = available_memory() if target.device == "cpu" else gpu_memory()
    return None if free is None else memory_guard.room_of(free)


def _memory(
    experiment: TimedExperiment, points: Sequence[Point], needs: Mapping[Point, Mapping[str, int]], room: int | None
) -> list[str]:
    """Memory of the point that needs most, and how its implementations would be grouped."""
    largest = max(points, key=lambda point: sum(needs[point].values()))
    sizes = needs[largest]
    together = memory_guard.gigabytes(sum(sizes.values()))
    text = f"memory: the largest point ({_describe(largest)}) needs {together} of K/V for all implementations at once"
    if largest.device == "cuda":
        text += ", and for cold caches as many copies of a small session as exceed five times the L2 cache"
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
    """The budget, or more if the fewest rounds cannot fit in it, as far as a CPU's bandwidth tells."""
    text = f"time: the budget is {experiment.budget_s / 60:.1f} min"
    if target.device == "cuda":
        return text
    buffer = np.ones(1 << 24, dtype=np.float32)
    started = perf_counter()
    buffer.sum()
    bandwidth = buffer.nbytes / (perf_counter() - started)
    touched = 0
    for point in points:
        calls = experiment.min_rounds * min(point.n_c, MIN_TIMED_STEPS)
        touched += sum(needs[point].values()) * (calls + 3)  # preparing touches K/V about thrice
    least = touched / bandwidth
    if least > experiment.budget_s:
        text += f", but the fewest rounds need about {least / 60:.1f} min, which is what it will take"
    return text
