"""The facts about what a model still answers when heads keep a window only."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat

from chunkbench.bench.experiment.point import ModelPoint
from chunkbench.bench.experiment.terms import Count, Size
from chunkbench.bench.store.results import Facts, Result
from chunkbench.llama import SHAPES, LlamaShape


class AnswersPoint(ModelPoint):
    """A context of n_p tokens in caches whose KV heads keep a window, and `batch_size` questions behind it."""

    batch_size: Size = 10
    model: LlamaShape = SHAPES["smollm2-135m"]
    n_p: Count
    window: Count | None = None


class AnswersContext(Facts):
    """One context."""

    context_seed: Count
    found: tuple[bool, ...]
    """[needle] whether the answer has its value, exactly."""
    found_by_all: tuple[bool, ...]
    """[needle] whether the model finds it where all heads keep everything."""
    agreement: Annotated[float, Field(ge=0, le=1)]
    """Share of held tokens behind which the most probable token is that of the model whose heads keep everything."""
    deviation: NonNegativeFloat
    """Of the attention of the context's last token, all layers, on this model's K and V."""
    kv_bytes: Count
    full_bytes: Count
    """Where all heads keep everything."""


class AnswersResult(AnswersPoint, Result):
    """One choice of heads at a point."""

    VERB = "tried"
    REPEATED = "context"

    full_heads: Count = 0
    """KV heads that keep everything, of all layers."""
    tested_tokens: Count = 0
    """Random tokens of the test that found the retrieval heads."""
    contexts: tuple[AnswersContext, ...] = ()
