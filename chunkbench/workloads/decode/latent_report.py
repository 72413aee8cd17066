"""The report of latent attention: from how many sequences on it pays to expand what they share, predicted from the
machine's rates and measured, and which row is the fastest where."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store.results import DecodeResult
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import NOTHING, significant, times
from chunkbench.report.view import Body, View
from chunkbench.workloads.decode import tables

ABSORBED, EXPANDED, MIXED, AUTO = "mla_absorb_two_phase", "mla_naive", "mla_mixed", "mla_auto"
_NOT_OURS = ("mla_sdpa", "mla_vllm", "flashinfer_mla", "flashinfer_mla_fa3", "flash_mla")
_EVEN = 1.02
"""Times up to this ratio are even."""


@dataclass(frozen=True)
class BreakEven:
    """A series of batches that share all of their prompts, and differ in nothing else."""

    axes: Mapping[str, Any]
    """The axes of the series, without the batch size."""
    rows: Sequence[Row]
    flops_per_s: float
    """Median rate of the kernels' instruction set in the rounds."""
    bytes_per_s: float
    """Median rate of reads from memory in the rounds."""
    predicted: float
    """Sequences from which the expanded form takes less time, by these rates."""
    measured: float | None
    """The same, measured: where the line between two neighbouring batches, on logarithmic axes, crosses 1. None if no
    two neighbours lie on both sides of it."""


def latents(groups: Iterable[Group]) -> list[tuple[Group, DecodeResult]]:
    """The points of latent attention with attention alone and one prompt, each with the facts of one of its rows."""
    found = []
    for group in groups:
        facts = next(iter(group.rows.values())).facts
        if not isinstance(facts, DecodeResult) or facts.latent is None or facts.projections == "timed":
            continue
        if facts.n_s is not None and facts.prompts == 1:
            found.append((group, facts))
    return found


def break_evens(groups: Iterable[Group]) -> list[BreakEven]:
    """All series in which the absorbed and the expanded form were measured with attention alone."""
    series: dict[str, list[tuple[Group, DecodeResult]]] = {}
    for group, facts in latents(groups):
        timed = all(_us(group, name) is not None for name in (ABSORBED, EXPANDED))
        if timed and facts.n_s == facts.n_p:
            rest = {name: value for name, value in group.axes.items() if name != "batch_size"}
            series.setdefault(repr(rest), []).append((group, facts))
    return [_break_even(members) for members in series.values() if len(members) > 1]


def _break_even(members: Sequence[tuple[Group, DecodeResult]]) -> BreakEven:
    members = sorted(members, key=lambda member: member[1].batch_size)
    group, facts = members[0]
    rows = [each.rows[name] for each, _ in members for name in (ABSORBED, EXPANDED)]
    flops_per_s, bytes_per_s = rates(rows)
    shape = facts.latent
    assert shape is not None
    gains = [
        (each_facts.batch_size, (_us(each, ABSORBED) or 0) / (_us(each, EXPANDED) or 1)) for each, each_facts in members
    ]
    return BreakEven(
        {name: value for name, value in group.axes.items() if name != "batch_size"},
        rows,
        flops_per_s,
        bytes_per_s,
        shape.break_even(facts.element_bytes, flops_per_s, bytes_per_s),
        crossing(gains),
    )


def crossing(gains: Sequence[tuple[int, float]]) -> float | None:
    """The batch at which a gain reaches 1, between the last batch below 1 and the next one; `gains`: (batch, gain), by
    batch."""
    found = None
    for (low, below), (high, above) in pairwise(gains):
        if below < 1 <= above:
            share = -math.log(below) / (math.log(above) - math.log(below))
            found = low * (high / low) ** share
    return found


def rates(rows: Iterable[Row]) -> tuple[float, float]:
    """Median FLOP/s of the kernels' instruction set and bytes/s from memory, in all rounds of these rows."""
    peaks = [peak for row in rows if row.timed is not None for peak in row.timed.peaks]
    flops = median(peak.matrix_native_flops_per_s or peak.matrix_flops_per_s for peak in peaks)
    return flops, median(peak.read_bytes_per_s for peak in peaks)


def _us(group: Group, name: str) -> float | None:
    row = group.rows.get(name)
    return None if row is None or not row.timed or not row.timed.peaks else row.derived.latency_us


