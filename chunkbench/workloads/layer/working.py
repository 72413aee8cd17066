"""What a worker needs to know about the modules of a decoder layer."""

from __future__ import annotations

from chunkbench.experiment.point import Point
from chunkbench.workers.checks import Check
from chunkbench.workers.inputs import PooledInputs
from chunkbench.workloads.layer.checks import make_module_check
from chunkbench.workloads.layer.inputs import LayerInputs


class LayerWorking:
    """Every module computes a different result."""

    same_result = False

    def inputs(self, point: Point, seed: int) -> PooledInputs:
        """Inputs: hidden states and weights, and K and V for self-attention."""
        return LayerInputs(point, seed)

    def check(self, inputs: PooledInputs, implementation: str, steps: int, nonce: int, sample: bool) -> Check:
        """A check against the module in float64."""
        assert isinstance(inputs, LayerInputs)
        return make_module_check(inputs, implementation, nonce)


WORKING = LayerWorking()
