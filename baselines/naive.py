"""Naive: softmax(Q K^T / sqrt d) V with PyTorch's own operators (section 4.1 of the paper)."""

from __future__ import annotations

import torch

from chunkbench.baselines.dense import MaskedSession, mask_beyond, tokens_to_read
from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session


class NaiveSession(MaskedSession):
    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self._scale = inputs.point.head_dim**-0.5

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        b, h_kv, _, d = self._k.shape
        # Query heads that share a KV head become rows of one matrix, so grouped heads need no copies of K and V.
        rows = q.view(b * h_kv, -1, d)
        held = self._longest
        tokens = tokens_to_read(self._k, held)
        k = self._k.view(b * h_kv, -1, d)[:, :tokens]
        v = self._v.view(b * h_kv, -1, d)[:, :tokens]
        scores = torch.bmm(rows, k.transpose(1, 2)).mul_(self._scale)
        if self._mask is not None:
            scores.view(b, h_kv, -1, tokens)[..., :held].add_(self._mask)
        mask_beyond(scores, held)
        torch.bmm(torch.softmax(scores, dim=-1), v, out=out.view(b * h_kv, -1, d))


class Naive(Implementation):
    def availability(self, device: str) -> Answer:
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return NaiveSession(inputs)

    def package_version(self) -> str:
        return f"torch {torch.__version__}"
