"""Contiguous K/V `[b, kv_heads, capacity, d]`, one slice per sequence, for libraries without block tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch

from chunkbench.baselines.contract import Inputs, Session

WORTH_A_MASK = 4
"""Up to this ratio of capacity to held tokens, a masked product over the whole buffer is faster than a copy."""


def tokens_to_read(buffer: torch.Tensor, held: int) -> int:
    """How many tokens a matrix product should read of K or V `[.., capacity, d]`, of which `held` are filled.

    On a CPU, PyTorch's bfloat16 and float16 products first copy a slice of a longer buffer. That copy takes several
    times as long as the product (8x was measured). So if the buffer is not much longer, read all of it and mask the
    scores of the unfilled tokens. The unfilled tokens must hold finite values.
    """
    capacity = buffer.shape[-2]
    copies = buffer.device.type == "cpu" and buffer.dtype != torch.float32
    return capacity if copies and capacity <= WORTH_A_MASK * held else held


def mask_beyond(scores: torch.Tensor, held: int) -> None:
    """Set the scores `[.., tokens]` of all tokens from `held` on to -inf, in place."""
    if scores.shape[-1] > held:
        scores[..., held:] = -torch.inf


class DenseCache:
    """A private copy of every sequence's K and V, with room for all completion tokens.

    If sequences differ in length, `mask` `[b, 1, 1, longest]` is 0 where a token is held and -inf elsewhere; if all
    lengths are equal, it is None.
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
            # Zeros, because decode reads the unfilled tokens under the mask, and uninitialised memory can be NaN.
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
        """Update the mask; does nothing if all lengths are equal."""
        if self._ragged:
            positions = torch.arange(self.longest, device=self.k.device)
            beyond = positions[None, :] >= self._lengths[:, None]
            mask = torch.zeros(beyond.shape, dtype=self.k.dtype, device=self.k.device)
            self.mask = mask.masked_fill_(beyond, float("-inf"))[:, None, None, :]

    def rewind(self) -> None:
        """Remove all completion tokens and keep the prompts."""
        self._lengths = torch.tensor(self._prompt_lengths, device=self.k.device)
        self.longest = max(self._prompt_lengths)
        self.plan()

    def nbytes(self) -> int:
        """Bytes of K and V, including the room that contiguous caches reserve for completion tokens."""
        return self.k.nbytes + self.v.nbytes


class TokenMajorCache:
    """Contiguous K/V `[b, capacity, kv_heads, d]`, one slice per sequence: the layout of FlashAttention and xformers.

    `lengths` `[b]` int32 holds the number of tokens of every sequence. It changes in place and keeps its address.
    """

    def __init__(self, inputs: Inputs) -> None:
        point = inputs.point
        first_k, first_v = inputs.keys_values(0, 0, 1)
        shape = (point.batch_size, inputs.capacity, point.kv_heads, point.head_dim)
        # Zeros, because a kernel may multiply unfilled tokens by a weight of zero, and 0 * NaN is NaN.
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
            positions = self.lengths.long()
            self.k[self._rows, positions], self.v[self._rows, positions] = k, v
        else:
            self.k[:, self.longest], self.v[:, self.longest] = k, v
        self.lengths += 1
        self.longest += 1

    def plan(self) -> None:
        """Does nothing: `append` and `rewind` update the lengths."""

    def rewind(self) -> None:
        """Remove all completion tokens and keep the prompts."""
        self.lengths.copy_(self._prompts)
        self.longest = int(self._prompts.max())

    def nbytes(self) -> int:
        """Bytes of K and V, including the room for completion tokens."""
        return self.k.nbytes + self.v.nbytes


Cache = TypeVar("Cache", DenseCache, TokenMajorCache)


class DenseSession(Session, Generic[Cache]):
    """A session over one of these caches. Subclasses add `decode`."""

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
