"""A cache used as by a model, beside contiguous copies of all contexts; its outputs are compared with float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch
from hypothesis import strategies as st

from chunkbench import ChunkAttention, LayeredChunkAttention
from chunkbench.attention import Kernel
from chunkbench.kernels import cpu
from chunkbench.kernels.eight_bits import stored
from chunkbench.kernels.query_rows import QueryRows, seen_in_draft
from chunkbench.kernels.reference import attention
from chunkbench.kv_dtype import kv_bytes

KERNELS: list[Kernel] = ["torch", *(["native"] if cpu.native() is not None else [])]  # type: ignore[list-item]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Attention of the last tokens of a context, q `[n, h, d]`, each over all tokens up to itself; in float64."""
    first = len(k) - len(q) + 1
    return torch.stack([attention(row, k[: first + i], v[: first + i], scale) for i, row in enumerate(q)])


def seen_by(length: int, rows: int, parents: tuple[int, ...] | None, window: int | None) -> torch.Tensor:
    """`[rows, length]`: the definition of what each of the last rows of a sequence reads."""
    draft = np.tri(rows, dtype=bool) if parents is None else seen_in_draft(rows, parents)
    seen = torch.ones(rows, length, dtype=torch.bool)
    seen[:, length - rows :] = torch.from_numpy(draft)
    if window is not None:
        positions = torch.arange(length - rows, length)[:, None]
        seen &= torch.arange(length)[None] > positions - window
    return seen


class Contexts:
    """A cache, and the tokens, K and V of every sequence. The ids up to a token determine its K and V in each layer."""

    tolerance: ClassVar = TOLERANCE

    def __init__(self, cache: LayeredChunkAttention, scale: float = 1.0, seed: int = 0) -> None:
        """`scale`: of all random numbers."""
        self.attention = cache
        self.tokens: dict[int, list[int]] = {}
        self.kv: dict[int, torch.Tensor] = {}
        """`[layers, 2, n, kv_heads, d]` of each sequence."""
        self._scale = scale
        self._random = torch.Generator().manual_seed(seed)
        self._of_prefix: dict[int, torch.Tensor] = {}

    def normal(self, *shape: int) -> torch.Tensor:
        """Random numbers of the cache's dtype, on its device."""
        drawn = self._scale * torch.randn(shape, generator=self._random)
        return drawn.to(self.attention.dtype).to(self.attention.device)

    def rows(self, tokens: Sequence[int], start: int = 0) -> torch.Tensor:
        """K and V of a context from a token on."""
        cache = self.attention
        names = list(accumulate(tokens, lambda prefix, token: hash((prefix, token)), initial=0))[start + 1 :]
        for name in names:
            if name not in self._of_prefix:
                self._of_prefix[name] = self.normal(cache.layers, 2, cache.kv_heads, cache.head_dim)
        if not names:
            return self.normal(cache.layers, 2, 0, cache.kv_heads, cache.head_dim)
        return torch.stack([self._of_prefix[name] for name in names], 2)

    def add(self, tokens: Sequence[int], with_cached_rows: bool = True) -> int:
        """Add a sequence; `with_cached_rows`: also hand over K and V of what the cache already holds."""
        kv = self.rows(tokens)
        if isinstance(self.attention, ChunkAttention):
            cached = 0 if with_cached_rows else self.attention.cached_tokens(tokens)
            sequence = self.attention.add_sequence(tokens, *kv[0, :, cached:])
        else:
            joined = self.attention.join(tokens)
            sequence = joined.sequence
            for layer in reversed(range(self.attention.layers)):  # the order of layers does not matter
                self.attention.write(layer, joined, *kv[layer, :, joined.cached :])
        self.tokens[sequence], self.kv[sequence] = list(tokens), kv
        return sequence

    def append(self, tokens: Sequence[int]) -> None:
        """Append one token to every sequence."""
        self._append({sequence: [token] for sequence, token in zip(self.tokens, tokens, strict=True)}, ())

    def step(self) -> None:
        """Append a new token to every sequence."""
        first = 10_000 + sum(map(len, self.tokens.values()))
        self.append(range(first, first + len(self.tokens)))

    def append_to(self, counts: dict[int, int]) -> None:
        """Append tokens 0, 1, 0, ... to some sequences. `counts` maps a sequence id to the number of its new tokens."""
        new = {sequence: [n % 2 for n in range(count)] for sequence, count in counts.items()}
        self._append(new, (list(counts), list(counts.values())))

    def _append(self, new: dict[int, list[int]], some: tuple[Any, ...]) -> None:
        added = []
        for sequence, tokens in new.items():
            known = len(self.tokens[sequence])
            self.tokens[sequence] += tokens
            added.append(self.rows(self.tokens[sequence], known))
            self.kv[sequence] = torch.cat([self.kv[sequence], added[-1]], 2)
        flat, kv = [token for tokens in new.values() for token in tokens], torch.cat(added, 2)
        if isinstance(self.attention, ChunkAttention):
            self.attention.append(flat, *kv[0], *some)
        else:
            extended = self.attention.extend(flat, *some)
            for layer in range(self.attention.layers):
                self.attention.write(layer, extended, *kv[layer])

    def fork(self, sequence: int) -> int:
        forked = self.attention.fork(sequence)
        self.tokens[forked], self.kv[forked] = list(self.tokens[sequence]), self.kv[sequence]
        return forked

    def truncate(self, sequence: int, length: int) -> None:
        self.attention.truncate(sequence, length)
        self.tokens[sequence], self.kv[sequence] = self.tokens[sequence][:length], self.kv[sequence][:, :, :length]

    def remove(self, sequence: int) -> None:
        self.attention.remove_sequence(sequence)
        del self.tokens[sequence], self.kv[sequence]

    def expected(self, q: torch.Tensor, layer: int = 0) -> torch.Tensor:
        """In float64, over the values that are stored."""
        kept, softcap = (self.kept(kv[layer]) for kv in self.kv.values()), self.attention.softcap
        return torch.stack([attention(q[row], *kv, softcap=softcap) for row, kv in enumerate(kept)])

    def kept(self, kv: torch.Tensor) -> torch.Tensor:
        return kv if self.attention.kv_dtype == "same" else stored(kv, self.attention.kv_dtype)

    def outputs(self, q: torch.Tensor, layer: int, rows: QueryRows | None = None) -> dict[str, torch.Tensor]:
        """Name of a kernel -> its output. `rows`: the query rows of a draft."""
        if rows is not None:
            self.attention.plan(rows)
        out = torch.full_like(q, torch.nan)
        assert self.attention.attend(layer, q, out) is out
        return {"": out}

    def check(self, scale: float = 1.0, times: float = 1.0) -> None:
        """Compare the outputs for random queries times `scale`; the tolerance is that of the dtype, times `times`."""
        cache = self.attention
        assert cache.sequences == list(self.tokens)
        for layer in range(cache.layers):
            q = self.normal(len(self.tokens), cache.heads, cache.head_dim) * scale
            self.compare(self.outputs(q, layer), self.expected(q, layer), f"layer {layer}", times)

    def check_draft(self, rows: QueryRows) -> None:
        """Compare the outputs for several query rows of each sequence."""
        cache, counts = self.attention, rows.counts.tolist()
        for layer in range(cache.layers):
            q = self.normal(rows.total, cache.heads, cache.head_dim)
            of_sequences = zip(q.split(counts), self.kv.values(), strict=True)
            expected = [
                attention(part, *self.kept(kv[layer]), None, seen_by(kv.shape[2], len(part), rows.parents, None),
                          cache.softcap)
                for part, kv in of_sequences
            ]  # fmt: skip
            self.compare(self.outputs(q, layer, rows), torch.cat(expected), f"{rows} of layer {layer}")
        cache.plan()

    def compare(self, outputs: dict[str, torch.Tensor], expected: torch.Tensor, what: str, times: float = 1.0) -> None:
        largest = expected.abs().amax((1, 2), keepdim=True)
        for name, out in outputs.items():
            error = ((out.double() - expected).abs() / largest).max()
            assert error <= self.tolerance[self.attention.dtype] * times, f"{name} {what}: relative error {error}"


