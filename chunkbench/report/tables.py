"""The tables of a report: latencies, ratios here and in the paper, the two that matter in detail, expectations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from chunkbench.analysis.derive import Row
from chunkbench.analysis.expectations import AT_MOST, Outcome
from chunkbench.analysis.roofline import PROBE_ERROR_ABOVE
from chunkbench.report.columns import column, is_other, name
from chunkbench.report.headline import strongest_other
from chunkbench.report.model import Cell, Column, Group, Table
from chunkbench.report.numbers import NOTHING, megabytes, micros, percent, significant, span, times

NOISY_MARK = "~"
PROBE_MARK = "!"
BANDWIDTH_LEGEND = (
    "bandwidth = bytes that the implementation itself reads, over time and the machine's read bandwidth; above 100% "
    "caches served part of them"
)

STATUS_WORD: Mapping[str, str] = {
    "unavailable": "n/a",
    "unsupported": "unsupp.",
    "incorrect": "wrong",
    "error": "error",
    "timeout": "timeout",
    "crashed": "crashed",
    "oom": "oom",
}

AxisText = Callable[[str, object], str]
"""Turns (axis, value) into the text of a cell."""


def latency_table(
    groups: Sequence[Group],
    implementations: Sequence[str],
    labels: Mapping[str, str],
    axes: Sequence[str],
    text: AxisText,
) -> Table:
    """Rows are points, columns implementations, cells microseconds per decode step; the fastest stands out."""
    rows = []
    for group in groups:
        fastest = min((row.derived.latency_us for row in group.rows.values() if row.derived.latency_us), default=None)
        cells = [_latency(group.rows.get(implementation), fastest) for implementation in implementations]
        rows.append((*_keys(group, axes, text), *cells))
    return Table(
        "Latency per decode step, microseconds",
        (*(Column(axis, (axis,)) for axis in axes), *(column(i, labels[i]) for i in implementations)),
        tuple(rows),
        len(axes),
        _breaks(groups, axes, 1),
    )


def ratio_table(
    groups: Sequence[Group],
    implementations: Sequence[str],
    labels: Mapping[str, str],
    axes: Sequence[str],
    text: AxisText,
    baseline: str,
) -> Table | None:
    """Latency over the baseline's: what was measured here above what the paper printed. None without a baseline."""
    others = [implementation for implementation in implementations if implementation != baseline]
    if baseline not in labels or not others:
        return None
    rows: list[tuple[Cell, ...]] = []
    sizes = []
    for group in groups:
        keys = _keys(group, axes, text)
        lines = [(*keys, Cell("here"), *(_ratio(group.rows.get(implementation)) for implementation in others))]
        paper = [_paper(group.rows.get(implementation)) for implementation in others]
        if any(cell.text != NOTHING for cell in paper):
            lines.append((*(Cell("") for _ in keys), Cell("paper", "quiet"), *paper))
        rows += lines
        sizes.append(len(lines))
    label = name(baseline, labels[baseline])
    return Table(
        f"Ratio to {label}: latency over {label}'s, above 1 is slower than {label}",
        (
            *(Column(axis, (axis,)) for axis in axes),
            Column("", ("",), "left"),
            *(column(i, labels[i]) for i in others),
        ),
        tuple(rows),
        len(axes) + 1,
        _breaks(groups, axes, sizes),
    )


def detail_table(
    groups: Sequence[Group], labels: Mapping[str, str], axes: Sequence[str], text: AxisText, baseline: str
) -> Table:
    """The baseline and the strongest other of every point: whole step, memory, distance from the machine's limits."""
    rows: list[tuple[Cell, ...]] = []
    sizes = []
    for group in groups:
        pair = [group.rows.get(baseline), strongest_other(group, baseline)]
        shown = [row for row in pair if row is not None and row.derived.latency_us is not None]
        sizes.append(len(shown))
        for number, row in enumerate(shown):
            keys = _keys(group, axes, text)
            rows.append((*(keys if number == 0 else [Cell("") for _ in keys]), *_detail(row)))
    heads = (
        Column("implementation", ("implementation",), "left"),
        Column("decode µs", ("decode", "µs")),
        Column("interval µs", ("interval", "µs")),
        Column("step µs", ("step", "µs")),
        Column("KV MB", ("KV", "MB")),
        Column("roofline", ("roof-", "line")),
        Column("bandwidth", ("band-", "width")),
    )
    other = "the strongest other" if any(is_other(i, baseline) for i in labels) else "no other"
    label = name(baseline, labels[baseline]) if baseline in labels else baseline
    return Table(
        f"{label} and {other}: step = append + plan + decode; shares of the machine's limits",
        (*(Column(axis, (axis,)) for axis in axes), *heads),
        tuple(rows),
        len(axes) + 1,
        _breaks(groups, axes, sizes),
    )


