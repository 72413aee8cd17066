"""The report of K/V memory: bytes of each implementation, saving by shared prefixes, and empty slots of chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store import Manifest
from chunkbench.bench.store.results import MEASURED
from chunkbench.report.layout import Layout, Report
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import ABSENT, count, megabytes, percent, times, word
from chunkbench.report.view import Body, View
from chunkbench.workloads.decode.metrics import HELD
from chunkbench.workloads.memory import claims
from chunkbench.workloads.memory.result import Saving, saving_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEGEND = (
    "saved = bytes with every sequence stored by itself, contiguously (Naive), over bytes of the prefix-aware cache",
    ("at this batch = the ratio if each shared token were stored once; for many sequences it tends to 1 / (1 - r)"),
    "empty = slots of the cache's chunks without a token, over the tokens of all sequences; at most (c - 1) / n",
)
_UNTIMED = "nothing was timed; every implementation was checked against float64 at the first and last completion token"


def body(view: View) -> Body:
    savings = [saved for group in view.groups if (saved := saving_of(group)) is not None]
    held = view.by_implementation("K/V held at the end of the completions, MB", _cell)
    return Body(_headline(savings), (held, _savings(view)), legend=_LEGEND, timing=_UNTIMED)


def _cell(group: Group, row: Row | None) -> Cell:
    if row is None:
        return ABSENT
    if row.kv_bytes is None or row.facts.status not in MEASURED:
        return word(row)
    least = min(other.kv_bytes for other in group.rows.values() if other.kv_bytes is not None)
    return Cell(megabytes(row.kv_bytes), "best" if row.kv_bytes == least else "plain")


def _savings(view: View) -> Table:
    columns: tuple[Column[Saving], ...] = (
        Column("r", lambda saved: f"{saved.ratio:.3f}"),
        Column("saved", lambda saved: times(saved.measured)),
        Column("at this batch", lambda saved: Cell(times(saved.at_batch), "quiet"), ("at this", "batch")),
        Column("1 / (1 - r)", lambda saved: Cell(times(saved.limit), "quiet"), ("1/(1-r)",)),
        Column("empty", lambda saved: percent(saved.empty)),
        Column("(c - 1) / n", lambda saved: Cell(percent(saved.bound), "quiet"), ("(c-1)/n",)),
    )

    def lines(group: Group) -> list[Saving]:
        saved = saving_of(group)
        return [] if saved is None else [saved]

    title = "Bytes saved by a shared prefix, and empty slots of chunks (section 3.1 of the paper)"
    return view.table(title, lines, columns)


def _headline(savings: Sequence[Saving]) -> str:
    measured = [(saved.measured, saved) for saved in savings if saved.measured is not None]
    if not measured:
        return ""
    most, saved = max(measured, key=lambda pair: pair[0])
    text = f"The prefix-aware cache holds up to {times(most)} less than contiguous K/V (r = {saved.ratio:.2f})"
    wasteful = [saved for saved in savings if saved.empty is not None and saved.empty > saved.bound]
    where = f"exceed (c - 1) / n at {count(len(wasteful), 'point')}" if wasteful else "nowhere exceed (c - 1) / n"
    return f"{text}; its empty slots {where}."


def _draw(report: Report, manifest: Manifest) -> Figure | None:
    from chunkbench.workloads.memory.figure import draw

    return draw(report, manifest)


LAYOUT = Layout(body, _draw, HELD, claims.JUDGES)
