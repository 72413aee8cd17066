"""The report's tables of a constrained run: answers per second, and what following the constraint took."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, geometric_mean, median
from typing import NamedTuple

from chunkbench.analysis.derive import Group, Row
from chunkbench.analysis.requests import load_numbers
from chunkbench.analysis.statistics import interval
from chunkbench.report.model import Cell, Table
from chunkbench.report.numbers import NOTHING, ms_of_s, percent, ratio, significant, times
from chunkbench.report.quantities import Quantity, figure, quantities
from chunkbench.report.view import Line, View
from chunkbench.store.serving_result import ConstrainedAnswers, Measurement, ServingResult

REFERENCE = "chunk_llama_mask"
"""The system whose answers those of the others are compared with."""
LEGEND = (
    "answers per second: median over arrival seeds; the ratio's interval is over seeds; vllm's masks are xgrammar's",
    "steps = tokens that the model chose; pieces = texts that were appended without it; forced = their tokens",
    f"equal = the answers of {REFERENCE}'s first arrival seed, letter for letter; a cut answer had n_c tokens",
)
_BATCHES = (1, 2, 4, 8, 16, 32, 64)


class _Ratio(NamedTuple):
    value: float
    low: float
    high: float


def asked(view: View) -> bool:
    """Whether the run has constrained answers."""
    return any(_answers(row) for group in view.groups for row in group.rows.values())


def headline(view: View) -> str:
    """Answers per second of all systems over the baseline's."""
    parts = []
    for name in view.columns.ids:
        found = [_over(group, row, view) for group in view.groups if (row := group.rows.get(name))]
        ratios = [entry.value for entry in found if entry]
        if ratios and name != view.baseline:
            parts.append(f"{view.columns.name(name)} {times(geometric_mean(ratios))}")
    base = view.columns.name(view.baseline)
    return f"Answers per second over {base}'s, geometric mean over points: {'; '.join(parts)}." if parts else ""


def tables(view: View) -> list[Table]:
    """Speed, work, answers, and steps by their batch."""

    def over(text: Callable[[_Ratio], str]) -> Callable[[Group, Row], Cell]:
        return figure(lambda group, row: _over(group, row, view), text)

    speed: list[Quantity] = [
        ("answers per second", _median(_per_s, lambda value: significant(value, 3))),
        (f"  over {view.columns.name(view.baseline)}", over(lambda found: times(found.value))),
        ("    its interval", over(lambda found: f"{ratio(found.low)} to {ratio(found.high)}")),
        ("latency of an answer, ms", _median(_latency_s, ms_of_s)),
        ("tokens of an answer", _median(lambda m: fmean(r.tokens for r in m.requests), lambda v: significant(v, 3))),
    ]
    work: list[Quantity] = [
        ("answers: valid", _count(lambda answers: answers.valid)),
        ("  cut", _count(lambda answers: answers.cut)),
        ("  invalid", _count(lambda answers: answers.invalid)),
        (f"  equal to {view.columns.name(REFERENCE)}'s", _equal),
        ("steps of an answer", _work(lambda w: w["sampled"] / w["told"], lambda value: significant(value, 3))),
        ("pieces of an answer", _work(lambda w: w["pieces"] / w["told"], lambda value: significant(value, 3))),
        ("forced tokens", _work(lambda w: w["forced"] / (w["sampled"] + w["forced"]), percent)),
        ("tokens rolled back", _work(lambda w: w["rolled_back"] / w["told"], lambda value: significant(value, 3))),
        ("compile, ms", _work(lambda w: w["compile_s"] / w["told"], ms_of_s)),
        (
            "mask and automaton, us/step",
            _work(lambda w: (w["mask_s"] + w["automaton_s"]) / w["sampled"] * 1e6, lambda v: significant(v, 3)),
        ),
        ("re-tokenising, of the time", _median(_retokenizing, percent)),
    ]

    def measured(row: Row) -> bool:
        return bool(_answers(row))

    steps = view.line_table("Time of a step without prompt tokens, ms", lambda group: _steps(group, view), apart=True)
    parts = [quantities(view, "Constrained answers", speed), quantities(view, "Following it", work, measured)]
    return [*parts, *([steps] if steps.items else [])]


