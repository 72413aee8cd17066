"""Merges partial attention results over parts of a context (section 3.2 of the paper, the fold of O, m, n)."""

from __future__ import annotations

import torch

FLOAT32_MIN = torch.finfo(torch.float32).min
"""Replaces a maximum of -inf, so that exp(score - maximum) is 0 and not NaN."""


class Partials:
    """Partial results: one entry for each part of a context and each sequence that covers the part.

    `rows` `[P]`: the row (sequence) of each entry. The other arrays are float32. `peaks` `[P, h]`: the largest score m.
    `sums` `[P, h]`: n = sum of exp(score - m). `outputs` `[P, h, d]`: O = sum of exp(score - m) v. `reset` keeps memory
    that is large enough, because new memory costs more time than the merge.
    """

    def __init__(self, heads: int, head_dim: int, device: torch.device) -> None:
        self.heads = heads
        self.head_dim = head_dim
        self.rows = torch.empty(0, dtype=torch.int64, device=device)
        self._entries = torch.empty(0, device=device)
        self.reset(self.rows, 0)

    def reset(self, rows: torch.Tensor, batch: int) -> None:
        """Make room for one entry for each element of `rows` `[P]`. An element is a row, 0..batch-1, and each row
        occurs at least once."""
        count, heads, dim = len(rows), self.heads, self.head_dim
        needed = (count + batch) * heads * (dim + 2)
        if len(self._entries) < needed:
            self._entries = torch.empty(needed + needed // 8, device=rows.device)
        sizes = [n * heads * width for n in (count, batch) for width in (dim, 1, 1)]
        outputs, peaks, sums, output, peak, total = self._entries[:needed].split(sizes)
        self.rows = rows
        self.outputs = outputs.view(count, heads, dim)
        self.peaks = peaks.view(count, heads)
        self.sums = sums.view(count, heads)
        self._row_of_peak = rows[:, None].expand(count, heads).contiguous()
        self._output = output.view(batch, heads, dim)
        self._peak = peak.view(batch, heads)
        self._sum = total.view(batch, heads)

    def merge(self, out: torch.Tensor) -> None:
        """Fold all entries of each row together and write O / n to out `[b, h, d]`. Overwrites the entries."""
        peak = self._peak.fill_(FLOAT32_MIN).scatter_reduce_(0, self._row_of_peak, self.peaks, "amax")
        weights = self.peaks.sub_(peak.index_select(0, self.rows)).exp_()
        total = self._sum.zero_().index_add_(0, self.rows, self.sums.mul_(weights))
        output = self._output.zero_().index_add_(0, self.rows, self.outputs.mul_(weights.unsqueeze(-1)))
        out.copy_(output.div_(total.unsqueeze(-1)))
