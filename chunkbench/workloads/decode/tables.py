"""Tables of decode attention: token rates, latencies, ratios here and in the paper, details, expectations."""

from __future__ import annotations

from itertools import groupby

from chunkbench.analysis.derive import Row
from chunkbench.analysis.expectations import AT_MOST, Outcome
from chunkbench.analysis.roofline import PROBE_ERROR_ABOVE
from chunkbench.report.cells import NOISY_MARK, PROBE_MARK, latency, word
from chunkbench.report.columns import Columns
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import NOTHING, megabytes, micros, percent, significant, span, times
from chunkbench.report.view import View
from chunkbench.workloads.decode.headline import strongest_other

BANDWIDTH_LEGEND = (
    "bandwidth = bytes that the implementation itself reads, per time, over the machine's read bandwidth; above 100%, "
    "caches served part of the bytes"
)


def token_rate_table(view: View) -> Table:
    """Rows are points, columns implementations, cells thousands of tokens per second of the attention kernel alone."""
    rows = []
    for group in view.groups:
        cells = [_token_rate(group.rows.get(implementation)) for implementation in view.columns.ids]
        rows.append((*view.keys(group), *cells))
    columns = (*view.key_columns(), *(view.columns.column(i) for i in view.columns.ids))
    return Table(
        "Token rate, 1000 tokens per second of attention alone", columns, tuple(rows), len(view.axes), view.breaks(1)
    )


def latency_table(view: View) -> Table:
    """Rows are points, columns implementations, cells microseconds per decode step; the fastest is marked."""
    rows = []
    for group in view.groups:
        fastest = min((row.derived.latency_us for row in group.rows.values() if row.derived.latency_us), default=None)
        cells = [latency(group.rows.get(implementation), fastest) for implementation in view.columns.ids]
        rows.append((*view.keys(group), *cells))
    return Table(
        "Latency per decode step, microseconds",
        (*view.key_columns(), *(view.columns.column(i) for i in view.columns.ids)),
        tuple(rows),
        len(view.axes),
        view.breaks(1),
    )


def ratio_table(view: View) -> Table | None:
    """Latency over the baseline's latency: measured here, and below it the paper's ratio. None without a baseline."""
    others = [implementation for implementation in view.columns.ids if implementation != view.baseline]
    if view.baseline not in view.columns.labels or not others:
        return None
    rows: list[tuple[Cell, ...]] = []
    sizes = []
    for group in view.groups:
        lines = [
            (*view.keys(group), Cell("here"), *(_ratio(group.rows.get(implementation)) for implementation in others))
        ]
        paper = [_paper(group.rows.get(implementation)) for implementation in others]
        if any(cell.text != NOTHING for cell in paper):
            lines.append((*view.blank(), Cell("paper", "quiet"), *paper))
        rows += lines
        sizes.append(len(lines))
    label = view.columns.name(view.baseline)
    return Table(
        f"Ratio to {label}: latency over {label}'s, above 1 is slower than {label}",
        (
            *view.key_columns(),
            Column("", ("",), "left"),
            *(view.columns.column(i) for i in others),
        ),
        tuple(rows),
        len(view.axes) + 1,
        view.breaks(sizes),
    )


def detail_table(view: View) -> Table:
    """The baseline and the strongest other of every point: whole step, memory, shares of the machine's limits."""
    rows: list[tuple[Cell, ...]] = []
    sizes = []
    for group in view.groups:
        pair = [group.rows.get(view.baseline), strongest_other(group, view.baseline, view.columns)]
        shown = [row for row in pair if row is not None and row.derived.latency_us is not None]
        sizes.append(len(shown))
        for number, row in enumerate(shown):
            rows.append((*(view.blank() if number else view.keys(group)), *_detail(row, view.columns)))
    heads = (
        Column("implementation", ("implementation",), "left"),
        Column("decode µs", ("decode", "µs")),
        Column("interval µs", ("interval", "µs")),
        Column("step µs", ("step", "µs")),
        Column("KV MB", ("KV", "MB")),
        Column("roofline", ("roof-", "line")),
        Column("bandwidth", ("band-", "width")),
    )
    rivals = any(view.columns.competes(name, view.baseline) for name in view.columns.ids)
    pair_name = f"{view.columns.name(view.baseline)} and {'the strongest other' if rivals else 'no other'}"
    return Table(
        f"{pair_name}: step = append + plan + decode; shares of the machine's limits",
        (*view.key_columns(), *heads),
        tuple(rows),
        len(view.axes) + 1,
        view.breaks(sizes),
        essential=False,
    )


