"""Results of experiments on the answers of a model when most heads keep only a window."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat

from chunkbench.bench.experiment.point import ModelPoint
from chunkbench.bench.experiment.terms import Count, Size
from chunkbench.bench.store.results import Facts, Result
from chunkbench.llama import SHAPES, LlamaShape


class AnswersPoint(ModelPoint):
    """A context of n_p tokens in caches whose KV heads keep a window, and `batch_size` questions after the context."""

    batch_size: Size = 10
    model: LlamaShape = SHAPES["smollm2-135m"]
    n_p: Count
    window: Count | None = None


class AnswersContext(Facts):
    """Results of one choice of heads on one context."""

    context_seed: Count
    found: tuple[bool, ...]
    """[needle] whether the answer begins with the needle's value."""
    found_by_all: tuple[bool, ...]
    """[needle] whether the model finds the needle when all heads keep all tokens."""
    agreement: Annotated[float, Field(ge=0, le=1)]
    """In held-out text after the context: share of positions at which this cache and the full cache predict the same
    token.
    """
    deviation: NonNegativeFloat
    """Deviation of the attention of the context's last token, in all layers: length of the difference to attention over
    all tokens, over the length of that attention.
    """
    kv_bytes: Count
    full_bytes: Count
    """Bytes of K/V when all heads keep all tokens."""


class AnswersResult(AnswersPoint, Result):
    """The results of one choice of heads at a point."""

    VERB = "tried"
    REPEATED = "context"

    full_heads: Count = 0
    """Number of KV heads that keep all tokens, over all layers."""
    tested_tokens: Count = 0
    """Number of random tokens in the test that found the retrieval heads."""
    contexts: tuple[AnswersContext, ...] = ()