def _measurements(row: Row) -> tuple[Measurement, ...]:
    return row.facts.measurements if isinstance(row.facts, ServingResult) else ()


def _answers(row: Row) -> list[ConstrainedAnswers]:
    return [measurement.constrained for measurement in _measurements(row) if measurement.constrained]


def _per_s(measurement: Measurement) -> float:
    return load_numbers(measurement.requests).requests_per_s


def _latency_s(measurement: Measurement) -> float | None:
    latency = load_numbers(measurement.requests).latency
    return latency.mean if latency else None


def _retokenizing(measurement: Measurement) -> float | None:
    work = measurement.constrained.work if measurement.constrained else {}
    seconds = load_numbers(measurement.requests).seconds
    return work["retokenize_s"] / seconds if work and seconds else None


def _over(group: Group, row: Row, view: View) -> _Ratio | None:
    """Answers per second over the baseline's: the medians, and the interval of single arrival seeds."""
    base = group.rows.get(view.baseline)
    if base is None or base.derived.latency_us is None or row.derived.latency_us is None:
        return None
    mine, theirs = ({m.arrival_seed: _per_s(m) for m in _measurements(side)} for side in (row, base))
    shared = [seed for seed in mine if theirs.get(seed)]
    if not shared:
        return None
    value = median(mine[seed] for seed in shared) / median(theirs[seed] for seed in shared)
    low, high, _ = interval([mine[seed] / theirs[seed] for seed in shared], view.experiment.confidence)
    return _Ratio(value, min(low, value), max(high, value))


def _median(value: Callable[[Measurement], float | None], text: Callable[[float], str]) -> Callable[..., Cell]:
    """The cell of a figure of each measurement."""

    def cell(_: Group, row: Row) -> Cell:
        known = [found for measurement in _measurements(row) if (found := value(measurement)) is not None]
        return Cell(text(median(known)) if known else NOTHING)

    return cell


def _work(value: Callable[[dict[str, float]], float], text: Callable[[float], str]) -> Callable[..., Cell]:
    """The cell of a figure of what the server tells."""

    def of(measurement: Measurement) -> float | None:
        work = measurement.constrained.work if measurement.constrained else {}
        return value(work) if work.get("sampled") else None

    return _median(of, text)


def _count(value: Callable[[ConstrainedAnswers], int]) -> Callable[..., Cell]:
    """The cell of a sum over all measurements."""
    return lambda _, row: Cell(str(sum(map(value, _answers(row)))))


def _equal(group: Group, row: Row) -> Cell:
    reference = group.rows.get(REFERENCE)
    if reference is None or reference is row or not (_answers(row) and _answers(reference)):
        return Cell(NOTHING)
    mine, theirs = _answers(row)[0].texts, _answers(reference)[0].texts
    seeds = {_measurements(side)[0].arrival_seed for side in (row, reference)}
    pairs = list(zip(mine, theirs, strict=False))
    equal = sum(one == other for one, other in pairs)
    return Cell(f"{equal} of {len(pairs)}" if len(seeds) == 1 and pairs else NOTHING)


def _steps(group: Group, view: View) -> list[Line]:
    """A line for each batch: the median time of steps that only decode, of the servers that tell."""
    times_of = {
        name: [
            (batch, s) for m in _measurements(row) if m.server for _, batch, ids, s in m.server.every_step if not ids
        ]
        for name, row in group.rows.items()
    }
    found = []
    for batch in _BATCHES:
        known = {name: [s for size, s in steps if size == batch] for name, steps in times_of.items()}
        cells = {name: Cell(ms_of_s(median(known[name])) if known.get(name) else NOTHING) for name in view.columns.ids}
        found.append(Line(f"{batch} rows, {batch} logits", cells))
    return [line for line in found if line.known]
