"""Estimates how much memory and time a run will take, from bytes of K/V and the machine's read bandwidth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkbench.bench.analysis.statistics import MIN_TIMED_STEPS
from chunkbench.bench.environment import available_memory, gpu_memory
from chunkbench.bench.experiment import SessionExperiment, TimedExperiment
from chunkbench.bench.experiment.point import SessionPoint
from chunkbench.bench.measure.caches import last_level_cache_bytes, sweep_bytes
from chunkbench.bench.measure.peaks import cpu_peaks
from chunkbench.bench.runner import memory_guard
from chunkbench.bench.runner.target import Target

if TYPE_CHECKING:
    from chunkbench.bench.runner.sessions import AnySessions


# Fitted to runs on shared virtual machines with 2 cores, with `benchmarks/estimates.py` at revision 0e19293.
_PASSES = 26
"""The time to prepare a session and to check it twice, as a multiple of the time to read its K/V once."""
_EACH_S = 0.1
"""Seconds that each implementation adds to a point, besides reading K/V."""
_POINT_S = 1.0
"""Seconds that each point adds: inputs, and the probes of the machine's peaks in three rounds."""
_START_S, _PER_IMPLEMENTATION_S = 5.0, 0.5
"""Seconds to start a worker, and seconds to ask one implementation whether it runs here."""
_PER_RESERVED_GB_S = 0.9
"""Seconds to touch one GB of memory for the first time."""
_WORKER_BYTES = 600_000_000
"""Bytes of a worker with its libraries. The memory guard reserves more for a worker."""


@dataclass(frozen=True)
class Estimate:
    memory_bytes: int
    """Largest number of bytes that the worker holds at one time."""
    seconds: float | None
    """Seconds of the run; None on a GPU, for which there is no estimate."""
    point: SessionPoint
    """The point that needs most memory."""
    together_bytes: int
    """Bytes of K/V of all implementations together, at the point `point`."""
    room: int | None
    """Bytes available for K/V; None if this machine does not have the device."""
    grouping: memory_guard.Grouping | None
    """How the implementations at `point` are grouped in memory; None if `room` is None."""


def estimate(
    experiment: SessionExperiment, work: AnySessions, target: Target, shares_storage: Mapping[str, bool]
) -> Estimate:
    """Estimate the memory and the time of a run. Probes the CPU for a fraction of a second.

    `shares_storage`: implementation id -> whether it stores shared prefixes once.
    """
    points, seed = experiment.points(target.device, target.dtype), experiment.seed
    needs = {
        point: {name: work.needs(point, seed, name, shared) for name, shared in shares_storage.items()}
        for point in points
    }
    largest = max(points, key=lambda point: sum(needs[point].values()))
    free = available_memory() if target.device == "cpu" else gpu_memory()
    room = None if free is None else memory_guard.room_of(free)
    sizes = needs[largest]
    grouping, held = None, max(sum(sizes.values()) for sizes in needs.values())
    probe = memory_guard.probe_bytes(room) if room is not None and work.timed else 0
    if room is not None:
        grouping = _grouping(experiment, work, sizes, room - probe)
        held = max(_held(experiment, work, sizes, room - probe) for sizes in needs.values())
    swept = sweep_bytes("cpu", last_level_cache_bytes("cpu")) if work.timed and target.device == "cpu" else 0
    memory = held + probe + swept + _WORKER_BYTES
    seconds = None if target.device == "cuda" else _seconds(experiment, work, points, needs, held + probe, swept)
    return Estimate(memory, seconds, largest, sum(sizes.values()), room, grouping)


def _grouping(
    experiment: SessionExperiment, work: AnySessions, sizes: Mapping[str, int], room: int
) -> memory_guard.Grouping:
    if not work.timed:
        return memory_guard.one_by_one(sizes, list(sizes), room)
    return memory_guard.group(sizes, list(sizes), experiment.baseline, room)


def _held(experiment: SessionExperiment, work: AnySessions, sizes: Mapping[str, int], room: int) -> int:
    """Bytes of the largest memory group of a point."""
    groups = _grouping(experiment, work, sizes, room).groups
    return max((sum(sizes[name] for name in names) for names in groups), default=0)


def _seconds(
    experiment: SessionExperiment,
    work: AnySessions,
    points: Sequence[SessionPoint],
    needs: Mapping[SessionPoint, Mapping[str, int]],
    reserved: int,
    swept: int,
) -> float:
    """Seconds of a run. Each pass takes its share of the budget, or the time of the smallest number of rounds if that
    is longer."""
    passes = work.passes(points)
    weights = [work.weight(pass_[-1], experiment.seed) for pass_ in passes]
    left, waiting = experiment.budget_s, sum(weights)
    total = _START_S + _PER_IMPLEMENTATION_S * len(experiment.implementations)
    if work.timed:
        total += _PER_RESERVED_GB_S * reserved / 1e9
    for pass_, cost in zip(passes, weights, strict=True):
        share = max(0.0, left) * cost / waiting if work.timed else 0.0
        took = max(share, _least(experiment, pass_, needs[pass_[-1]], swept if work.timed else 0, work.timed))
        total, left, waiting = total + took, left - took, waiting - cost
    return total


def _least(
    experiment: SessionExperiment, pass_: Sequence[SessionPoint], needs: Mapping[str, int], swept: int, timed: bool
) -> float:
    """Seconds of a pass that has the smallest number of rounds."""
    steps = sum(min(point.n_c, MIN_TIMED_STEPS) for point in pass_)
    calls = experiment.min_rounds * steps if isinstance(experiment, TimedExperiment) else 0
    caches = len({case.cache for case in experiment.cases(pass_[-1])})
    read = sum(needs.values()) * (calls * caches + _PASSES) + len(needs) * calls * swept
    return _POINT_S * timed + _EACH_S * len(needs) + read / cpu_peaks(pass_[-1].dtype).read_bytes_per_s
