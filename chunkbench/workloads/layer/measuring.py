"""How the modules of a decoder layer are measured: calls that take hidden states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chunkbench.analysis.layer_costs import MODULES
from chunkbench.experiment.llama import LlamaShape
from chunkbench.experiment.point import Point
from chunkbench.runner import memory_guard
from chunkbench.runner.attempt import TimedAttempt
from chunkbench.runner.session_measuring import SessionMeasuring
from chunkbench.runner.session_work import Amounts
from chunkbench.workloads.layer.shape import shape_of_point


class LayerWork:
    """Every call of a module does the same work; only self-attention keeps K and V."""

    timed = True
    keeps_kv = False

    def passes(self, points: Iterable[Point]) -> list[tuple[Point, ...]]:
        """One group for each point."""
        return [(point,) for point in points]

    def needs(self, point: Point, seed: int, implementation: str, shares_storage: bool) -> int:
        """Bytes of weights and intermediate results, or of K and V."""
        shape = shape_of_point(point)
        columns = _columns(shape, implementation)
        if columns is None:
            return memory_guard.kv_bytes(point, seed, shares_storage)
        rows = shape.hidden_size + point.batch_size
        return int(rows * columns * point.element_bytes * memory_guard.SLACK)

    def touched(self, point: Point, seed: int, implementation: str, shares_storage: bool) -> int:
        """Distinct bytes of weights, or of K and V, that a call reads."""
        shape = shape_of_point(point)
        columns = _columns(shape, implementation)
        if columns is None:
            return memory_guard.touched_bytes(point, seed, shares_storage)
        return shape.hidden_size * columns * point.element_bytes

    def amounts(
        self, point: Point, seed: int, implementation: str, reads_shared_once: bool, steps: Sequence[int]
    ) -> Amounts:
        """Computed from the shapes, equal for all calls; empty for ragged prompts, which are not measured."""
        if not isinstance(point.n_p, int):
            return Amounts()
        cost = MODULES[implementation](shape_of_point(point), point.batch_size, point.n_p, point.element_bytes)
        moved, computed = (cost.bytes,) * len(steps), (cost.flops,) * len(steps)
        return Amounts(moved, moved, computed)


def _columns(shape: LlamaShape, module: str) -> int | None:
    """Columns of all weights of a module together; None for the module without weights."""
    return {"qkv_projection": shape.qkv_size, "mlp": 3 * shape.intermediate_size}.get(module)


MEASURING = SessionMeasuring(LayerWork(), TimedAttempt)
