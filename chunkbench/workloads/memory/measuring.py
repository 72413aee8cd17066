"""How memory is measured: sessions are filled one by one and state the bytes that they hold."""

from __future__ import annotations

from collections.abc import Iterable

from chunkbench.experiment.point import Point
from chunkbench.runner.attempt import Attempt
from chunkbench.runner.session_measuring import SessionMeasuring
from chunkbench.workloads.decode.measuring import DecodeWork


class MemoryWork(DecodeWork):
    """The held bytes depend on n_c, so every point has its own pass."""

    timed = False

    def passes(self, points: Iterable[Point]) -> list[tuple[Point, ...]]:
        """One group for each point."""
        return [(point,) for point in points]


MEASURING = SessionMeasuring(MemoryWork(), Attempt)
