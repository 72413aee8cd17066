"""What there is to say of K/V memory: bytes of each implementation, what sharing saves, what whole chunks cost."""

from __future__ import annotations

from chunkbench.analysis.derive import Row
from chunkbench.analysis.kv_memory import CONTIGUOUS, PAKV, Saving, saving
from chunkbench.report.cells import word
from chunkbench.report.model import Cell, Column, Group, Table
from chunkbench.report.numbers import NOTHING, count, megabytes, percent, times
from chunkbench.report.view import Body, View

_LEGEND = (
    "saved = bytes of every sequence by itself, in one piece (Naive), over the prefix-aware cache's",
    "at this batch = the same if each shared token were held once; ever more sequences come to 1 / (1 - r)",
    "empty = slots of the cache's chunks that hold no token, over the sequences' tokens; at most (c - 1) / n of each",
)
_UNTIMED = "nothing was timed; every implementation was checked against float64 at its first and its last token"


def body(view: View) -> Body:
    """Bytes at the end of the completions."""
    savings = [(group, found) for group in view.groups if (found := saving_of(group)) is not None]
    tables = [_bytes(view), _savings(view, savings)]
    shown = tuple(table for table in tables if table is not None)
    return Body(_headline(savings), shown, legend=_LEGEND, timing=_UNTIMED)


def saving_of(group: Group) -> Saving | None:
    """Of the prefix-aware cache at a point."""
    cache, contiguous = group.rows.get(PAKV), group.rows.get(CONTIGUOUS)
    if cache is None or cache.facts.kv_bytes is None:
        return None
    return saving(contiguous.facts if contiguous is not None else None, cache.facts)


def _bytes(view: View) -> Table:
    rows = []
    for group in view.groups:
        known = [row.facts.kv_bytes for row in group.rows.values() if row.facts.kv_bytes is not None]
        least = min(known, default=None)
        rows.append((*view.keys(group), *(_cell(group.rows.get(i), least) for i in view.columns.ids)))
    columns = (*view.key_columns(), *(view.columns.column(i) for i in view.columns.ids))
    return Table("K/V held at the end of the completions, MB", columns, tuple(rows), len(view.axes), view.breaks(1))


def _cell(row: Row | None, least: int | None) -> Cell:
    if row is None:
        return Cell(NOTHING, "absent")
    if row.facts.kv_bytes is None or row.facts.status not in ("ok", "noisy"):
        return word(row)
    return Cell(megabytes(row.facts.kv_bytes), "best" if row.facts.kv_bytes == least else "plain")


def _savings(view: View, savings: list[tuple[Group, Saving]]) -> Table | None:
    if not savings:
        return None
    rows = [
        (
            *view.keys(group),
            Cell(f"{one.ratio:.3f}"),
            Cell(times(one.measured)),
            Cell(times(one.at_batch), "quiet"),
            Cell(times(one.limit), "quiet"),
            Cell(percent(one.empty)),
            Cell(percent(one.bound), "quiet"),
        )
        for group, one in savings
    ]
    heads = (
        Column("r", ("r",)),
        Column("saved", ("saved",)),
        Column("at this batch", ("at this", "batch")),
        Column("1 / (1 - r)", ("1/(1-r)",)),
        Column("empty", ("empty",)),
        Column("(c - 1) / n", ("(c-1)/n",)),
    )
    title = "What a shared prefix saves, and what whole chunks cost (section 3.1 of the paper)"
    return Table(title, (*view.key_columns(), *heads), tuple(rows), len(view.axes), view.breaks(1))


def _headline(savings: list[tuple[Group, Saving]]) -> str:
    measured = [(one.measured, one) for _, one in savings if one.measured is not None]
    if not measured:
        return ""
    most, one = max(measured, key=lambda pair: pair[0])
    text = f"The prefix-aware cache holds up to {times(most)} less than contiguous K/V (r = {one.ratio:.2f})"
    wasteful = [one for _, one in savings if one.empty is not None and one.empty > one.bound]
    where = f"exceeds (c - 1) / n at {count(len(wasteful), 'point')}" if wasteful else "nowhere exceeds (c - 1) / n"
    return f"{text}; what its chunks leave empty {where}."
