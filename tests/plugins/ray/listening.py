"""A listener that records the progress of a run, and can do something after some points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from chunkbench.bench.experiment.point import Point
from chunkbench.bench.store import DecodeResult


class RecordingListener:
    """Keeps the problems, and calls `after[n]` when n points are finished."""

    def __init__(self, after: dict[int, Callable[[], None]] | None = None) -> None:
        self.problems: list[str] = []
        self.points_before: list[int] = []
        """How many points were finished when each problem was reported."""
        self.texts: list[str] = []
        self.points: list[tuple[Point, str]] = []
        self._after = after or {}

    def started(self, path: Path, points: int, finished: int) -> None:
        """Nothing."""

    def activity(self, point: Point, text: str, done: float, left_s: float) -> None:
        self.texts.append(text)

    def point_finished(
        self, point: Point, cases: Sequence[DecodeResult], took_s: float, done: float, left_s: float
    ) -> None:
        self.points.append((point, cases[0].machine))
        if len(self.points) in self._after:
            self._after.pop(len(self.points))()

    def problem(self, text: str) -> None:
        self.problems.append(text)
        self.points_before.append(len(self.points))
