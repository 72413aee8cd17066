"""The points of what a model still answers."""

from __future__ import annotations

from chunkbench.experiment.llama import SHAPES, LlamaShape
from chunkbench.experiment.points import ModelPoint
from chunkbench.experiment.terms import Count, Size


class AnswersPoint(ModelPoint):
    """A context of n_p tokens in caches whose KV heads keep a window, and `batch_size` questions behind it."""

    batch_size: Size = 10
    model: LlamaShape = SHAPES["smollm2-135m"]
    n_p: Count
    window: Count | None = None
