"""Reports answers that follow constraints: answers per second, and the cost of following the constraints."""

from __future__ import annotations

from collections.abc import Callable
from statistics import geometric_mean, median
from typing import NamedTuple

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.analysis.statistics import interval
from chunkbench.report.metric import Metric
from chunkbench.report.model import Cell, Table
from chunkbench.report.numbers import NOTHING, ms_of_s, ratio, times
from chunkbench.report.quantities import Quantity, quantities
from chunkbench.report.view import Line, View
from chunkbench.workloads.serving.metrics import METRICS
from chunkbench.workloads.serving.result import ConstrainedAnswers, Measurement, ServingResult

MASK, INTERLEAVED, JUMP, RETOKENIZE, COMPILED = (
    "chunk_llama_mask",
    "chunk_llama_interleaved",
    "chunk_llama_jump",
    "chunk_llama_jump_retokenize",
    "chunk_llama_jump_compiled",
)
"""Ids of systems. Answers of the other systems are compared with those of `MASK`."""


class SpeedRatio(NamedTuple):
    """Answers per second of one system divided by those of another. `value`: ratio of the two medians. `low`, `high`:
    interval of the ratios of the arrival seeds.
    """

    value: float
    low: float
    high: float


def measurements(row: Row) -> tuple[Measurement, ...]:
    """The measurements in a row: one for each arrival seed."""
    return row.facts.measurements if isinstance(row.facts, ServingResult) else ()


def answers(row: Row) -> list[ConstrainedAnswers]:
    """The answers to constrained requests in a row: one entry for each arrival seed. Empty if its system got no
    constraints."""
    return [measurement.constrained for measurement in measurements(row) if measurement.constrained]


def answers_per_s(measurement: Measurement) -> float:
    return measurement.numbers.requests_per_s


def speed_ratio(row: Row, base: Row, confidence: float) -> SpeedRatio | None:
    """Answers per second of `row` divided by those of `base`. None if one of them has no answers."""
    if base.derived.latency_us is None or row.derived.latency_us is None:
        return None
    mine, theirs = ({m.arrival_seed: answers_per_s(m) for m in measurements(side)} for side in (row, base))
    shared = [seed for seed in mine if theirs.get(seed)]
    if not shared:
        return None
    value = median(mine[seed] for seed in shared) / median(theirs[seed] for seed in shared)
    low, high, _ = interval([mine[seed] / theirs[seed] for seed in shared], confidence)
    return SpeedRatio(value, min(low, value), max(high, value))


def equal_answers(row: Row, reference: Row) -> tuple[int, int] | None:
    """(number of equal answers, number of compared answers) in the first arrival seed. None if the two rows begin with
    different arrival seeds.
    """
    mine, theirs = answers(row), answers(reference)
    if not mine or not theirs or measurements(row)[0].arrival_seed != measurements(reference)[0].arrival_seed:
        return None
    pairs = list(zip(mine[0].texts, theirs[0].texts, strict=False))
    return (sum(one == other for one, other in pairs), len(pairs)) if pairs else None


LEGEND = (
    (
        "answers per second: median over arrival seeds; the ratio's interval is over seeds; xgrammar computes "
        "vllm's masks"
    ),
    (
        "steps = tokens that the model chose; pieces = texts that were appended without the model; forced = tokens of "
        "these pieces"
    ),
    f"equal = the answers of {MASK}'s first arrival seed, letter for letter; a cut answer had n_c tokens",
)
_BATCHES = (1, 2, 4, 8, 16, 32, 64)


def asked(view: View) -> bool:
    """Whether any system of the run got constraints."""
    return any(answers(row) for group in view.groups for row in group.rows.values())


def headline(view: View) -> str:
    """A sentence that compares the answers per second of each system with those of the baseline."""
    parts = []
    for name in view.columns.ids:
        found = [_over(group, row, view) for group in view.groups if (row := group.rows.get(name))]
        ratios = [entry.value for entry in found if entry]
        if ratios and name != view.baseline:
            parts.append(f"{view.columns.name(name)} {times(geometric_mean(ratios))}")
    base = view.columns.name(view.baseline)
    return f"Answers per second over {base}'s, geometric mean over points: {'; '.join(parts)}." if parts else ""


def tables(view: View) -> list[Table]:
    def over(text: Callable[[SpeedRatio], str]) -> Callable[[Group, Row], Cell]:
        def cell(group: Group, row: Row) -> Cell:
            found = _over(group, row, view)
            return Cell(text(found) if found else NOTHING)

        return cell

    speed: list[Quantity | Metric] = [
        ("answers per second", METRICS["answered_per_s"].line),
        (f"  over {view.columns.name(view.baseline)}", over(lambda found: times(found.value))),
        ("    interval of the ratio", over(lambda found: f"{ratio(found.low)} to {ratio(found.high)}")),
        METRICS["answer_s"],
        METRICS["answer_tokens"],
    ]
    costs = ("answer_steps", "answer_pieces", "forced_share", "rolled_back", "compile_s", "mask_us")
    work: list[Quantity | Metric] = [
        *(METRICS[name] for name in ("valid", "cut", "invalid")),
        (f"  equal to {view.columns.name(MASK)}'s", _equal),
        *(METRICS[name] for name in (*costs, "retokenizing_share")),
    ]

    def measured(row: Row) -> bool:
        return bool(answers(row))

    steps = view.line_table("Time of a step without prompt tokens, ms", lambda group: _steps(group, view), apart=True)
    parts = [
        quantities(view, "Constrained answers", speed),
        quantities(view, "Work for the constraint", work, measured),
    ]
    return [*parts, *([steps] if steps.items else [])]


def _over(group: Group, row: Row, view: View) -> SpeedRatio | None:
    base = group.rows.get(view.baseline)
    return speed_ratio(row, base, view.experiment.confidence) if base else None


def _equal(group: Group, row: Row) -> Cell:
    reference = group.rows.get(MASK)
    counted = equal_answers(row, reference) if reference and reference is not row else None
    return Cell(f"{counted[0]} of {counted[1]}" if counted else NOTHING)


def _steps(group: Group, view: View) -> list[Line]:
    """Lines with the median time of steps that only decode, one for each batch size. Systems whose servers record no
    steps are left out.
    """
    times_of = {
        name: [(batch, s) for m in measurements(row) if m.server for _, batch, ids, s in m.server.every_step if not ids]
        for name, row in group.rows.items()
    }
    found = []
    for batch in _BATCHES:
        known = {name: [s for size, s in steps if size == batch] for name, steps in times_of.items()}
        cells = {name: Cell(ms_of_s(median(known[name])) if known.get(name) else NOTHING) for name in view.columns.ids}
        found.append(Line(f"{batch} rows, {batch} logits", cells))
    return [line for line in found if line.known]
