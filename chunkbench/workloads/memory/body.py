"""The report of K/V memory: bytes of each implementation, what sharing saves, what whole chunks cost."""

from __future__ import annotations

from chunkbench.analysis.derive import Row
from chunkbench.analysis.kv_memory import CONTIGUOUS, PAKV, Saving, saving
from chunkbench.report.cells import word
from chunkbench.report.model import Cell, Column, Group, Table
from chunkbench.report.numbers import NOTHING, count, megabytes, percent, times
from chunkbench.report.view import Body, View

_LEGEND = (
    "saved = bytes with every sequence stored by itself, contiguously (Naive), over bytes of the prefix-aware cache",
    "at this batch = the same ratio if each shared token were stored once; for many sequences it tends to 1 / (1 - r)",
    "empty = slots of the cache's chunks without a token, over the tokens of all sequences; at most (c - 1) / n",
)
_UNTIMED = "nothing was timed; every implementation was checked against float64 at the first and last completion token"


def body(view: View) -> Body:
    """Headline, tables and legend of a run."""
    savings = [(group, saved) for group in view.groups if (saved := saving_of(group)) is not None]
    tables = [_bytes(view), _savings(view, savings)]
    shown = tuple(table for table in tables if table is not None)
    return Body(_headline(savings), shown, legend=_LEGEND, timing=_UNTIMED)


def saving_of(group: Group) -> Saving | None:
    """What the prefix-aware cache saves at a point; None if its bytes are unknown."""
    cache, contiguous = group.rows.get(PAKV), group.rows.get(CONTIGUOUS)
    if cache is None or cache.facts.kv_bytes is None:
        return None
    return saving(contiguous.facts if contiguous is not None else None, cache.facts)


def _bytes(view: View) -> Table:
    rows = []
    for group in view.groups:
        sizes = [row.facts.kv_bytes for row in group.rows.values() if row.facts.kv_bytes is not None]
        least = min(sizes, default=None)
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
            Cell(f"{saved.ratio:.3f}"),
            Cell(times(saved.measured)),
            Cell(times(saved.at_batch), "quiet"),
            Cell(times(saved.limit), "quiet"),
            Cell(percent(saved.empty)),
            Cell(percent(saved.bound), "quiet"),
        )
        for group, saved in savings
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
    measured = [(saved.measured, saved) for _, saved in savings if saved.measured is not None]
    if not measured:
        return ""
    most, saved = max(measured, key=lambda pair: pair[0])
    text = f"The prefix-aware cache holds up to {times(most)} less than contiguous K/V (r = {saved.ratio:.2f})"
    wasteful = [saved for _, saved in savings if saved.empty is not None and saved.empty > saved.bound]
    where = f"exceeds (c - 1) / n at {count(len(wasteful), 'point')}" if wasteful else "nowhere exceeds (c - 1) / n"
    return f"{text}; what its chunks leave empty {where}."
