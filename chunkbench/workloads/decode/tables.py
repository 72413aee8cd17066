"""Tables of decode attention: token rates, latencies, measured and printed ratios, details, and expectations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.analysis.expectations import ExpectationOutcome
from chunkbench.bench.analysis.roofline import PROBE_ERROR_ABOVE
from chunkbench.bench.experiment.sessions import AT_MOST
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import (
    ABSENT,
    NOISY_MARK,
    NOTHING,
    PROBE_MARK,
    latency,
    measured,
    micros,
    percent,
    significant,
    span,
    times,
    word,
)
from chunkbench.report.view import Line, View
from chunkbench.workloads.decode.headline import strongest_other
from chunkbench.workloads.decode.metrics import METRICS

BANDWIDTH_LEGEND = (
    "bandwidth = bytes that the implementation itself reads, per time, over the machine's read bandwidth; above "
    "100%, caches served some of the bytes"
)


def token_rate_table(view: View) -> Table:
    """A table of thousands of tokens/s of the kernel alone, with a row for each point."""

    def cell(_: Group, row: Row | None) -> Cell:
        return measured(row, significant((row.derived.token_rate or 0.0) / 1e3)) if row is not None else ABSENT

    return view.by_implementation("Token rate, 1000 tokens per second of attention alone", cell)


def latency_table(view: View, essential: bool = True) -> Table:
    """A table of µs per decode step, with a row for each point. The fastest implementation is marked."""
    return view.by_implementation("Latency per decode step, microseconds", latency, essential)


def ratio_table(view: View) -> Table | None:
    """A table of latencies over the baseline's latency. The paper's ratio is below the measured one. None without a
    baseline.
    """
    others = [implementation for implementation in view.columns.ids if implementation != view.baseline]
    if view.baseline not in view.columns.labels or not others:
        return None

    def lines(group: Group) -> list[Line]:
        here = Line("here", {name: _ratio(group.rows.get(name)) for name in others})
        paper = Line(Cell("paper", "quiet"), {name: _paper(group.rows.get(name)) for name in others})
        return [here, paper] if paper.known else [here]

    label = view.columns.name(view.baseline)
    title = f"Ratio to {label}: latency over {label}'s, above 1 is slower than {label}"
    return view.line_table(title, lines, others)


def detail_table(view: View) -> Table:
    """A table of the baseline and the strongest other at every point: whole step, memory, shares of the machine's
    limits.
    """

    def pair(group: Group) -> list[Row]:
        rows = (group.rows.get(view.baseline), strongest_other(group, view.baseline, view.columns))
        return [row for row in rows if row is not None and row.derived.latency_us is not None]

    columns: Sequence[Column[Row]] = (
        Column("implementation", lambda row: view.columns.name(row.facts.implementation), align="left"),
        Column("decode µs", lambda row: measured(row, micros(row.derived.latency_us)), ("decode", "µs")),
        Column("interval µs", _interval, ("interval", "µs")),
        Column("step µs", lambda row: micros(row.derived.step_us), ("step", "µs")),
        Column("KV MB", METRICS["kv_bytes"].cell, ("KV", "MB")),
        Column("roofline", _roofline, ("roof-", "line")),
        Column("bandwidth", lambda row: percent(row.derived.bandwidth_fraction), ("band-", "width")),
    )
    rivals = any(view.columns.competes(name, view.baseline) for name in view.columns.ids)
    pair_name = f"{view.columns.name(view.baseline)} and {'the strongest other' if rivals else 'no other'}"
    title = f"{pair_name}: step = append + plan + decode; shares of the machine's limits"
    return view.table(title, pair, columns, keys=1, essential=False)


def expectation_table(view: View) -> Table:
    """A table with a row for each expectation of the experiment. It counts the points that have each verdict."""

    def terms(outcome: ExpectationOutcome) -> tuple[object, ...]:
        return (outcome.implementation, outcome.metric, outcome.against, outcome.bar, outcome.aim)

    def name(members: Sequence[ExpectationOutcome]) -> str:
        expected = members[0]
        against = expected.against if expected.against and expected.against != "roofline" else ""
        over = f" over {view.columns.name(against)}" if against else ""
        return f"{expected.metric} of {view.columns.name(expected.implementation)}{over}"

    def limit(expected: ExpectationOutcome, value: float | None) -> str:
        return NOTHING if value is None else f"{'<=' if expected.metric in AT_MOST else '>='} {value:g}"

    def worst(members: Sequence[ExpectationOutcome]) -> str:
        values = [member.value for member in members if member.verdict != "not measured" and member.value is not None]
        return significant((max if members[0].metric in AT_MOST else min)(values)) if values else NOTHING

    def tally(members: Sequence[ExpectationOutcome], verdict: str) -> str:
        return str(sum(outcome.verdict == verdict for outcome in members))

    def misses(members: Sequence[ExpectationOutcome]) -> Cell:
        text = tally(members, "misses")
        return Cell(text, "plain" if text == "0" else "failed")

    columns: Sequence[Column[Sequence[ExpectationOutcome]]] = (
        Column("expectation", name, align="left"),
        Column("bar", lambda members: limit(members[0], members[0].bar)),
        Column("aim", lambda members: limit(members[0], members[0].aim)),
        Column("worst", worst),
        Column("reach aim", lambda members: tally(members, "reaches aim"), ("reach", "aim")),
        Column("meet bar", lambda members: tally(members, "meets bar"), ("meet", "bar")),
        Column("miss", misses),
        Column("not measured", lambda members: tally(members, "not measured"), ("not", "measured")),
    )
    expectations = [list(members) for _, members in groupby(view.outcomes, key=terms)]
    return Table("Expectations of the experiment, in points", tuple(columns), expectations)


def _ratio(row: Row | None) -> Cell:
    if row is None:
        return ABSENT
    value = row.derived.ratio_to_baseline
    if row.derived.latency_us is None:
        return word(row)
    noisy = row.facts.status == "noisy"
    faster = value is not None and value < 1
    # Mark the ratios where the baseline loses, not those where it wins.
    return Cell(
        (NOISY_MARK if noisy and value else "") + times(value), "noisy" if noisy else "best" if faster else "plain"
    )


def _paper(row: Row | None) -> Cell:
    return Cell(times(row.derived.paper_ratio if row else None), "quiet")


def _interval(row: Row) -> Cell:
    # A single round has no interval: its minimum and maximum are equal.
    several = row.derived.rounds > 1
    return Cell(span(row.derived.low_us, row.derived.high_us) if several else NOTHING, "quiet")


def _roofline(row: Row) -> Cell:
    fraction = row.derived.roofline_fraction
    if fraction is not None and fraction > PROBE_ERROR_ABOVE:
        return Cell(percent(fraction) + PROBE_MARK, "failed")
    return Cell(percent(fraction))
