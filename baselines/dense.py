"""Sessions whose K and V are contiguous for each sequence, for libraries without block tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chunkbench.bench.contract import Inputs, Session
from chunkbench.draft import parents_of
from chunkbench.kernels.eight_bits import narrow
from chunkbench.kernels.query_rows import seen_in_draft
from chunkbench.kv_dtype import KvDtype

WORTH_A_MASK = 4
"""Largest quotient capacity / filled tokens of a buffer that is read as a whole. Up to this quotient, a masked product
over the whole buffer is faster than a copy of the filled tokens."""


def tokens_to_read(buffer: torch.Tensor, held: int) -> int:
    """Number of tokens that a matrix product should read of K or V `[.., capacity, d]`, of which `held` are filled.

    On a CPU, PyTorch's bfloat16 and float16 products first copy a slice of a longer buffer. That copy takes several
    times as long as the product (8x was measured). So if the buffer is not much longer, read all of it and mask the
    scores of the unfilled tokens. The unfilled tokens must hold finite values.
    """
    capacity = buffer.shape[-2]
    copies = buffer.device.type == "cpu" and buffer.dtype != torch.float32
    return capacity if copies and capacity <= WORTH_A_MASK * held else held


def mask_beyond(scores: torch.Tensor, held: int) -> None:
    """Set the scores `[.., tokens]` of the tokens at position `held` and later to -inf, in place."""
    if scores.shape[-1] > held:
        scores[..., held:] = -torch.inf


class DenseSession(Session):
    """A session with a private copy of every sequence's K and V, and room for all completion tokens. Subclasses add
    `decode`.

    `_k` and `_v` are `[b, kv_heads, capacity, d]`. With `token_major` they are `[b, capacity, kv_heads, d]`, the layout
    of FlashAttention and xformers. In 8 bits the last dimension is that of `eight_bits.narrow`. `_lengths` `[b]` int32
    holds the number of tokens of every sequence. It exists with `token_major`, or if sequences differ in length. It
    changes in place and keeps its address.
    """

    def __init__(self, inputs: Inputs, token_major: bool = False) -> None:
        point = inputs.point
        b, h_kv = point.batch_size, point.kv_heads
        self._kv_dtype: KvDtype = point.kv_dtype
        self._dtype: torch.dtype = getattr(torch, point.dtype)
        firsts = [narrow(first, self._kv_dtype) for first in inputs.keys_values(0, 0, 1)]
        shape = (b, inputs.capacity, h_kv) if token_major else (b, h_kv, inputs.capacity)
        self._k, self._v = (first.new_empty((*shape, first.shape[-1])) for first in firsts)
        self._by_token = [x if token_major else x.transpose(1, 2) for x in (self._k, self._v)]
        for row, prompt in enumerate(inputs.prompts):
            for target, values in zip(self._by_token, inputs.keys_values(row, 0, len(prompt)), strict=True):
                target[row, : len(prompt)] = narrow(values, self._kv_dtype)
                # Zeros, because kernels read unfilled tokens under a weight of zero, and uninitialised memory can be
                # NaN.
                target[row, len(prompt) :] = 0
        self._prompts = torch.tensor([len(prompt) for prompt in inputs.prompts], dtype=torch.int32)
        self._ragged = bool((self._prompts != self._prompts[0]).any())
        self._token_major = token_major
        self._rows = torch.arange(b, device=self._k.device)
        self._lengths = self._prompts.to(self._k.device, copy=True)
        self._longest = int(self._prompts.max())

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        by_token_k, by_token_v = self._by_token
        k, v = narrow(k, self._kv_dtype), narrow(v, self._kv_dtype)
        if self._ragged:
            positions = self._lengths.long()
            by_token_k[self._rows, positions], by_token_v[self._rows, positions] = k, v
        else:
            by_token_k[:, self._longest], by_token_v[:, self._longest] = k, v
        if self._ragged or self._token_major:  # saves 30 us if all lengths are equal and no kernel gets them
            self._lengths += 1
        self._longest += 1

    def rewind(self) -> None:
        self._lengths.copy_(self._prompts)
        self._longest = int(self._prompts.max())

    def kv_bytes(self) -> int:
        """Bytes of K and V, including the room that contiguous caches reserve for completion tokens."""
        return self._k.nbytes + self._v.nbytes


class MaskedSession(DenseSession):
    """A session with head-major K and V, and a mask for kernels that take no lengths. Subclasses add `decode`.

    `_mask` is 0 where a query row reads a token and -inf elsewhere: `[b, 1, 1, longest]`, or with several query rows
    `[b, 1, query_rows * group, longest]`. b is 1 if all lengths are equal. It is None if all rows read all tokens.
    """

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        point = inputs.point
        self._query_rows, self._group = point.query_rows, point.heads // point.kv_heads
        self._unseen: torch.Tensor | None = None  # [query_rows, query_rows + 1], by tokens that follow a token
        if self._query_rows > 1:
            unseen = torch.from_numpy(~seen_in_draft(self._query_rows, parents_of(point.draft))).flip(1)
            self._unseen = torch.nn.functional.pad(unseen, (0, 1)).to(self._k.device)
        self._mask: torch.Tensor | None = None
        self.plan()

    def plan(self) -> None:
        """Update the mask if sequences differ in length, or have several query rows."""
        if not self._ragged and self._unseen is None:
            return
        positions = torch.arange(self._longest, device=self._k.device)
        lengths = self._lengths[:, None] if self._ragged else torch.tensor([[self._longest]], device=self._k.device)
        unread = (positions >= lengths)[:, None]
        if self._unseen is not None:
            behind = (lengths - 1 - positions).clamp(0, self._query_rows)
            unread = (unread | self._unseen[:, behind].transpose(0, 1)).repeat_interleave(self._group, 1)
        mask = torch.zeros(unread.shape, dtype=self._dtype, device=self._k.device)
        self._mask = mask.masked_fill_(unread, float("-inf"))[:, None]

    def rewind(self) -> None:
        super().rewind()
        self.plan()
