"""The model whose layer a point measures."""

from __future__ import annotations

from chunkbench.experiment.llama import LlamaShape
from chunkbench.experiment.point import Point


def shape_of_point(point: Point) -> LlamaShape:
    """The shape of the point's model; every point of this kind has one."""
    assert point.model is not None
    return point.model
