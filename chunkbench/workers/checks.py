"""Checks against float64: what `max_error` is made of."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from chunkbench.kernels.reference import attention
from chunkbench.workers.inputs import PooledInputs

_ELEMENTS, _SAMPLE = 1 << 24, 1 << 19
"""K and V elements that one check converts to float64 at most: 128 MB, or what takes some milliseconds."""


@dataclass(frozen=True)
class Check:
    """Queries of one check and the float64 outputs expected for a subset of sequences and KV heads."""

    q: torch.Tensor
    sequences: tuple[int, ...]
    heads: tuple[int, ...]
    """Query heads that are compared, whole groups of a KV head; columns, of a module's output."""
    expected: torch.Tensor
    """`[sequences, heads, head_dim]` float64, or `[sequences, columns]`."""

    def max_error(self, out: torch.Tensor) -> float:
        """Largest absolute error over the largest absolute reference value; infinite where out is not finite."""
        got = out[list(self.sequences)][:, list(self.heads)].to("cpu", torch.float64)
        # Every row has to be written, not only those compared: the harness poisons out with NaN before the call.
        if not torch.isfinite(out).all():
            return float("inf")
        return float((got - self.expected).abs().max() / self.expected.abs().max())


def make_check(inputs: PooledInputs, steps: int, nonce: int, sample: bool = False) -> Check:
    """A check of the state after `steps` completion tokens, with queries of its own.

    Where a point is too large for one check, or a `sample` is enough, `nonce` draws the sequences and heads.
    """
    point = inputs.point
    rng = random.Random(f"check {nonce}")
    most = _SAMPLE if sample else _ELEMENTS
    per_head = 2 * inputs.capacity * point.head_dim
    kv_heads = rng.sample(range(point.kv_heads), min(point.kv_heads, max(1, min(8, most // per_head))))
    fits = max(1, most // (per_head * len(kv_heads)))
    sequences = sorted(rng.sample(range(point.batch_size), min(point.batch_size, fits)))
    if point.kv_heads * point.batch_size * per_head <= most:
        kv_heads = list(range(point.kv_heads))
        sequences = list(range(point.batch_size))
    group = point.heads // point.kv_heads
    heads = [kv * group + i for kv in sorted(kv_heads) for i in range(group)]
    q = inputs.queries(nonce)
    rows = q.reshape(point.batch_size, -1)[:, : point.heads * point.head_dim].reshape(-1, point.heads, point.head_dim)
    expected = []
    for sequence in sequences:
        k, v = inputs.context(sequence, steps)
        chosen = sorted(kv_heads)
        expected.append(attention(rows[sequence, heads].cpu(), k[:, chosen].cpu(), v[:, chosen].cpu()))
    return Check(q, tuple(sequences), tuple(heads), torch.stack(expected))