def expectation_table(view: View) -> Table:
    """One row per expectation of the experiment, with the number of points for each verdict."""
    rows = []

    def terms(outcome: Outcome) -> tuple[object, ...]:
        return (outcome.implementation, outcome.metric, outcome.against, outcome.bar, outcome.aim)

    for _, outcomes in groupby(view.outcomes, key=terms):
        members = list(outcomes)
        expected = members[0]
        values = [
            outcome.value for outcome in members if outcome.verdict != "not measured" and outcome.value is not None
        ]
        at_most = expected.metric in AT_MOST
        worst = (max if at_most else min)(values) if values else None
        sign = "<=" if at_most else ">="
        tallies = [
            sum(outcome.verdict == verdict for outcome in members)
            for verdict in ("reaches aim", "meets bar", "misses", "not measured")
        ]
        name = view.columns.name(expected.implementation)
        against = expected.against if expected.against and expected.against != "roofline" else ""
        over = f" over {view.columns.name(against)}" if against else ""
        rows.append(
            (
                Cell(f"{expected.metric} of {name}{over}"),
                Cell(NOTHING if expected.bar is None else f"{sign} {expected.bar:g}"),
                Cell(NOTHING if expected.aim is None else f"{sign} {expected.aim:g}"),
                Cell(NOTHING if worst is None else significant(worst)),
                *(Cell(str(tally), "failed" if tally and i == 2 else "plain") for i, tally in enumerate(tallies)),
            )
        )
    heads = ("bar", "aim", "worst", "reach aim", "meet bar", "miss", "not measured")
    return Table(
        "What the experiment expects, in points",
        (
            Column("expectation", ("expectation",), "left"),
            *(Column(head, tuple(head.split(" ", 1))) for head in heads),
        ),
        tuple(rows),
        1,
    )


def _token_rate(row: Row | None) -> Cell:
    if row is None or row.derived.token_rate is None:
        return latency(row, None)
    noisy = row.facts.status == "noisy"
    return Cell(
        (NOISY_MARK if noisy else "") + significant(row.derived.token_rate / 1e3), "noisy" if noisy else "plain"
    )


def _ratio(row: Row | None) -> Cell:
    if row is None:
        return Cell(NOTHING, "absent")
    if row.derived.latency_us is None:
        return word(row)
    noisy = row.facts.status == "noisy"
    value = row.derived.ratio_to_baseline
    faster = value is not None and value < 1
    # Mark the ratios where the baseline loses, not those where it wins.
    return Cell(
        (NOISY_MARK if noisy and value else "") + times(value), "noisy" if noisy else "best" if faster else "plain"
    )


def _paper(row: Row | None) -> Cell:
    return Cell(times(row.derived.paper_ratio if row else None), "quiet")


def _detail(row: Row, columns: Columns) -> list[Cell]:
    derived = row.derived
    beyond = derived.roofline_fraction is not None and derived.roofline_fraction > PROBE_ERROR_ABOVE
    mark = NOISY_MARK if row.facts.status == "noisy" else ""
    return [
        Cell(columns.name(row.facts.implementation)),
        Cell(mark + micros(derived.latency_us), "noisy" if mark else "plain"),
        # A single round has no interval: its minimum and maximum are the round itself.
        Cell(span(derived.low_us, derived.high_us) if derived.rounds > 1 else NOTHING, "quiet"),
        Cell(micros(derived.step_us)),
        Cell(megabytes(row.facts.kv_bytes)),
        Cell(percent(derived.roofline_fraction) + (PROBE_MARK if beyond else ""), "failed" if beyond else "plain"),
        Cell(percent(derived.bandwidth_fraction)),
    ]
