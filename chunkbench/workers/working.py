"""The part of a kind of work that a worker needs."""

from __future__ import annotations

from typing import Protocol

from chunkbench.experiment.point import Point
from chunkbench.workers.checks import Check
from chunkbench.workers.inputs import PooledInputs


class Working(Protocol):
    """How a worker makes inputs and checks for a kind of work."""

    @property
    def same_result(self) -> bool:
        """Whether all implementations of a point compute the same result, so that one check is enough for all."""
        ...

    def inputs(self, point: Point, seed: int) -> PooledInputs:
        """The inputs of a point."""
        ...

    def check(self, inputs: PooledInputs, implementation: str, steps: int, nonce: int, sample: bool) -> Check:
        """A check of an implementation's output after `steps` completion tokens, with its own queries.

        `nonce` seeds the queries and, if a `sample` of the output is enough, the choice of what is compared.
        """
        ...
