"""What a worker needs to know about decode attention."""

from __future__ import annotations

from chunkbench.experiment.point import Point
from chunkbench.workers.checks import Check, make_check
from chunkbench.workers.inputs import PooledInputs


class DecodeWorking:
    """All implementations of a point compute the same attention."""

    same_result = True

    def inputs(self, point: Point, seed: int) -> PooledInputs:
        """Inputs: token ids, K, V and queries."""
        return PooledInputs(point, seed)

    def check(self, inputs: PooledInputs, implementation: str, steps: int, nonce: int, sample: bool) -> Check:
        """A check against attention in float64."""
        return make_check(inputs, steps, nonce, sample)


WORKING = DecodeWorking()