def chunk_bytes(cache: LayeredChunkAttention) -> int:
    """Of K and V of one KV head."""
    return cache.chunk_size * kv_bytes(cache.head_dim, cache.dtype.itemsize, cache.kv_dtype)


_ids, _tokens = st.integers(0, 9), st.integers(0, 1)
ACTIONS = st.one_of(
    st.tuples(st.just("add"), st.lists(_tokens, min_size=1, max_size=40), st.booleans()),
    st.tuples(st.just("add like"), _ids, st.lists(_tokens, min_size=1, max_size=9)),
    st.tuples(st.just("append"), st.integers(1, 5), st.booleans()),
    st.tuples(st.just("append to"), st.dictionaries(_ids, st.integers(1, 40), min_size=1, max_size=3)),
    st.tuples(st.just("fork"), _ids),
    st.tuples(st.just("truncate"), _ids, st.floats(0, 1)),
    st.tuples(st.just("remove"), _ids),
)
"""Names of actions and their arguments; a sequence is meant by its place, modulo how many there are."""


def act_and_check(
    contexts: Contexts, history: list[tuple[Any, ...]], more: Callable[[Contexts], None] = lambda _: None
) -> None:
    """Do what a history says, and compare after every action; `more` compares something else."""
    contexts.add([0, 1, 0, 1, 0])
    for name, *arguments in history:
        ids = list(contexts.tokens)
        if name != "add" and not ids:
            continue
        _act(contexts, name, arguments, lambda which: ids[which % len(ids)])  # noqa: B023 - called at once
        if contexts.tokens:
            contexts.check()
            more(contexts)


def _act(contexts: Contexts, name: str, arguments: list[Any], named: Callable[[int], int]) -> None:
    match name, arguments:
        case "add", (prompt, with_cached_rows):
            contexts.add(prompt, with_cached_rows)
        case "add like", (which, own):
            contexts.add(contexts.tokens[named(which)] + own, with_cached_rows=False)
        case "append", (steps, same):
            for step in range(steps):
                contexts.append([step % 2 if same else row % 2 for row in range(len(contexts.tokens))])
        case "append to", (counts,):
            contexts.append_to({named(which): count for which, count in counts.items()})
        case "fork", (which,):
            contexts.fork(named(which))
        case "truncate", (which, share):
            sequence = named(which)
            contexts.truncate(sequence, max(1, round(share * len(contexts.tokens[sequence]))))
        case "cut", (which, count):
            sequence = named(which)
            contexts.truncate(sequence, max(1, len(contexts.tokens[sequence]) - count))
        case "remove", (which,):
            contexts.remove(named(which))
