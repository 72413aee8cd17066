"""Caches of latents: what they expand, and when copies go."""

from __future__ import annotations

import pytest
import torch

from chunkbench.attention.latent import MixedAttention, both_parts
from chunkbench.kernels import cpu
from chunkbench.kernels.latent import Projections
from chunkbench.kernels.reference import attention
from chunkbench.latent import LatentShape

SHAPE = LatentShape(kv_rank=32, rope=16, nope=16, v=48)
HEADS, CHUNK = 3, 16
pytestmark = pytest.mark.skipif(cpu.native() is None, reason=cpu.why_missing() or "")


class Cache:
    """A cache beside the latents of each of its sequences."""

    def __init__(self, expand_from: float = 2) -> None:
        torch.manual_seed(0)
        self.w_uk, self.w_uv = torch.randn(HEADS, SHAPE.nope, SHAPE.kv_rank), torch.randn(HEADS, SHAPE.v, SHAPE.kv_rank)
        self.projections = Projections(SHAPE, self.w_uk / 6, self.w_uv / 6)
        self.mixed = MixedAttention(self.projections, CHUNK, expand_from)
        self.shared = torch.randn(3 * CHUNK, SHAPE.width)
        self.prefix = 0  # token ids of the shared chunks begin here
        self.latents: dict[int, torch.Tensor] = {}

    def add(self, own: int) -> int:
        """A sequence of three shared chunks and tokens of its own."""
        tokens = [
            *range(self.prefix, self.prefix + 3 * CHUNK),
            *(1000 * len(self.latents) + 1000 + i for i in range(own)),
        ]
        latents = torch.cat([self.shared, torch.randn(own, SHAPE.width)])
        sequence = self.mixed.add_sequence(tokens, latents[self.mixed.tree.match(tokens) :])
        self.latents[sequence] = latents
        return sequence

    def leave(self, sequence: int) -> None:
        self.mixed.leave(sequence)
        del self.latents[sequence]

    def copies(self) -> int:
        """Plan, check attention against float64, and return the number of expanded chunks."""
        self.mixed.plan()
        q = torch.randn(len(self.latents), HEADS, SHAPE.key_dim)
        flat = torch.full((len(q) * HEADS * (SHAPE.v + SHAPE.kv_rank),), float("nan"))
        self.mixed.decode(torch.cat([q.flatten(), self.projections.absorb(q).flatten()]), flat)
        out, latent = both_parts(flat, (len(q), HEADS), SHAPE.v, SHAPE.kv_rank)
        got = out.double() + torch.einsum("bhk,hvk->bhv", latent.double(), self.w_uv.double() / 6)
        for row, latents in enumerate(self.latents.values()):
            c, rotary = latents[:, : SHAPE.kv_rank].double(), latents[:, None, SHAPE.kv_rank :].double()
            k = torch.einsum("nk,hdk->nhd", c, self.w_uk.double() / 6)
            k = torch.cat([k, rotary.expand(-1, HEADS, -1)], -1)
            expected = attention(q[row], k, torch.einsum("nk,hdk->nhd", c, self.w_uv.double() / 6))
            torch.testing.assert_close(got[row], expected, rtol=1e-4, atol=1e-5)
        expanded = 4 * CHUNK * HEADS * (SHAPE.key_dim + SHAPE.v)
        latent_bytes = 4 * CHUNK * SHAPE.width * self.mixed.tree.live_chunks
        copies, rest = divmod(self.mixed.kv_bytes - latent_bytes, expanded)
        assert rest == 0
        return copies


def test_copies_live_as_long_as_enough_sequences_share_a_chunk() -> None:
    cache = Cache()
    first = cache.add(5)
    assert cache.copies() == 0  # nobody shares
    second, third = cache.add(0), cache.add(40)
    assert cache.copies() == 3
    cache.mixed.append([1, 2, 3], new := torch.randn(3, SHAPE.width))
    for row, sequence in enumerate((first, second, third)):
        cache.latents[sequence] = torch.cat([cache.latents[sequence], new[row : row + 1]])
    assert cache.copies() == 3
    cache.mixed.truncate(third, 2 * CHUNK)  # keeps two of the shared chunks
    cache.latents[third] = cache.latents[third][: 2 * CHUNK]
    assert cache.copies() == 3
    cache.leave(second)
    assert cache.copies() == 2
    cache.leave(first)
    assert cache.copies() == 0
    cache.add(1)
    assert cache.copies() == 2  # the room of the first copies is used again


def test_it_expands_from_as_many_sequences_as_it_is_told() -> None:
    cache = Cache(expand_from=2.4)
    cache.add(1)
    cache.add(1)
    assert cache.copies() == 0
    cache.add(1)
    assert cache.copies() == 3


def test_a_chunk_that_gets_other_tokens_loses_its_copy() -> None:
    cache = Cache()
    first, second = cache.add(0), cache.add(0)
    assert cache.copies() == 3
    for sequence in (first, second):
        cache.leave(sequence)
    cache.prefix, cache.shared = 500, torch.randn_like(cache.shared)
    cache.add(2)  # in the chunks of the others, before any plan
    cache.add(2)
    assert cache.copies() == 3
    third = next(iter(cache.latents))
    cache.leave(next(reversed(cache.latents)))
    cache.mixed.truncate(third, CHUNK + 3)  # cut and filled again, before any plan
    cache.latents[third] = torch.cat([cache.latents[third][: CHUNK + 3], torch.randn(CHUNK - 3, SHAPE.width)])
    for token in range(CHUNK - 3):
        cache.mixed.append([7000 + token], cache.latents[third][CHUNK + 3 + token][None])
    assert cache.copies() == 0


def test_tensors_of_another_size_are_refused() -> None:
    cache = Cache()
    cache.add(1)
    cache.copies()
    with pytest.raises(ValueError, match="numbers"):
        cache.mixed.decode(torch.zeros(5), torch.zeros(5))
