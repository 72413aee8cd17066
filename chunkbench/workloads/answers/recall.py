"""Tests a model on a context whose cache was compressed: its answers to questions, and its next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from chunkbench.attention import RaggedChunkAttention
from chunkbench.attention.windows import HeadPolicy
from chunkbench.kernels.eight_bits import stored
from chunkbench.kernels.reference import attention, head_attention
from chunkbench.kv_dtype import KvDtype
from chunkbench.server.engine import Model

C = TypeVar("C", bound=RaggedChunkAttention)
CHUNK = 64
_PIECE = 2048
"""Largest number of context tokens that the model computes in one step."""


class _Recorder(RaggedChunkAttention):
    """A cache that also records the K and V that each layer writes, and the queries of the last step."""

    keys: list[list[torch.Tensor]]
    values: list[list[torch.Tensor]]
    queries: list[torch.Tensor]

    def begin(self) -> None:
        self.keys = [[] for _ in range(self.layers)]
        self.values = [[] for _ in range(self.layers)]
        self.queries = [torch.empty(0)] * self.layers

    def run_layers(self, layers: Sequence[Any], step: Any) -> list[float]:
        return []  # each layer is recorded

    def write_selected(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self.keys[layer].append(k.clone())
        self.values[layer].append(v.clone())
        super().write_selected(layer, k, v)

    def attend_selected(
        self, layer: int, q: torch.Tensor, out: torch.Tensor | None = None, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.queries[layer] = q.clone()
        return super().attend_selected(layer, q, out, sinks)


def _cache(model: Model, kind: type[C], policy: HeadPolicy | None = None, kv_dtype: KvDtype = "same") -> C:
    shape = model.layers, model.heads, model.head_dim, model.kv_heads, CHUNK, model.dtype
    return kind(*shape, policy=policy, kv_dtype=kv_dtype)


@dataclass(frozen=True)
class Context:
    """A context that was computed with attention over all tokens."""

    tokens: list[int]
    keys: list[torch.Tensor]
    """K of each layer: `[n, kv_heads, d]`."""
    values: list[torch.Tensor]
    queries: list[torch.Tensor]
    """Queries of the last token in each layer: `[h, d]`."""


def read(model: Model, tokens: list[int]) -> Context:
    """Compute a context with attention over all tokens, and record its K, V and last queries."""
    recorder = _cache(model, _Recorder)
    recorder.begin()
    sequence = recorder.join(tokens).sequence
    for first in range(0, len(tokens), _PIECE):
        piece = tokens[first : first + _PIECE]
        recorder.select(sequence, first, len(piece))
        recorder.plan_selected()
        model.logits(piece, list(range(first, first + len(piece))), [len(piece) - 1], recorder)
    keys, values = ([torch.cat(parts) for parts in both] for both in (recorder.keys, recorder.values))
    return Context(tokens, keys, values, [queries[-1] for queries in recorder.queries])


class ReadOn(NamedTuple):
    """How a model reads a text after a context."""

    next_tokens: list[int]
    """The most probable next token at each position."""
    logprob: float | None
    """Mean log-probability of a token of the text, from its second token on. None for a text of one token."""


class CompressedContext:
    """A context whose cache was compressed. Questions come after the context."""

    def __init__(
        self, model: Model, context: Context, policy: HeadPolicy | None = None, kv_dtype: KvDtype = "same"
    ) -> None:
        self._model, self._length = model, len(context.tokens)
        self._cache = cache = _cache(model, RaggedChunkAttention, policy, kv_dtype)
        self._sequence = cache.join(context.tokens).sequence
        cache.select(self._sequence, 0, self._length)
        cache.plan_selected()
        for layer, (keys, values) in enumerate(zip(context.keys, context.values, strict=True)):
            cache.write_selected(layer, keys, values)
        cache.compress()

    @property
    def kv_bytes(self) -> int:
        """Bytes in use: K, V, and the sums from which compensation tokens are made."""
        return self._cache.kv_bytes

    def read_on(self, text: Sequence[int]) -> ReadOn:
        """Read a text that follows the context."""
        fork = self._cache.fork(self._sequence)
        logits = self._logits([fork], [list(text)], list(range(len(text))))
        self._cache.remove_sequence(fork)
        logprobs = logits[:-1].double().log_softmax(-1)
        of_text = logprobs.gather(1, torch.tensor(text[1:], device=logprobs.device)[:, None])
        return ReadOn(logits.argmax(-1).tolist(), float(of_text.mean()) if len(text) > 1 else None)

    def answers(self, questions: Sequence[list[int]], tokens: int) -> list[list[int]]:
        """The first `tokens` tokens of the greedy answer to each question. Every question directly follows the
        context.
        """
        forks = [self._cache.fork(self._sequence) for _ in questions]
        ends = torch.tensor([len(question) for question in questions]).cumsum(0) - 1
        found = [[token] for token in self._logits(forks, list(questions), ends.tolist()).argmax(-1).tolist()]
        for _ in range(tokens - 1):
            last = self._logits(forks, [[answer[-1]] for answer in found], list(range(len(forks))))
            for answer, token in zip(found, last.argmax(-1).tolist(), strict=True):
                answer.append(token)
        for fork in forks:
            self._cache.remove_sequence(fork)
        return found

    def _logits(self, sequences: Sequence[int], texts: list[list[int]], rows: list[int]) -> torch.Tensor:
        """Append and compute a text for each sequence. Returns the logits `[len(rows), vocabulary]` after each of
        `rows`."""
        firsts = [self._cache.length(sequence) for sequence in sequences]
        counts = [len(text) for text in texts]
        tokens = [token for text in texts for token in text]
        self._cache.extend(tokens, sequences, counts)
        for sequence, first, count in zip(sequences, firsts, counts, strict=True):
            self._cache.select(sequence, first, count, decoding=max(counts) == 1)
        self._cache.plan_selected()
        positions = [first + i for first, count in zip(firsts, counts, strict=True) for i in range(count)]
        return self._model.logits(tokens, positions, rows, self._cache)


class Deviation(NamedTuple):
    """|compressed - full| / |full|, where both are the attention outputs of a context's last token."""

    all: float
    """Over all layers and heads together."""
    median: float
    """Median over layers and KV heads; a KV head stands for its query heads."""
    worst: float


NO_DEVIATION = Deviation(0.0, 0.0, 0.0)


def deviation(context: Context, policy: HeadPolicy | None, kv_dtype: KvDtype = "same") -> Deviation:
    """Each layer gets the queries, K and V of the model without compression."""
    squares = []  # of the differences and of the full outputs, [2, kv_heads] of each layer
    for layer, (q, k, v) in enumerate(zip(context.queries, context.keys, context.values, strict=True)):
        full, kept = attention(q, k, v), (stored(k, kv_dtype), stored(v, kv_dtype))
        if policy is None:
            seen = attention(q, *kept)
        else:
            lost = policy.lost(len(context.tokens), CHUNK)
            seen = head_attention(q, *kept, policy.full[layer], lost, policy.compensation)
        by_head = torch.stack([seen - full, full]).view(2, k.shape[1], -1)
        squares.append(by_head.square().sum(-1))
    differences, whole = torch.cat(squares, 1)
    each = (differences / whole).sqrt()
    return Deviation(float((differences.sum() / whole.sum()).sqrt()), float(each.median()), float(each.max()))
