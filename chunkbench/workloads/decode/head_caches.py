"""Caches that are smaller than ChunkAttn's, because some heads keep fewer tokens or K and V have fewer bits: their
figures and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from chunkbench.baselines.head_methods import METHODS
from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store.results import DecodeResult
from chunkbench.report.columns import Columns
from chunkbench.report.model import Column, Table
from chunkbench.report.numbers import NOTHING, percent, significant, span, times
from chunkbench.report.view import Body, View
from chunkbench.workloads.decode import tables

FULL = "chunk_attn"
"""The implementation that keeps all tokens."""
_RETRIEVAL, _LEAST_WINDOW, _BESIDES = 0.15, 4000, 5
"""RazorAttention's published numbers: share of retrieval heads, smallest window in tokens, and further tokens kept
(four sinks and the compensation token).
"""


@dataclass(frozen=True)
class HeadCache:
    """A cache of one method at one point, compared with ChunkAttn in the same run."""

    axes: dict[str, object]
    row: Row
    full: Row
    bytes: float
    """K/V bytes of this cache over K/V bytes of the full cache."""
    speedup: float | None
    """Latency of the full cache over the latency of this cache."""
    low: float | None
    high: float | None
    deviation: float

    @property
    def tokens(self) -> int:
        """Tokens of a sequence, completion included."""
        assert isinstance(self.row.facts, DecodeResult)
        n_p, n_c = self.row.facts.n_p, self.row.facts.n_c
        assert isinstance(n_p, int)  # the methods take prompts of one length only
        return n_p + n_c

    @property
    def of_the_bytes(self) -> float | None:
        """Product of `speedup` and `bytes`: 1 if time and bytes shrink by the same factor, less if time shrinks less.
        None without a speed-up."""
        return None if self.speedup is None else self.speedup * self.bytes


def head_caches(groups: Iterable[Group]) -> Iterator[HeadCache]:
    """Caches that leave out tokens or bits, at points where ChunkAttn ran too."""
    for group in groups:
        full = group.rows.get(FULL)
        for row in group.rows.values():
            facts = row.facts
            if not isinstance(facts, DecodeResult) or facts.deviation is None or full is None:
                continue
            if not row.kv_bytes or not full.kv_bytes or row is full:
                continue
            derived, share = row.derived, row.kv_bytes / full.kv_bytes
            over = derived.ratio_to_baseline
            low, high = derived.ratio_low, derived.ratio_high
            yield HeadCache(
                dict(group.axes),
                row,
                full,
                share,
                1 / over if over else None,
                1 / high if high else None,
                1 / low if low else None,
                facts.deviation,
            )


def paper_share(tokens: int) -> float:
    """Share of the K/V bytes of a sequence of `tokens` tokens that RazorAttention keeps, by its published numbers."""
    window = (max(_LEAST_WINDOW, tokens / 5) + _BESIDES) / tokens
    return _RETRIEVAL + (1 - _RETRIEVAL) * min(1, window)


_LENGTHS = (4_000, 8_000, 20_000, 32_768, 131_072)
_LEGEND = (
    "K/V = bytes of K, V and sums in use, over ChunkAttn's bytes in the same run",
    "time of bytes = gain in time over gain in bytes: 1 if the time falls as the bytes do",
    "deviation = length of the difference to attention over all tokens and unrounded K and V, over the length of that "
    "attention. K, V and q are drawn from a normal distribution, so their scores are nearly equal: the figure says how "
    "much weight is lost, not what a model would answer",
    "each row was checked against float64 attention over the tokens and the numbers that its own method keeps",
)


def body(view: View) -> Body:
    measured_caches = list(head_caches(view.groups))
    columns: tuple[Column[HeadCache], ...] = (
        Column("implementation", lambda cache: view.columns.name(cache.row.facts.implementation), align="left"),
        Column("K/V", lambda cache: percent(cache.bytes)),
        Column("gain", lambda cache: times(cache.speedup)),
        Column("interval", lambda cache: NOTHING if cache.low is None else span(cache.low, cache.high)),
        Column("time of bytes", lambda cache: times(cache.of_the_bytes), ("time of", "bytes")),
        Column("deviation", lambda cache: significant(cache.deviation, 3)),
        Column("roofline", lambda cache: percent(cache.row.derived.roofline_fraction), ("roof-", "line")),
        Column(
            "roofline of ChunkAttn", lambda cache: percent(cache.full.derived.roofline_fraction), ("Chunk-", "Attn's")
        ),
    )
    here = {id(cache.row): cache for cache in measured_caches}
    caches = view.table(
        "Bytes, time and deviation, beside ChunkAttn",
        lambda group: [here[id(row)] for row in group.rows.values() if id(row) in here],
        columns,
        keys=1,
    )
    by_definition = Table(
        "Bytes that RazorAttention keeps by its own numbers: all in 15% of the heads, max(4000, N/5) + 5 in others",
        (
            Column("N", lambda tokens: f"{tokens:,}"),
            Column("of full bytes", lambda tokens: percent(paper_share(tokens))),
            Column("less", lambda tokens: percent(1 - paper_share(tokens))),
        ),
        _LENGTHS,
    )
    shown = (caches, by_definition) if keep_windows(measured_caches) else (caches,)
    return Body(_headline(measured_caches, view.columns), (*shown, tables.latency_table(view)), legend=_LEGEND)


def keep_windows(found: Iterable[HeadCache]) -> bool:
    """Whether heads of some of these caches keep windows."""
    return any(cache.row.facts.implementation in METHODS for cache in found)


def _headline(found: Sequence[HeadCache], columns: Columns) -> str:
    timed = [cache for cache in found if cache.speedup is not None]
    if not timed:
        return "No smaller cache was measured beside ChunkAttn."
    best = max(timed, key=lambda cache: cache.speedup or 0)
    name = columns.name(best.row.facts.implementation)
    return (
        f"{name} is up to {times(best.speedup)} as fast as ChunkAttn, with {percent(best.bytes)} of its K/V and a "
        f"deviation of {significant(best.deviation, 3)}."
    )
