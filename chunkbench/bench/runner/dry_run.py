"""The plan of a run: its cases, and estimates of memory and time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from chunkbench.bench import workload
from chunkbench.bench.contract import AnyImplementation
from chunkbench.bench.experiment import Experiment, SessionExperiment, TimedExperiment
from chunkbench.bench.experiment.point import Point
from chunkbench.bench.experiment.values import show_value
from chunkbench.bench.registry import Listed, Registry
from chunkbench.bench.runner import memory_guard
from chunkbench.bench.runner.estimate import Estimate, estimate
from chunkbench.bench.runner.target import Target

if TYPE_CHECKING:
    from chunkbench.bench.runner.sessions import AnySessions


def describe_plan(experiment: SessionExperiment, work: AnySessions, target: Target) -> str:
    """The plan as text. Only the CPU is probed, for a fraction of a second."""
    points = experiment.points(target.device, target.dtype)
    registry = work.implementations()
    states = {name: registry.availability(name, target.device) for name in experiment.implementations}
    device_absent = target.device == "cuda" and not target.environment.gpus
    shares_storage = sharing_of(experiment, registry, target)
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
        lines += [
            "",
            *_memory(expected := estimate(experiment, work, target, shares_storage)),
            f"time: {_time(expected, experiment.budget_s)}",
        ]
    return "\n".join(lines)


def list_plan(experiment: Experiment[Any], target: Target, registry: Registry[Listed], words: str) -> str:
    """The plan of a run without sessions, as text: the number of points, the implementations and the points.

    `words`: a text about the amount of work, which follows the number of points.
    """
    points = experiment.points(target.device, target.dtype)
    lines = [
        f"{experiment.name}: {experiment.title}",
        f"{len(points)} points, {words}",
        "",
        *(f"  {name:<24} {registry.load(name).label}" for name in experiment.implementations),
        "",
        *(f"  {point.brief}" for point in points),
    ]
    return "\n".join(lines)


def sharing_of(experiment: SessionExperiment, registry: Registry[AnyImplementation], target: Target) -> dict[str, bool]:
    """Implementation id -> whether it stores a shared prefix once, for each implementation that a run would measure.

    If this machine lacks the device, the result has every implementation whose adapter loads.
    """
    absent = target.device == "cuda" and not target.environment.gpus
    found = {}
    for name in experiment.implementations:
        if absent or registry.availability(name, target.device)[1].ok:
            with contextlib.suppress(Exception):  # the list of implementations names the cause
                found[name] = registry.load(name).shares_storage
    return found


def _describe(point: Point) -> str:
    axes = {name: getattr(point, name) for name in point.axes() if name != "dtype"}
    return " ".join(f"{name}={show_value(value)}" for name, value in axes.items() if value is not None)


def _caches_and_modes(experiment: SessionExperiment, point: Point) -> list[str]:
    """The caches and modes of each point's cases; empty on a CPU."""
    if point.device == "cpu" or not isinstance(experiment, TimedExperiment):
        return []
    pairs = dict.fromkeys(f"{case.cache} {case.mode}" for case in experiment.cases(point))
    return [f"each point: {', '.join(pairs)}"]


def _memory(expected: Estimate) -> list[str]:
    """The most memory that the worker holds, and the memory groups of the point that needs the most memory, as text."""
    point = expected.point
    lines = [f"memory: up to {memory_guard.gigabytes(expected.memory_bytes)} in the worker"]
    text = f"  {_describe(point)}: {memory_guard.gigabytes(expected.together_bytes)} of K/V for all at once"
    if point.device == "cuda":
        text += "; with cold caches, copies of each small session until they exceed five times the L2 cache"
    if expected.room is None or expected.grouping is None:
        return [*lines, text]
    number = len(expected.grouping.groups)
    groups = f"{number} group{'s' * (number != 1)}"
    lines.append(f"{text}; {memory_guard.gigabytes(expected.room)} are available, so it runs in {groups}")
    return lines + [f"  {name}: oom, {reason}" for name, reason in expected.grouping.too_large.items()]


def _time(expected: Estimate, budget_s: float) -> str:
    """The approximate time of the run, as text."""
    if expected.seconds is None:
        return f"about the budget of {words_of(budget_s)}; checks take some 10 s more for each point"
    return f"about {words_of(expected.seconds)}"


def brief(experiment: Experiment, target: Target) -> str:
    """The points, the memory and the time of a run, in one line of text."""
    points = len(experiment.points(target.device, target.dtype))
    text = f"{points} point{'s' * (points != 1)}"
    if target.machine_kind:  # estimates of this machine say nothing about another machine
        return f"{text}, budget {words_of(experiment.budget_s)}"
    return f"{text}, {in_words(workload.of(experiment).estimate(experiment, target), experiment)}"


def in_words(expected: Estimate | str, experiment: Experiment) -> str:
    if isinstance(expected, str):
        return expected
    memory = f"up to {memory_guard.gigabytes(expected.memory_bytes)}"
    return f"{memory}, {_time(expected, experiment.budget_s)}"


def words_of(seconds: float) -> str:
    """A duration as text: 45 s, 6.5 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
