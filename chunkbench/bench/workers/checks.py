"""Checks outputs against a float64 reference, which gives `max_error`."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from chunkbench.attention.windows import HeadPolicy
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.draft import parents_of
from chunkbench.kernels.eight_bits import stored
from chunkbench.kernels.query_rows import seen_in_draft
from chunkbench.kernels.reference import attention, head_attention

_ELEMENTS, _SAMPLE = 1 << 24, 1 << 19
"""Limits for the number of K and V elements that a check converts to float64. `_ELEMENTS` (128 MB) is for a check
without `sample`. `_SAMPLE` (a few milliseconds) is for a check with `sample`."""


@dataclass(frozen=True)
class Check:
    """The queries of one check, and the expected outputs of some sequences and KV heads in float64."""

    q: torch.Tensor
    rows: tuple[int, ...]
    """Indices of the compared query rows."""
    heads: tuple[int, ...]
    """Indices of the compared query heads: all query heads of the chosen KV heads. For a module: indices of output
    columns."""
    expected: torch.Tensor
    """The expected output in float64: `[rows, heads, head_dim]`, or `[rows, columns]` for a module."""
    of_all: torch.Tensor | None = None
    """Outputs of attention over all tokens, before K and V are rounded, in the shape of `expected`. None if `expected`
    is just that."""

    def max_error(self, out: torch.Tensor) -> float:
        """Largest absolute error divided by the largest absolute reference value; infinite if `out` is not finite."""
        compared = self._compared(out)
        # The worker fills out with NaN before the call, so this finds a row that was not written, compared or not.
        if not torch.isfinite(out).all():
            return float("inf")
        return float((compared - self.expected).abs().max() / self.expected.abs().max())

    def deviation(self, out: torch.Tensor) -> float | None:
        """Norm of (`out` - `of_all`), divided by the norm of `of_all`. None without `of_all`."""
        if self.of_all is None:
            return None
        return float((self._compared(out) - self.of_all).norm() / self.of_all.norm())

    def _compared(self, out: torch.Tensor) -> torch.Tensor:
        return out[list(self.rows)][:, list(self.heads)].to("cpu", torch.float64)


def sizes_of_check(
    chance: random.Random, heads: int, batch: int, head_numbers: int, sample: bool
) -> tuple[list[int], list[int]]:
    """Heads and sequences of which K and V are converted to float64. `head_numbers`: numbers of K and V of a head of a
    sequence."""
    limit = _SAMPLE if sample else _ELEMENTS
    chosen = chance.sample(range(heads), min(heads, max(1, min(8, limit // head_numbers))))
    fits = max(1, limit // (head_numbers * len(chosen)))
    sequences = sorted(chance.sample(range(batch), min(batch, fits)))
    if heads * batch * head_numbers <= limit:
        return list(range(heads)), list(range(batch))
    return sorted(chosen), sequences


def make_check(
    inputs: PooledInputs,
    steps: int,
    nonce: int,
    sample: bool = False,
    losses: tuple[HeadPolicy, slice] | None = None,
) -> Check:
    """Make a check: random queries, and the expected output after `steps` completion tokens.

    `losses`: the policy that says which heads lose tokens, and the positions of the lost tokens in each sequence. None
    if every head sees all tokens. `nonce` seeds the queries. Only a part of a large point is checked, and `sample`
    makes this part smaller. `nonce` also selects the sequences and heads of the part.
    """
    point = inputs.point
    per_head = 2 * inputs.capacity * point.head_dim
    rng = random.Random(f"check {nonce}")
    kv_heads, sequences = sizes_of_check(rng, point.kv_heads, point.batch_size, per_head, sample)
    group = point.heads // point.kv_heads
    heads = [kv * group + i for kv in kv_heads for i in range(group)]
    q = inputs.queries(nonce)
    rows = q.reshape(point.rows, -1)[:, : point.heads * point.head_dim].reshape(-1, point.heads, point.head_dim)
    compared = [[sequence * point.query_rows + row for row in range(point.query_rows)] for sequence in sequences]
    expected, of_all = [], []
    for sequence, of_sequence in zip(sequences, compared, strict=True):
        k, v = inputs.context(sequence, steps)
        taken = rows[of_sequence][:, heads].cpu(), k[:, kv_heads].cpu(), v[:, kv_heads].cpu()
        seen = _seen(point, len(k))
        of_all.append(attention(*taken, seen=seen))
        if losses is None and point.kv_dtype == "same":
            continue
        rounded = taken[0], stored(taken[1], point.kv_dtype), stored(taken[2], point.kv_dtype)
        if losses is not None:
            policy, lost = losses
            full = [policy.full[0][head] for head in kv_heads]
            expected.append(head_attention(rounded[0][0], *rounded[1:], full, lost, policy.compensation)[None])
        else:
            expected.append(attention(*rounded, seen=seen))
    everything, places = torch.cat(of_all), tuple(row for each in compared for row in each)
    if not expected:
        return Check(q, places, tuple(heads), everything)
    return Check(q, places, tuple(heads), torch.cat(expected), everything)


def _seen(point: AttentionPoint, tokens: int) -> torch.Tensor | None:
    """`[query_rows, tokens]`: which tokens each query row of a sequence reads; None if all."""
    rows = point.query_rows
    if rows == 1:
        return None
    seen = torch.ones(rows, tokens, dtype=torch.bool)
    seen[:, tokens - rows :] = torch.from_numpy(seen_in_draft(rows, parents_of(point.draft)))
    return seen
