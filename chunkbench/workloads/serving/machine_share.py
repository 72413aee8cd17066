"""The shortest time in which the machine could do a decode step of a server, and the share of it that a server reaches.

A step has three parts: the products of the layers, attention, and the head, which gives the logits. Each takes at
least the time to read its bytes or the time for its FLOPs, at the highest rates probed in the run, whichever is longer.
Weights are read once a step. K/V of a shared prefix is read as the server reads it: once a step, or once for each
sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from chunkbench.bench.analysis import roofline
from chunkbench.bench.store.results import Peaks
from chunkbench.workloads.serving.metrics import METRICS
from chunkbench.workloads.serving.result import ServingResult

BestRates = Mapping[str, Peaks]
"""Machine -> the highest rates that were probed there in a run. A probe beside other programs of a shared machine gives
too low rates."""
NO_RATES: BestRates = {}


class PartOfStep(NamedTuple):
    name: str
    read_s: float
    """Seconds to read its bytes."""
    compute_s: float
    """Seconds for its FLOPs."""

    @property
    def least_s(self) -> float:
        return max(self.read_s, self.compute_s)

    def __str__(self) -> str:
        return f"{self.name}, {'memory' if self.read_s >= self.compute_s else 'arithmetic'}"


def higher(first: Peaks, second: Peaks) -> Peaks:
    """The higher one of each rate."""
    others = second.model_dump()
    rates = {name: max(rate, others[name] or 0.0) for name, rate in first.model_dump().items() if rate is not None}
    return Peaks(**rates)


def best_rates(rows: Iterable[object]) -> BestRates:
    """The highest rates that the results of a run hold."""
    found: dict[str, Peaks] = {}
    for row in rows:
        if isinstance(row, ServingResult) and row.machine_limits is not None:
            peaks = row.machine_limits.peaks
            found[row.machine] = higher(peaks, found.get(row.machine, peaks))
    return found


def parts_of_step(facts: ServingResult, best: BestRates = NO_RATES) -> tuple[PartOfStep, ...]:
    """The parts of a decode step in the middle of the answers, with one sequence for each client. Empty without a
    closed loop, without probed peaks, with several answers to a prompt, where a tree says what is shared, or where
    fewer sequences than clients were ever in a step, because memory had no room for more."""
    limits = facts.machine_limits
    if limits is None or facts.clients is None or facts.n_s is None or facts.answers > 1:
        return ()
    peaks, batch = best.get(facts.machine, limits.peaks), min(facts.clients, facts.batch_size)
    servers = (measurement.server for measurement in facts.measurements)
    if any(not server.sampled and (server.peak_batch or batch) < batch for server in servers if server is not None):
        return ()
    shape, layers, element = facts.model, limits.layers, facts.element_bytes
    of_layers = layers * shape.layer_weights
    of_head = shape.hidden_size * limits.vocabulary
    length = facts.n_p + facts.n_c // 2
    prefixes = min(facts.prompts, batch) if limits.shared_reads else batch
    read = prefixes * facts.n_s + batch * (length - facts.n_s)
    kv_bytes = layers * read * facts.layer_token_bytes
    attention_flops = layers * roofline.flops(batch * length, shape.num_attention_heads, shape.head_dim)

    def part(name: str, read_bytes: int, flops: int) -> PartOfStep:
        return PartOfStep(name, read_bytes / peaks.read_bytes_per_s, flops / peaks.matrix_flops_per_s)

    return (
        part("products", of_layers * element, 2 * batch * of_layers),
        part("attention", kv_bytes, attention_flops),
        part("head", of_head * element, 2 * batch * of_head),
    )


def least_step_s(facts: ServingResult, best: BestRates = NO_RATES) -> float | None:
    """Seconds; None if the bound is not known."""
    parts = parts_of_step(facts, best)
    return sum(part.least_s for part in parts) if parts else None


def machine_share(facts: ServingResult, best: BestRates = NO_RATES) -> float | None:
    """Least time of a step / median gap between tokens. None if one of them is not known. The median gap holds no step
    with prompts, unless these are most of the steps."""
    least, gap = least_step_s(facts, best), METRICS["gap_s"].value(facts)
    return least / gap if least is not None and gap else None


def bound_by(facts: ServingResult, best: BestRates = NO_RATES) -> str | None:
    """The part of a step that takes longest at least, and whether memory or arithmetic bounds it."""
    parts = parts_of_step(facts, best)
    return str(max(parts, key=lambda part: part.least_s)) if parts else None
