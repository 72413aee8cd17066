"""How memory is measured: sessions are filled one by one and state what they hold."""

from __future__ import annotations

from collections.abc import Iterable

from chunkbench.experiment.point import Point
from chunkbench.runner.attempt import Attempt
from chunkbench.runner.session_measuring import SessionMeasuring
from chunkbench.workloads.decode.measuring import DecodeWork


class MemoryWork(DecodeWork):
    """What is held depends on n_c, so that every point is filled by itself."""

    timed = False

    def passes(self, points: Iterable[Point]) -> list[tuple[Point, ...]]:
        """Each point by itself."""
        return [(point,) for point in points]


MEASURING = SessionMeasuring(MemoryWork(), Attempt)
