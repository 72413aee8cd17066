"""Finds the retrieval heads of a model. The model reads repeated random tokens, and the attention of every head is
measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from chunkbench.server.engine.errors import ModelError
from chunkbench.server.engine.model import refuse_other_attention
from chunkbench.server.heads import PAPERS_TOKENS, REPEATS, HeadScores, Scores

INTERFACE = "chunkbench-heads"
"""Name under which our attention function is registered in transformers."""
_ROWS = 256
"""Number of queries whose attention scores are in memory at the same time."""


@dataclass
class _Watch:
    """The sums that the attention function collects."""

    tokens: int
    advance: Callable[[float], None]
    layers: int
    echo: list[list[float]] = field(default_factory=list)
    induction: list[list[float]] = field(default_factory=list)


def tokens_for(max_length: int) -> int:
    """Number of random tokens for the test: as in the paper, or fewer if the model has too few positions."""
    return min(PAPERS_TOKENS, max_length // REPEATS)


@torch.inference_mode()
def find_heads(
    module: Any, name: str, tokens: int, seed: int = 0, advance: Callable[[float], None] = lambda share: None
) -> HeadScores:
    """Compute the scores of all heads. `module`: a model of transformers, loaded with the attention `INTERFACE`.

    `tokens`: number of random tokens. `advance` receives the finished part of the work, from 0 to 1. Raises
    ModelError.
    """
    config = module.config
    refuse_other_attention(config)
    once = torch.randint(config.vocab_size, (tokens,), generator=torch.Generator().manual_seed(seed))
    watch = _Watch(tokens, advance, config.num_hidden_layers)
    module(input_ids=once.repeat(REPEATS)[None], use_cache=False, logits_to_keep=1, watched_heads=watch)
    if len(watch.echo) != watch.layers:
        raise ModelError(f"{name}: {len(watch.echo)} of its {watch.layers} layers showed their attention")
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return HeadScores(
        model=name, tokens=tokens, kv_heads=kv_heads, echo=_rounded(watch.echo), induction=_rounded(watch.induction)
    )


def _rounded(scores: list[list[float]]) -> Scores:
    return tuple(tuple(round(score, 5) for score in layer) for layer in scores)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    watched_heads: _Watch | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: takes query `[1, h, n, d]`, key and value `[1, h_kv, n, d]`,
    returns `[1, n, h, d]`."""
    if watched_heads is None:
        raise ModelError("this model does not pass its layer to the attention function: its heads cannot be scored")
    heads, rows, d = query.shape[1:]
    group, period = heads // key.shape[1], watched_heads.tokens
    keys, values = (both[0].float().repeat_interleave(group, 0) for both in (key, value))
    out = torch.empty(heads, rows, d)
    echo, induction = torch.zeros(heads), torch.zeros(heads)
    for first in range(0, rows, _ROWS):
        last = min(first + _ROWS, rows)
        scores = torch.einsum("hqd,hkd->hqk", query[0, :, first:last].float(), keys[:, :last])
        scores *= d**-0.5 if scaling is None else scaling
        later = torch.arange(last)[None, :] > torch.arange(first, last)[:, None]
        weights = scores.masked_fill_(later, -torch.inf).softmax(-1)
        out[:, first:last] = weights @ values[:, :last]
        for back in range(period, last, period):
            queries = torch.arange(max(first, back), last)
            if len(queries):
                echo += weights[:, queries - first, queries - back].sum(1)
                induction += weights[:, queries - first, queries - back + 1].sum(1)
    repeated = rows - period
    watched_heads.echo.append((echo / repeated).tolist())
    watched_heads.induction.append((induction / repeated).tolist())
    watched_heads.advance(len(watched_heads.echo) / watched_heads.layers)
    return out.transpose(0, 1)[None].to(query.dtype), None


transformers.AttentionInterface.register(INTERFACE, _attend)
