"""What a kind of work provides so that the runner can measure its sessions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from chunkbench.experiment.point import Point


class Amounts(NamedTuple):
    """Bytes and FLOPs of the calls, one entry for each timed step."""

    unique_bytes: tuple[int, ...] = ()
    """Bytes that every implementation must move."""
    read_bytes: tuple[int, ...] = ()
    """Bytes that this implementation itself moves."""
    flops: tuple[int, ...] = ()


def weight(point: Point, seed: int) -> int:
    """Relative cost of a point: bytes of K/V of all sequences, plus a constant."""
    tokens = sum(point.prompt_lengths(seed)) + point.batch_size * point.n_c
    return tokens * point.token_bytes + (1 << 24)


class SessionWork(Protocol):
    """What differs between kinds of work whose implementations are sessions."""

    @property
    def timed(self) -> bool:
        """Whether calls are timed, and the machine's peaks probed in the same rounds."""
        ...

    @property
    def keeps_kv(self) -> bool:
        """Whether every implementation holds the K/V of all tokens, so that its stated bytes can be checked."""
        ...

    def passes(self, points: Iterable[Point]) -> list[tuple[Point, ...]]:
        """Group the points that are measured together, the point with the most steps last."""
        ...

    def needs(self, point: Point, seed: int, implementation: str, shares_storage: bool) -> int:
        """Predicted bytes that a session will hold."""
        ...

    def touched(self, point: Point, seed: int, implementation: str, shares_storage: bool) -> int:
        """Distinct bytes that the first timed call reads."""
        ...

    def amounts(
        self, point: Point, seed: int, implementation: str, reads_shared_once: bool, steps: Sequence[int]
    ) -> Amounts:
        """Bytes and FLOPs of the calls at these steps."""
        ...
