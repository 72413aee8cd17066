"""Shared-prefix matmul: what a user could write in ten lines of PyTorch, and a hard baseline to beat.

It computes one matrix product over the tokens that the whole batch shares, and a batched product over each sequence's
private tokens. Log-sum-exp merges the two results. The session finds the common prefix from the token ids. It handles
one prefix for the whole batch, not a tree of prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chunkbench.attention.tokens import alike
from chunkbench.baselines.dense import mask_beyond, tokens_to_read
from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint


class SharedPrefixMatmulSession(Session):
    def __init__(self, inputs: Inputs) -> None:
        point = inputs.point
        self._scale = point.head_dim**-0.5
        shared = min(alike(inputs.prompts[0], prompt) for prompt in inputs.prompts)
        self._prompt = len(inputs.prompts[0]) - shared
        k, v = inputs.keys_values(0, 0, shared)
        self._shared_k = k.transpose(0, 1).contiguous()  # [kv_heads, shared, d]
        self._shared_v = v.transpose(0, 1).contiguous()
        shape = (point.batch_size, point.kv_heads, inputs.capacity - shared, point.head_dim)
        # Zeros, because decode reads unfilled tokens under a mask, and uninitialised memory can be NaN.
        self._k, self._v = k.new_zeros(shape), v.new_zeros(shape)
        for row, prompt in enumerate(inputs.prompts):
            k, v = inputs.keys_values(row, shared, len(prompt))
            self._k[row, :, : self._prompt] = k.transpose(0, 1)
            self._v[row, :, : self._prompt] = v.transpose(0, 1)
        self._private = self._prompt

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._k[:, :, self._private], self._v[:, :, self._private] = k, v
        self._private += 1

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        b, h_kv, capacity, d = self._k.shape
        rows = q.view(b * h_kv, -1, d)
        tokens = tokens_to_read(self._k, self._private)
        k = self._k.view(b * h_kv, capacity, d)[:, :tokens]
        v = self._v.view(b * h_kv, capacity, d)[:, :tokens]
        private, private_lse = _attend(rows, k, v, self._private, self._scale)
        if self._shared_k.shape[1] == 0:
            out.view(private.shape).copy_(private)
            return
        by_head = q.view(b, h_kv, -1, d).transpose(0, 1).reshape(h_kv, -1, d)
        shared, shared_lse = _attend(by_head, self._shared_k, self._shared_v, self._shared_k.shape[1], self._scale)
        shared = shared.view(h_kv, b, -1, d).transpose(0, 1)
        weight = torch.sigmoid(shared_lse.view(h_kv, b, -1).transpose(0, 1) - private_lse.view(b, h_kv, -1))
        # Merge in float32: for a weight near 1, bfloat16 rounding can be larger than 1 - weight.
        target = out.view(b, h_kv, -1, d)
        merged = target if out.dtype == torch.float32 else None
        merged = torch.lerp(private.view(b, h_kv, -1, d).float(), shared.float(), weight[..., None], out=merged)
        if merged is not target:
            target.copy_(merged)

    def rewind(self) -> None:
        self._private = self._prompt

    def kv_bytes(self) -> int:
        return self._shared_k.nbytes + self._shared_v.nbytes + self._k.nbytes + self._v.nbytes


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, held: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q `[batch, rows, d]` over the first `held` tokens of k, v `[batch, n, d]`.

    Also returns the log-sum-exp of the scores `[batch, rows]`.
    """
    scores = torch.bmm(q, k.transpose(1, 2)).float().mul_(scale)
    mask_beyond(scores, held)
    lse = torch.logsumexp(scores, dim=-1)
    probabilities = scores.sub_(lse[..., None]).exp_().to(v.dtype)
    return torch.bmm(probabilities, v), lse


class SharedPrefixMatmul(Implementation):
    shares_storage = True
    reads_shared_once = True

    def availability(self, device: str) -> Answer:
        return YES

    def supports(self, point: AttentionPoint) -> Answer:
        if not isinstance(point.n_p, int):
            return Answer(False, "Shared matmul takes no ragged prompts")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return SharedPrefixMatmulSession(inputs)

    def package_version(self) -> str:
        return f"torch {torch.__version__}"
