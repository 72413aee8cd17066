"""Results of experiments on the answers of a model when most heads keep only a window."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat

from chunkbench.bench.experiment.point import ModelPoint
from chunkbench.bench.experiment.terms import Count, Size
from chunkbench.bench.store.results import Facts, Result
from chunkbench.llama import SHAPES, LlamaShape


class AnswersPoint(ModelPoint):
    """A context of n_p tokens, and `batch_size` questions after it. KV heads of the caches may keep only a window."""

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
    """Share of positions at which this cache and the full cache predict the same token, in text after the context."""
    deviation: NonNegativeFloat
    """|compressed - full| / |full|, where both are the attention outputs of the context's last token in all layers."""
    median_deviation: NonNegativeFloat | None = None
    """The same for each layer and KV head, and the median over them."""
    worst_deviation: NonNegativeFloat | None = None
    """The largest one of a layer and KV head."""
    logprob: float | None = None
    """Mean log-probability of a token of the text after the context."""
    full_logprob: float | None = None
    """The same with the full cache."""
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
