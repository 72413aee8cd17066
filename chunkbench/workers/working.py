"""What a worker has to know of a kind of work."""

from __future__ import annotations

from typing import Protocol

from chunkbench.experiment.point import Point
from chunkbench.workers.checks import Check
from chunkbench.workers.inputs import PooledInputs


class Working(Protocol):
    """A kind's part for the worker."""

    @property
    def same_result(self) -> bool:
        """Whether all implementations of a point compute the same, so that one check serves them all."""
        ...

    def inputs(self, point: Point, seed: int) -> PooledInputs:
        """The inputs of a point."""
        ...

    def check(self, inputs: PooledInputs, implementation: str, steps: int, nonce: int, sample: bool) -> Check:
        """A check of an implementation's output after `steps` completion tokens, with queries of its own.

        `nonce` draws the queries, and what is compared where a `sample` of the output is enough.
        """
        ...
