"""Caches of latents used as by a model, against attention over expanded K and V in float64."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import torch

from chunkbench.attention.latent import LatentAttention, LatentKernel, MixedAttention, both_parts
from chunkbench.kernels.latent import Projections
from chunkbench.kernels.planners import Planner
from chunkbench.kernels.reference import attention
from chunkbench.latent import LatentShape
from tests.attention.contexts import Contexts


class LatentContexts(Contexts):
    """The K of a token is its latents, those of a single KV head. Its V is not used."""

    def __init__(
        self,
        chance: Random,
        heads: int,
        chunk: int,
        dtype: torch.dtype,
        planner: Planner,
        seed: int,
        kernel: LatentKernel = "native",
        device: str = "cpu",
    ) -> None:
        """A drawn shape, in one of the forms of these caches: absorbed, expanded or both."""
        if kernel == "triton":
            rank, rope, nope, v = 64 << chance.randint(0, 1), 16 << chance.randint(0, 2), 64, 64
        else:
            rank, rope, nope, v = (16 * chance.randint(1, 4) for _ in range(4))
        self.shape = shape = LatentShape(kv_rank=rank, rope=rope, nope=nope, v=v)
        looks: Any = SimpleNamespace(
            layers=1, heads=heads, kv_heads=1, head_dim=shape.width, dtype=dtype, device=torch.device(device)
        )
        super().__init__(looks, seed=seed)
        self.w_uk, self.w_uv = (self.normal(heads, size, rank) / rank**0.5 for size in (nope, v))
        projections = Projections(shape, self.w_uk, self.w_uv)
        share, expanded = chance.random() < 0.7, chance.random() < 0.5
        makes = (
            lambda: LatentAttention(projections, chunk, share, planner, expanded, kernel),
            lambda: MixedAttention(projections, chunk, chance.uniform(1, 4), kernel),
        )
        self.cache: LatentAttention = chance.choice(makes)()

    def add(self, tokens: Any, with_cached_rows: bool = True) -> int:
        kv = self.rows(tokens)
        sequence = self.cache.add_sequence(tokens, kv[0, 0, self.cache.tree.match(tokens) :, 0])
        self.tokens[sequence], self.kv[sequence] = list(tokens), kv
        return sequence

    def append(self, tokens: Any) -> None:
        added = []
        for sequence, token in zip(self.tokens, tokens, strict=True):
            self.tokens[sequence].append(token)
            added.append(self.rows(self.tokens[sequence], len(self.tokens[sequence]) - 1))
            self.kv[sequence] = torch.cat([self.kv[sequence], added[-1]], 2)
        self.cache.append(tokens, torch.cat(added, 2)[0, 0, :, 0])

    def append_to(self, counts: dict[int, int]) -> None:
        """To all sequences, which is what these caches can do."""
        for step in range(max(counts.values())):
            self.append([step % 2] * len(self.tokens))

    def fork(self, sequence: int) -> int:
        return self.add(self.tokens[sequence])

    def truncate(self, sequence: int, length: int) -> None:
        self.cache.truncate(sequence, length)
        self.tokens[sequence], self.kv[sequence] = self.tokens[sequence][:length], self.kv[sequence][:, :, :length]

    def remove(self, sequence: int) -> None:
        self.cache.leave(sequence)
        del self.tokens[sequence], self.kv[sequence]

    def check(self, scale: float = 1.0, times: float = 1.0) -> None:
        assert self.cache.tree.sequences == list(self.tokens)
        q = self.normal(len(self.tokens), self.attention.heads, self.shape.key_dim)
        expected = []
        for row, kv in zip(q, self.kv.values(), strict=True):
            c, rotary = kv[0, 0, :, 0].double().split([self.shape.kv_rank, self.shape.rope], -1)
            k = torch.einsum("nk,hdk->nhd", c, self.w_uk.double())
            k = torch.cat([k, rotary[:, None].expand(-1, len(row), -1)], -1)
            expected.append(attention(row, k, torch.einsum("nk,hvk->nhv", c, self.w_uv.double())))
        self.compare({type(self.cache).__name__: self.decoded(q)}, torch.stack(expected), str(self.shape), times)

    def decoded(self, q: torch.Tensor) -> torch.Tensor:
        """Attention of queries of the expanded form, in float64 behind the kernel."""
        cache, shape, rows = self.cache, self.shape, (len(q), self.attention.heads)
        absorbed = cache.projections.absorb(q)
        cache.plan()
        expanded, latent = q.new_zeros(*rows, shape.v), q.new_zeros(*rows, shape.kv_rank)
        if isinstance(cache, MixedAttention):
            out = torch.cat([expanded.flatten(), latent.flatten()])
            cache.decode(torch.cat([q.flatten(), absorbed.flatten()]), out)
            expanded, latent = both_parts(out, rows, shape.v, shape.kv_rank)
        elif cache.expanded:
            cache.decode(q, expanded)
        else:
            cache.decode(absorbed, latent)
        return expanded.double() + torch.einsum("bhk,hvk->bhv", latent.double(), self.w_uv.double())
