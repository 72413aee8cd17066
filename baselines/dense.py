"""Contiguous K/V `[b, kv_heads, capacity, d]`, one slice per sequence: for libraries that know no blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch

from chunkbench.baselines.contract import Inputs, Session

WORTH_A_MASK = 4
"""So many times the tokens held may be multiplied with before a copy of those held costs less."""


def tokens_to_read(buffer: torch.Tensor, held: int) -> int:
    """How many tokens of K or V `[.., capacity, d]`, of which `held` are held, a product should read.

    On a CPU PyTorch's products of bfloat16 or float16 copy a slice of a longer buffer first, and that takes several
    times as long as the product (8x was measured). Where the buffer is not much longer, a user reads all of it and
    masks what is not held, which has to be finite.
    """
    capacity = buffer.shape[-2]
    copies = buffer.device.type == "cpu" and buffer.dtype != torch.float32
    return capacity if copies and capacity <= WORTH_A_MASK * held else held


def mask_beyond(scores: torch.Tensor, held: int) -> None:
    """Take tokens beyond those held out of scores `[.., tokens]`, in place."""
    if scores.shape[-1] > held:
        scores[..., held:] = -torch.inf


class DenseCache:
    """K and V of every sequence, held privately, with room for all completion tokens.

    Lengths may differ between sequences; then `mask` `[b, 1, 1, longest]` is 0 where a token is held and -inf
    elsewhere, otherwise it is None.
    """

    def __init__(self, inputs: Inputs) -> None:
        point = inputs.point
        b, h_kv, d = point.batch_size, point.kv_heads, point.head_dim
        first_k, first_v = inputs.keys_values(0, 0, 1)
        self.k = first_k.new_empty((b, h_kv, inputs.capacity, d))
        self.v = first_v.new_empty((b, h_kv, inputs.capacity, d))
        for row, prompt in enumerate(inputs.prompts):
            k, v = inputs.keys_values(row, 0, len(prompt))
            self.k[row, :, : len(prompt)] = k.transpose(0, 1)
            self.v[row, :, : len(prompt)] = v.transpose(0, 1)
            # Room that a sequence has not filled is read under the mask: garbage there could be NaN.
            self.k[row, :, len(prompt) :] = 0
            self.v[row, :, len(prompt) :] = 0
        self._prompt_lengths = [len(prompt) for prompt in inputs.prompts]
        self._lengths = torch.tensor(self._prompt_lengths, device=self.k.device)
        self._rows = torch.arange(b, device=self.k.device)
        self._ragged = len(set(self._prompt_lengths)) > 1
        self.longest = max(self._prompt_lengths)
        self.mask: torch.Tensor | None = None
        self.plan()

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write one token per sequence; k, v `[b, kv_heads, d]`."""
        if self._ragged:
            self.k[self._rows, :, self._lengths] = k
            self.v[self._rows, :, self._lengths] = v
            self._lengths += 1
        else:
            self.k[:, :, self.longest] = k
            self.v[:, :, self.longest] = v
        self.longest += 1

    def plan(self) -> None:
        """Bring the mask up to date; nothing to do when all lengths are equal."""
        if self._ragged:
            positions = torch.arange(self.longest, device=self.k.device)
            beyond = positions[None, :] >= self._lengths[:, None]
            mask = torch.zeros(beyond.shape, dtype=self.k.dtype, device=self.k.device)
            self.mask = mask.masked_fill_(beyond, float("-inf"))[:, None, None, :]

    def rewind(self) -> None:
        """Back to the prompts alone."""
        self._lengths = torch.tensor(self._prompt_lengths, device=self.k.device)
        self.longest = max(self._prompt_lengths)
        self.plan()

    def nbytes(self) -> int:
        """Bytes of K and V, the room for completion tokens included: contiguous caches reserve it."""
        return self.k.nbytes + self.v.nbytes


class TokenMajorCache:
    """Contiguous K/V `[b, capacity, kv_heads, d]`, one slice per sequence: the layout of FlashAttention and xformers.

    `lengths` `[b]` int32 are the tokens of every sequence, changed in place, so that they are at one address for good.
    """

    def __init__(self, inputs: Inputs) -> None:
        point = inputs.point
        first_k, first_v = inputs.keys_values(0, 0, 1)
        shape = (point.batch_size, inputs.capacity, point.kv_heads, point.head_dim)
        # Zeros: garbage in room that a sequence has not filled could be NaN, times a weight of zero.
        self.k, self.v = first_k.new_zeros(shape), first_v.new_zeros(shape)
        for row, prompt in enumerate(inputs.prompts):
            k, v = inputs.keys_values(row, 0, len(prompt))
            self.k[row, : len(prompt)], self.v[row, : len(prompt)] = k, v
        self._prompts = torch.tensor([len(prompt) for prompt in inputs.prompts], dtype=torch.int32)
        self.ragged = bool((self._prompts != self._prompts[0]).any())
        self._rows = torch.arange(point.batch_size, device=self.k.device)
        self.lengths = self._prompts.to(self.k.device, copy=True)
        self.longest = int(self._prompts.max())

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write one token per sequence; k, v `[b, kv_heads, d]`."""
        if self.ragged:
            places = self.lengths.long()
            self.k[self._rows, places], self.v[self._rows, places] = k, v
        else:
            self.k[:, self.longest], self.v[:, self.longest] = k, v
        self.lengths += 1
        self.longest += 1

    def plan(self) -> None:
        """Nothing to do: lengths are current at all times."""

    def rewind(self) -> None:
        """Back to the prompts alone."""
        self.lengths.copy_(self._prompts)
        self.longest = int(self._prompts.max())

    def nbytes(self) -> int:
        """Bytes of K and V, the room for completion tokens included."""
        return self.k.nbytes + self.v.nbytes


Cache = TypeVar("Cache", DenseCache, TokenMajorCache)


class DenseSession(Session, Generic[Cache]):
    """A session over one of these caches: all but the decode."""

    def __init__(self, cache: Cache) -> None:
        self._cache: Cache = cache

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._cache.append(k, v)

    def plan(self) -> None:
        self._cache.plan()

    def rewind(self) -> None:
        self._cache.rewind()

    def kv_bytes(self) -> int:
        return self._cache.nbytes()
