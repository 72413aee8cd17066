"""The facts about the K/V that implementations hold."""

from __future__ import annotations

from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.store.results import SessionResult


class MemoryResult(AttentionPoint, SessionResult):
    """The K/V that an implementation of decode attention holds."""
