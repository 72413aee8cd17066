"""Whose layer a point is about."""

from __future__ import annotations

from chunkbench.experiment.llama import LlamaShape
from chunkbench.experiment.point import Point


def shape_of_point(point: Point) -> LlamaShape:
    """The shape of the point's model, which every point of this kind has."""
    assert point.model is not None
    return point.model
