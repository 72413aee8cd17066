"""What measuring sessions of implementations has to know of a kind of work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from chunkbench.experiment.point import Point


class Amounts(NamedTuple):
    """What calls move and compute, one entry for each timed step."""

    unique_bytes: tuple[int, ...] = ()
    """That any implementation has to move."""
    read_bytes: tuple[int, ...] = ()
    """That this one moves itself."""
    flops: tuple[int, ...] = ()


class SessionWork(Protocol):
    """What differs between kinds whose implementations are sessions."""

    @property
    def timed(self) -> bool:
        """Whether calls are timed, and the machine's peaks probed beside them."""
        ...

    @property
    def keeps_kv(self) -> bool:
        """Whether every implementation holds the K/V of all tokens, so that the bytes that it states can be checked."""
        ...

    def passes(self, points: Iterable[Point]) -> list[tuple[Point, ...]]:
        """Points that are measured together, the one with the most steps last."""
        ...

    def needs(self, point: Point, seed: int, implementation: str, shares_storage: bool) -> int:
        """Bytes that a session will hold, predicted."""
        ...

    def touched(self, point: Point, seed: int, implementation: str, shares_storage: bool) -> int:
        """Distinct bytes that the first timed call reads."""
        ...

    def amounts(
        self, point: Point, seed: int, implementation: str, reads_shared_once: bool, steps: Sequence[int]
    ) -> Amounts:
        """What the calls at these steps move and compute."""
        ...