@dataclass(frozen=True)
class Winner:
    """The faster one of Absorbed, two-phase and Mixed at a point, and the one that the rates predict; even times count
    as predicted."""

    group: Group
    predicted: str
    fastest: str
    auto: float | None
    """Latency of the row that chooses, over that of the fastest of our rows."""


def winners(groups: Iterable[Group]) -> list[Winner]:
    """Of the points at which Mixed expands something; elsewhere it does what Absorbed, two-phase does."""
    found = []
    for group, facts in latents(groups):
        if (facts.n_s or 0) < facts.chunk_size or facts.batch_size < 2:
            continue
        ours = {name: us for name in group.rows if name not in _NOT_OURS and (us := _us(group, name)) is not None}
        shape = facts.latent
        if shape is None or not {ABSORBED, MIXED} <= ours.keys():
            continue
        least = shape.break_even(facts.element_bytes, *rates(group.rows[name] for name in ours))
        expands = facts.batch_size >= max(2.0, least)
        predicted = MIXED if expands else ABSORBED
        other = ABSORBED if expands else MIXED
        fastest = predicted if ours[predicted] <= _EVEN * ours[other] else other
        auto = ours[AUTO] / min(ours.values()) if AUTO in ours else None
        found.append(Winner(group, predicted, fastest, auto))
    return found


_LEGEND = (
    "predicted = 0.294 F/B in 2 bytes with DeepSeek's dimensions: bytes that the expanded form reads at B bytes/s, "
    "over FLOPs that the absorbed form computes for each sequence at F FLOP/s; medians of what the rounds probed",
    "measured = batch at which Absorbed, two-phase and Expanded take the same time, interpolated on logarithmic axes",
    "attention alone (no value of projections): queries are absorbed before a call and outputs are projected after it; "
    "the check in float64 contains both. timed: both happen inside the call",
)


def body(view: View) -> Body:
    series, won = break_evens(view.groups), winners(view.groups)
    columns: tuple[Column[BreakEven], ...] = (
        Column("heads", lambda each: str(each.axes["heads"])),
        Column("n_p", lambda each: f"{each.axes['n_p']:,}"),
        Column("F, GFLOP/s", lambda each: significant(each.flops_per_s / 1e9, 3)),
        Column("B, GB/s", lambda each: significant(each.bytes_per_s / 1e9, 3)),
        Column("predicted", lambda each: significant(each.predicted, 2)),
        Column("measured", lambda each: NOTHING if each.measured is None else significant(each.measured, 2)),
    )
    label = view.columns.name
    of = {id(winner.group): winner for winner in won}
    cells: tuple[Column[Winner], ...] = (
        Column("predicted", lambda each: label(each.predicted), align="left"),
        Column(
            "fastest",
            lambda each: Cell(label(each.fastest), "quiet" if each.fastest == each.predicted else "best"),
            align="left",
        ),
        Column("Auto / fastest of ours", lambda each: NOTHING if each.auto is None else times(each.auto)),
    )
    own = (
        Table("Sequences from which it pays to expand what they share", columns, series) if series else None,
        view.table("Absorbed, two-phase, or Mixed", lambda group: [of[id(group)]] if id(group) in of else [], cells)
        if won
        else None,
        tables.latency_table(view),
        tables.ratio_table(view),
        tables.detail_table(view),
    )
    return Body(_headline(view, series, won), tuple(table for table in own if table is not None), legend=_LEGEND)


def _headline(view: View, series: Sequence[BreakEven], won: Sequence[Winner]) -> str:
    parts = [
        f"It pays to expand what {each.measured:.1f} sequences share ({each.predicted:.1f} predicted, "
        f"{each.axes['heads']} heads)."
        for each in series
        if each.measured is not None
    ]
    times_us = [(_us(group, ABSORBED), _us(group, MIXED)) for group, _ in latents(view.groups)]
    gains = [absorbed / mixed for absorbed, mixed in times_us if absorbed and mixed]
    if gains:
        name = view.columns.name
        parts.append(f"{name(MIXED)} is up to {times(max(gains))} as fast as {name(ABSORBED)}.")
    autos = [winner.auto for winner in won if winner.auto is not None]
    if autos:
        same = sum(winner.predicted == winner.fastest for winner in won)
        parts.append(
            f"The rates predict the faster form at {same} of {len(won)} points where sequences share; there "
            f"{view.columns.name(AUTO)} takes at most {times(max(autos))} of the time of the fastest of our rows. All "
            "of this is attention alone."
        )
    return " ".join(parts) or "No point was measured in both forms."
