"""Attention results of queries (rows) that have read only a part of their context (section 3.2 of the ChunkAttention
paper).
"""

from __future__ import annotations

import torch
import torch.distributed as dist


class Running:
    """Partial results in float32. `outputs` `[rows, h, d]` are sums of weights times V. `stats` `[rows, h, 2]` are the
    largest score m and the sum of weights n. A weight is exp(scale (score - m)), with scale 1/sqrt(d).
    """

    def __init__(self, rows: int, heads: int, head_dim: int, device: str = "cpu") -> None:
        self.outputs = torch.empty(rows, heads, head_dim, device=device)
        self.stats = torch.empty(rows, heads, 2, device=device)
        self._scale = head_dim**-0.5
        self.reset()

    def reset(self) -> None:
        """Start again, with no tokens read."""
        self.outputs.zero_()
        self.stats.zero_()[..., 0] = -torch.inf

    def add(self, rows: slice, outputs: torch.Tensor, log_sums: torch.Tensor) -> None:
        """Add attention over a further part of the context: outputs `[n, h, d]` and log-sum-exp `[n, h]` of some
        rows.
        """
        total, stats = self.outputs[rows], self.stats[rows]
        peaks, sums = stats[..., 0], stats[..., 1]
        others = log_sums / self._scale
        peak = torch.maximum(peaks, others)
        own_share, share = ((self._scale * (part - peak)).exp_() for part in (peaks, others))
        total.mul_(own_share.unsqueeze(-1)).addcmul_(outputs.to(total.dtype), share.unsqueeze(-1))
        sums.mul_(own_share).add_(share)
        peaks.copy_(peak)

    def merge(self) -> None:
        """Merge the results of all ranks, which must hold the same rows, with three all-reduces (tree attention,
        2408.04093).
        """
        peaks, sums = (part.clone(memory_format=torch.contiguous_format) for part in self.stats.unbind(-1))
        peak = peaks.clone()
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        share = (self._scale * (peaks - peak)).exp_()
        sums.mul_(share)
        self.outputs.mul_(share.unsqueeze(-1))
        dist.all_reduce(sums)
        dist.all_reduce(self.outputs)
        torch.stack([peak, sums], -1, out=self.stats)

    def finish(self) -> torch.Tensor:
        """Divide `outputs` by the sums, and return the attention of all rows `[rows, h, d]`. NaN for a row that has
        read nothing.
        """
        return self.outputs.div_(self.stats[..., 1:])
