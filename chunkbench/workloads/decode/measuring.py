"""How decode attention is measured: calls of sessions that hold K and V of all sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chunkbench.analysis import roofline
from chunkbench.experiment.point import Point, passes
from chunkbench.runner import memory_guard
from chunkbench.runner.attempt import TimedAttempt
from chunkbench.runner.session_measuring import SessionMeasuring
from chunkbench.runner.session_work import Amounts


class DecodeWork:
    """Every step reads K and V of all tokens; one pass to the longest n_c also serves the shorter ones."""

    timed = True
    keeps_kv = True

    def passes(self, points: Iterable[Point]) -> list[tuple[Point, ...]]:
        """Group the points that differ only in n_c."""
        return passes(points)

    def needs(self, point: Point, seed: int, implementation: str, shares_storage: bool) -> int:
        """Bytes of K and V at the end of a round."""
        return memory_guard.kv_bytes(point, seed, shares_storage)

    def touched(self, point: Point, seed: int, implementation: str, shares_storage: bool) -> int:
        """Distinct bytes of K and V that the first step reads."""
        return memory_guard.touched_bytes(point, seed, shares_storage)

    def amounts(
        self, point: Point, seed: int, implementation: str, reads_shared_once: bool, steps: Sequence[int]
    ) -> Amounts:
        """Bytes of K, V, q and out; FLOPs of the products with K and V."""
        shape = (point.token_bytes, point.batch_size, point.heads, point.head_dim, point.element_bytes)
        unique = [point.unique_prompt_tokens(seed) + s * point.batch_size for s in steps]
        total = [sum(point.prompt_lengths(seed)) + s * point.batch_size for s in steps]
        return Amounts(
            tuple(roofline.unique_bytes(u, *shape) for u in unique),
            tuple(roofline.read_bytes(t, u, reads_shared_once, *shape) for t, u in zip(total, unique, strict=True)),
            tuple(roofline.flops(t, point.heads, point.head_dim) for t in total),
        )


MEASURING = SessionMeasuring(DecodeWork(), TimedAttempt)
