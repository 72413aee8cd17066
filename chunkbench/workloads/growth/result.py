"""Points and results of kind `growth`: how the time of an operation grows with its size."""

from __future__ import annotations

from pydantic import PositiveFloat

from chunkbench.bench.experiment.point import Point
from chunkbench.bench.experiment.terms import Size
from chunkbench.bench.store.results import Result, Samples


class GrowthPoint(Point):
    """A size: of tokens, sequences, rows, chunks, requests, runs or clients, as the operation says."""

    batch_size: Size = 1
    size: Size

    @property
    def brief(self) -> str:
        return f"size={self.size}"


class GrowthResult(GrowthPoint, Result):
    """The times of one operation at a size."""

    REPEATED = "sample"
    TIMED = "time"

    seconds: tuple[PositiveFloat, ...] = ()
    """[sample] time of the operation."""

    @property
    def rounds(self) -> Samples:
        return tuple((1e6 * value,) for value in self.seconds)

    @property
    def round_groups(self) -> tuple[int, ...]:
        return (0,) * len(self.seconds)
