"""Naive: softmax(Q K^T / sqrt d) V with PyTorch's own operators (section 4.1 of the paper)."""

from __future__ import annotations

import torch

from chunkbench.baselines.dense import MaskedSession, mask_beyond, tokens_to_read
from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.kernels.eight_bits import widened
from chunkbench.kv_dtype import KV_DTYPES


class NaiveSession(MaskedSession):
    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self._head_dim = inputs.point.head_dim
        self._scale = self._head_dim**-0.5

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        if self._kv_dtype == "same":
            self._attend(q, out, self._k, self._v, self._mask)
            return
        # One sequence after the other, so that its K and V in the compute type need little room.
        for row in range(len(q)):
            one = slice(row, row + 1)
            form = self._kv_dtype, self._head_dim, self._dtype
            k, v = (widened(part[one, :, : self._longest], *form) for part in (self._k, self._v))
            self._attend(q[one], out[one], k, v, None if self._mask is None else self._mask[one])

    def _attend(
        self, q: torch.Tensor, out: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> None:
        b, h_kv, _, d = k.shape
        # Query heads that share a KV head become rows of one matrix, so grouped heads need no copies of K and V.
        rows = q.view(b * h_kv, -1, d)
        held = self._longest
        tokens = tokens_to_read(k, held)
        scores = torch.bmm(rows, k.view(b * h_kv, -1, d)[:, :tokens].transpose(1, 2)).mul_(self._scale)
        if mask is not None:
            scores.view(b, h_kv, -1, tokens)[..., :held].add_(mask)
        mask_beyond(scores, held)
        torch.bmm(torch.softmax(scores, dim=-1), v.view(b * h_kv, -1, d)[:, :tokens], out=out.view(b * h_kv, -1, d))


class Naive(Implementation):
    kv_dtypes = KV_DTYPES

    def availability(self, device: str) -> Answer:
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return NaiveSession(inputs)

    def package_version(self) -> str:
        return f"torch {torch.__version__}"
