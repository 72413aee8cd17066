"""The main comparison of a run: the baseline against the strongest other implementation at each point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.experiment.values import show_value
from chunkbench.llama import LlamaShape
from chunkbench.report.columns import Columns
from chunkbench.report.layout import Report
from chunkbench.report.numbers import NOISY_MARK, count, significant, times
from chunkbench.report.statuses import noise_line

_MOST_PLACES = 12
"""Largest number of losses that the headline names."""


@dataclass(frozen=True)
class Match:
    """A point where the baseline and at least one other implementation were measured side by side."""

    group: Group
    strongest: Row

    @property
    def speedup(self) -> float:
        """Latency of the strongest other over latency of the baseline. Below 1 the baseline is slower."""
        value = self.strongest.derived.ratio_to_baseline
        assert value is not None
        return value

    @property
    def doubtful(self) -> bool:
        """Whether the interval of the ratio contains 1, so that another run may give the opposite result."""
        low, high = self.strongest.derived.ratio_low, self.strongest.derived.ratio_high
        return low is not None and high is not None and low <= 1 <= high


def strongest_other(group: Group, baseline: str, columns: Columns) -> Row | None:
    """The fastest correct implementation other than the baseline; None if no other one was measured.

    Ratios to the baseline are compared, because implementations of different memory groups ran at different times.
    Without a measured baseline, latencies are compared.
    """
    others = [row for implementation, row in group.rows.items() if columns.competes(implementation, baseline)]
    if group.rows.get(baseline) and group.rows[baseline].derived.latency_us is not None:
        rated = [(row.derived.ratio_to_baseline, row) for row in others]
    else:
        rated = [(row.derived.latency_us, row) for row in others]
    measured = [(value, row) for value, row in rated if value is not None]
    return min(measured, key=lambda pair: pair[0])[1] if measured else None


def matches(groups: Sequence[Group], baseline: str, columns: Columns) -> list[Match]:
    """Every point where another implementation was measured beside the baseline, with the strongest of them."""
    strongest = [(group, strongest_other(group, baseline, columns)) for group in groups]
    return [Match(group, row) for group, row in strongest if row and row.derived.ratio_to_baseline is not None]


def baseline_losses(compared: Sequence[Match], label: str, varying: Sequence[str], columns: Columns) -> str:
    """A line that names the points where the baseline is slower. Empty if there are none."""
    lost = [match for match in compared if match.speedup < 1]
    if not lost:
        return ""
    axes = f" ({'/'.join(varying)})" if varying else ""
    worst = sorted(lost, key=lambda match: match.speedup)
    places = ", ".join(_place(match, varying, columns) for match in worst[:_MOST_PLACES])
    more = f" and {len(lost) - _MOST_PLACES} more" if len(lost) > _MOST_PLACES else ""
    return f"{label} is slower at {len(lost)} of {count(len(compared), 'point')}{axes}: {places}{more}."


def headline(compared: Sequence[Match], label: str, measured_groups: int) -> str:
    """A sentence with the range and the geometric mean of the speed-up over the strongest other implementation."""
    if not compared:
        return f"At no point was {label} measured beside another implementation."
    speedups = [match.speedup for match in compared]
    if len(compared) == 1:
        where = "the one point" if measured_groups == 1 else "one point"
        fast = times(speedups[0])
    else:
        where = f"{'each of' if len(compared) == measured_groups else 'the'} {len(compared)} points"
        fast = f"{times(min(speedups))} to {times(max(speedups))}"
    text = f"{label} is {fast} as fast as the strongest other implementation at {where}"
    if len(compared) > 1:
        text += f", geometric mean {times(geometric_mean(speedups))}"
    doubtful = sum(match.doubtful for match in compared)
    if doubtful:
        subject = "ratio is" if doubtful == 1 else "ratios are"
        text += f"; {doubtful} {subject} not significantly different from 1"
    return text + "."


def _place(match: Match, varying: Sequence[str], columns: Columns) -> str:
    point = "/".join(show_value(match.group.axes.get(axis)) for axis in varying)
    other = columns.name(match.strongest.facts.implementation)
    doubt = ", not significantly different from 1" if match.doubtful else ""
    return f"{point} than {other} ({times(match.speedup)}{doubt})".strip()


_ALONE = "paged_attn"
"""An implementation that shares no blocks between sequences."""


def gains(report: Report, shape: LlamaShape) -> list[str]:
    """Lines on memory and time at the run's first point. Bytes are those of all layers of the model. If data is
    missing, a line says so.
    """
    if not report.groups:
        return ["nothing was measured"]
    group = report.groups[0]
    baseline_row = group.rows.get(report.baseline)
    unshared_row = group.rows.get(_ALONE)
    lines, subject = [], "        it"
    if baseline_row is not None and unshared_row is not None and baseline_row.kv_bytes and unshared_row.kv_bytes:
        layers, dtype = shape.num_hidden_layers, baseline_row.facts.dtype
        apart, shared = (size * layers / 1e9 for size in (unshared_row.kv_bytes, baseline_row.kv_bytes))
        why = "saved" if apart >= shared else "more, because it holds whole chunks"
        lines.append(
            f"memory  K/V of all {layers} layers in {dtype}: {significant(apart, 3)} GB, with shared prefixes "
            f"{significant(shared, 3)} GB, {significant(abs(apart - shared), 3)} GB {why}"
        )
    if unshared_row is not None and unshared_row.derived.ratio_to_baseline is not None:
        speedup = _mark(baseline_row, unshared_row) + times(unshared_row.derived.ratio_to_baseline)
        name = report.columns.name(unshared_row.facts.implementation)
        lines.append(f"time    decode attention is {speedup} as fast as without sharing ({name})")
    elif unshared_row is not None and unshared_row.facts.reason:
        name, reason = report.columns.name(unshared_row.facts.implementation), unshared_row.facts.reason
        lines.append(f"memory  not compared with caches that share nothing: {name} was not measured ({reason})")
        subject = f"time    decode attention of {report.columns.name(report.baseline)}"
    compared = matches([group], report.baseline, report.columns)
    if compared:
        best = compared[0]
        doubt = "; this is not significantly different from 1" if best.doubtful else ""
        rated = [row for row in group.rows.values() if row.derived.ratio_to_baseline is not None]
        others = count(len(rated) - 1, "other implementation")
        strongest = report.columns.name(best.strongest.facts.implementation)
        mark = _mark(baseline_row, best.strongest)
        against = f"{strongest}, the strongest of {others} here{doubt}"
        lines.append(f"{subject} is {mark}{times(best.speedup)} as fast as {against}")
        lines += [f"{line}. Run it again when the machine has nothing else to do" for line in noise_line([group])]
    return lines or ["ChunkAttn was not measured beside another implementation; the report says why"]


def _mark(*rows: Row | None) -> str:
    """The mark for noise if one of these rows is noisy, else nothing."""
    return NOISY_MARK if any(row is not None and row.facts.status == "noisy" for row in rows) else ""
