"""The report's tables of a constrained run: answers per second, and what following the constraint took."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, geometric_mean, median

from chunkbench.analysis.derive import Group, Row
from chunkbench.analysis.requests import load_numbers
from chunkbench.report.model import Cell, Table
from chunkbench.report.numbers import NOTHING, ms_of_s, percent, ratio, significant, times
from chunkbench.report.quantities import Quantity, figure, quantities
from chunkbench.report.view import Line, View
from chunkbench.workloads.serving.constrained_numbers import (
    MASK,
    SpeedRatio,
    answers,
    answers_per_s,
    equal_answers,
    measurements,
    retokenizing_share,
    speed_ratio,
)
from chunkbench.workloads.serving.result import ConstrainedAnswers, Measurement

LEGEND = (
    "answers per second: median over arrival seeds; the ratio's interval is over seeds; vllm's masks are xgrammar's",
    "steps = tokens that the model chose; pieces = texts that were appended without it; forced = their tokens",
    f"equal = the answers of {MASK}'s first arrival seed, letter for letter; a cut answer had n_c tokens",
)
_BATCHES = (1, 2, 4, 8, 16, 32, 64)


def asked(view: View) -> bool:
    """Whether the run has constrained answers."""
    return any(answers(row) for group in view.groups for row in group.rows.values())


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

    def over(text: Callable[[SpeedRatio], str]) -> Callable[[Group, Row], Cell]:
        return figure(lambda group, row: _over(group, row, view), text)

    speed: list[Quantity] = [
        ("answers per second", _median(answers_per_s, lambda value: significant(value, 3))),
        (f"  over {view.columns.name(view.baseline)}", over(lambda found: times(found.value))),
        ("    its interval", over(lambda found: f"{ratio(found.low)} to {ratio(found.high)}")),
        ("latency of an answer, ms", _median(_latency_s, ms_of_s)),
        ("tokens of an answer", _median(lambda m: fmean(r.tokens for r in m.requests), lambda v: significant(v, 3))),
    ]
    work: list[Quantity] = [
        ("answers: valid", _count(lambda answers: answers.valid)),
        ("  cut", _count(lambda answers: answers.cut)),
        ("  invalid", _count(lambda answers: answers.invalid)),
        (f"  equal to {view.columns.name(MASK)}'s", _equal),
        ("steps of an answer", _work(lambda w: w["sampled"] / w["told"], lambda value: significant(value, 3))),
        ("pieces of an answer", _work(lambda w: w["pieces"] / w["told"], lambda value: significant(value, 3))),
        ("forced tokens", _work(lambda w: w["forced"] / (w["sampled"] + w["forced"]), percent)),
        ("tokens rolled back", _work(lambda w: w["rolled_back"] / w["told"], lambda value: significant(value, 3))),
        ("compile, ms", _work(lambda w: w["compile_s"] / w["told"], ms_of_s)),
        (
            "mask and automaton, us/step",
            _work(lambda w: (w["mask_s"] + w["automaton_s"]) / w["sampled"] * 1e6, lambda v: significant(v, 3)),
        ),
        ("re-tokenising, of the time", _median(retokenizing_share, percent)),
    ]

    def measured(row: Row) -> bool:
        return bool(answers(row))

    steps = view.line_table("Time of a step without prompt tokens, ms", lambda group: _steps(group, view), apart=True)
    parts = [quantities(view, "Constrained answers", speed), quantities(view, "Following it", work, measured)]
    return [*parts, *([steps] if steps.items else [])]


def _latency_s(measurement: Measurement) -> float | None:
    latency = load_numbers(measurement.requests).latency
    return latency.mean if latency else None


def _median(value: Callable[[Measurement], float | None], text: Callable[[float], str]) -> Callable[..., Cell]:
    """The cell of a figure of each measurement."""

    def cell(_: Group, row: Row) -> Cell:
        known = [found for measurement in measurements(row) if (found := value(measurement)) is not None]
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
    return lambda _, row: Cell(str(sum(map(value, answers(row)))))


def _over(group: Group, row: Row, view: View) -> SpeedRatio | None:
    base = group.rows.get(view.baseline)
    return speed_ratio(row, base, view.experiment.confidence) if base else None


def _equal(group: Group, row: Row) -> Cell:
    reference = group.rows.get(MASK)
    counted = equal_answers(row, reference) if reference and reference is not row else None
    return Cell(f"{counted[0]} of {counted[1]}" if counted else NOTHING)


def _steps(group: Group, view: View) -> list[Line]:
    """A line for each batch: the median time of steps that only decode, of the servers that tell."""
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