def expectation_table(outcomes: Sequence[Outcome], labels: Mapping[str, str]) -> Table:
    """What the experiment expects, one row per expectation, counted over its points."""
    rows = []

    def terms(outcome: Outcome) -> tuple[object, ...]:
        return (outcome.implementation, outcome.metric, outcome.against, outcome.bar, outcome.aim)

    for _, same in groupby(outcomes, key=terms):
        members = list(same)
        one = members[0]
        values = [
            outcome.value for outcome in members if outcome.verdict != "not measured" and outcome.value is not None
        ]
        at_most = one.metric in AT_MOST
        worst = (max if at_most else min)(values) if values else None
        sign = "<=" if at_most else ">="
        tallies = [
            sum(outcome.verdict == verdict for outcome in members)
            for verdict in ("reaches aim", "meets bar", "misses", "not measured")
        ]
        who = _who(one.implementation, labels)
        against = f" over {_who(one.against, labels)}" if one.against and one.against != "roofline" else ""
        rows.append(
            (
                Cell(f"{one.metric} of {who}{against}"),
                Cell(NOTHING if one.bar is None else f"{sign} {one.bar:g}"),
                Cell(NOTHING if one.aim is None else f"{sign} {one.aim:g}"),
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


def _keys(group: Group, axes: Sequence[str], text: AxisText) -> list[Cell]:
    return [Cell(text(axis, group.axes.get(axis))) for axis in axes]


def _latency(row: Row | None, fastest: float | None) -> Cell:
    if row is None:
        return Cell(NOTHING, "absent")
    value = row.derived.latency_us
    if value is None:
        return _word(row)
    if row.facts.status == "noisy":
        return Cell(NOISY_MARK + micros(value), "noisy")
    return Cell(micros(value), "best" if value == fastest else "plain")


def _ratio(row: Row | None) -> Cell:
    if row is None:
        return Cell(NOTHING, "absent")
    if row.derived.latency_us is None:
        return _word(row)
    noisy = row.facts.status == "noisy"
    value = row.derived.ratio_to_baseline
    faster = value is not None and value < 1
    # Where the baseline loses is what stands out, not where it wins.
    return Cell(
        (NOISY_MARK if noisy and value else "") + times(value), "noisy" if noisy else "best" if faster else "plain"
    )


def _paper(row: Row | None) -> Cell:
    return Cell(times(row.derived.paper_ratio if row else None), "quiet")


def _word(row: Row) -> Cell:
    failed = row.facts.status in ("incorrect", "error", "timeout", "crashed")
    return Cell(STATUS_WORD.get(row.facts.status, row.facts.status), "failed" if failed else "absent")


def _detail(row: Row) -> list[Cell]:
    found = row.derived
    beyond = found.roofline_fraction is not None and found.roofline_fraction > PROBE_ERROR_ABOVE
    mark = NOISY_MARK if row.facts.status == "noisy" else ""
    return [
        Cell(name(row.facts.implementation, row.facts.label)),
        Cell(mark + micros(found.latency_us), "noisy" if mark else "plain"),
        # Of a single round, smallest and largest are the round itself: that is no interval.
        Cell(span(found.low_us, found.high_us) if found.rounds > 1 else NOTHING, "quiet"),
        Cell(micros(found.step_us)),
        Cell(megabytes(row.facts.kv_bytes)),
        Cell(percent(found.roofline_fraction) + (PROBE_MARK if beyond else ""), "failed" if beyond else "plain"),
        Cell(percent(found.bandwidth_fraction)),
    ]


def _who(implementation: str, labels: Mapping[str, str]) -> str:
    return name(implementation, labels[implementation]) if implementation in labels else implementation


def _breaks(groups: Sequence[Group], axes: Sequence[str], sizes: int | Sequence[int]) -> frozenset[int]:
    """Last row of every run of points that agree on the first axis, when there is more than one axis."""
    if len(axes) < 2:
        return frozenset()
    heights = [sizes] * len(groups) if isinstance(sizes, int) else sizes
    found, end = set(), 0
    for number, group in enumerate(groups[:-1]):
        end += heights[number]
        if group.axes.get(axes[0]) != groups[number + 1].axes.get(axes[0]) and end:
            found.add(end - 1)
    return frozenset(found)
