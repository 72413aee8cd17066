"""What a run would do: cases, the memory that the largest point needs, an estimate of the time."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from chunkbench.analysis.statistics import MIN_TIMED_STEPS
from chunkbench.baselines import registry
from chunkbench.environment import available_memory
from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Point
from chunkbench.runner import memory
from chunkbench.runner.run import Target


def describe_plan(experiment: Experiment, target: Target) -> str:
    """The plan as text; nothing is measured but a few milliseconds of read bandwidth."""
    points = experiment.points(target.device, target.dtype)
    states = {name: registry.availability(name, target.device) for name in experiment.implementations}
    usable = [name for name, (_, answer) in states.items() if answer.ok]
    shares = {name: registry.load(name).shares_storage for name in usable}
    cases = sum(len(experiment.cases(point)) for point in points)
    lines = [
        f"{experiment.name}: {experiment.title}",
        f"{len(points)} points, {cases} cases, on {target.device} in {target.dtype}, seed {experiment.seed}",
        "",
    ]
    for name, (label, answer) in states.items():
        state = "will be measured" if answer.ok else f"unavailable: {answer.reason}"
        lines.append(f"  {name:<22} {label:<20} {state}")
    lines.append("")
    for point in points:
        lines.append("  " + _describe(point))
    if usable:
        lines += ["", *_memory(experiment, points, shares), _time(experiment, points, shares)]
    return "\n".join(lines)


def _describe(point: Point) -> str:
    axes = point.model_dump(exclude={"dtype", "device", "model"}, exclude_none=True)
    axes |= {"model": point.model} if point.model is not None else {}
    return " ".join(f"{name}={value}" for name, value in axes.items()).replace("(", "[").replace(")", "]")


def _memory(experiment: Experiment, points: tuple[Point, ...], shares: dict[str, bool]) -> list[str]:
    """Memory of the point that needs most, and how its implementations would be grouped."""
    largest = max(points, key=lambda point: sum(memory.needs(point, experiment.seed, shares).values()))
    needs = memory.needs(largest, experiment.seed, shares)
    room = memory.room_of(available_memory())
    grouping = memory.group(needs, list(needs), experiment.baseline, room - memory.probe_bytes(room))
    together = memory.gigabytes(sum(needs.values()))
    lines = [
        f"memory: the largest point ({_describe(largest)}) needs {together} of K/V for all implementations at once;",
        f"  {memory.gigabytes(room)} are available, so it runs in {len(grouping.groups)} group(s)",
    ]
    lines += [f"  {name}: oom, {reason}" for name, reason in grouping.too_large.items()]
    return lines


def _time(experiment: Experiment, points: tuple[Point, ...], shares: dict[str, bool]) -> str:
    """The budget, or more if the fewest rounds cannot fit in it."""
    buffer = np.ones(1 << 24, dtype=np.float32)
    started = perf_counter()
    buffer.sum()
    bandwidth = buffer.nbytes / (perf_counter() - started)
    touched = 0
    for point in points:
        calls = experiment.min_rounds * min(point.n_c, MIN_TIMED_STEPS)
        size = sum(memory.needs(point, experiment.seed, shares).values())
        touched += size * (calls + 3)  # preparing touches K/V about thrice
    least = touched / bandwidth
    text = f"time: the budget is {experiment.budget_s / 60:.1f} min"
    if least > experiment.budget_s:
        text += f", but the fewest rounds need about {least / 60:.1f} min, which is what it will take"
    return text
