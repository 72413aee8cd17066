"""Caches whose KV heads keep windows: bytes, speed and deviation beside the cache that keeps everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store.results import DecodeResult

FULL = "chunk_attn"
"""The cache that keeps everything."""
_RETRIEVAL, _LEAST_WINDOW, _BESIDES = 0.15, 4000, 5
"""RazorAttention's share of retrieval heads and its least window; four sinks and the compensation token."""


@dataclass(frozen=True)
class HeadCache:
    """One method at one point, over ChunkAttn in the same run."""

    axes: dict[str, object]
    row: Row
    full: Row
    bytes: float
    """Its bytes of K, V and sums over those of the full cache."""
    speedup: float | None
    """Latency of the full cache over its latency."""
    low: float | None
    high: float | None
    deviation: float

    @property
    def tokens(self) -> int:
        """Of a sequence, completion included."""
        assert isinstance(self.row.facts, DecodeResult)
        n_p, n_c = self.row.facts.n_p, self.row.facts.n_c
        assert isinstance(n_p, int)  # the methods take prompts of one length only
        return n_p + n_c

    @property
    def of_the_bytes(self) -> float | None:
        """The gain in time over the gain in bytes: 1 if time follows the bytes."""
        return None if self.speedup is None else self.speedup * self.bytes


def head_caches(groups: Iterable[Group]) -> Iterator[HeadCache]:
    """All methods that compute something else than attention over all tokens, at points where ChunkAttn ran."""
    for group in groups:
        full = group.rows.get(FULL)
        for row in group.rows.values():
            facts = row.facts
            if not isinstance(facts, DecodeResult) or facts.deviation is None or full is None:
                continue
            if not row.kv_bytes or not full.kv_bytes:
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
    """Share of the full bytes that RazorAttention keeps of a sequence, by its own numbers."""
    window = (max(_LEAST_WINDOW, tokens / 5) + _BESIDES) / tokens
    return _RETRIEVAL + (1 - _RETRIEVAL) * min(1, window)
