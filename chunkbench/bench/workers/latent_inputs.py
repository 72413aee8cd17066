"""Inputs and checks of latent attention (`chunkbench.latent`)."""

from __future__ import annotations

import random
from copy import copy
from dataclasses import dataclass

import torch

from chunkbench.attention.latent import both_parts
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.workers.checks import Check, sizes_of_check
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.kernels.latent import Projections
from chunkbench.kernels.reference import attention
from chunkbench.latent import LatentShape, QueryForm


class LatentInputs(PooledInputs):
    """The inputs of a point of latent attention. `keys_values` gives latents `[n, 1, kv_rank + rope]` as K; its V has
    no meaning.

    With `projections: timed` all implementations get q `[b, h, nope + rope]` and write `[b, h, v]`. Else the queries of
    an implementation are absorbed before its call and its outputs are projected after it:

    - `expanded`: q `[b, h, nope + rope]`, out `[b, h, v]`.
    - `absorbed`: q `[b, h, kv_rank + rope]`, out `[b, h, kv_rank]`.
    - `both`: both queries, one after the other in a flat tensor; out is such a tensor of both outputs, to be added.
    """

    form: QueryForm = "expanded"

    def __init__(self, point: AttentionPoint, seed: int) -> None:
        super().__init__(point, seed)
        assert point.latent is not None
        self.shape: LatentShape = point.latent
        heads, rank = point.heads, self.shape.kv_rank
        w_uk, w_uv = (
            self.weights(name, heads * n, rank) for name, n in (("uk", self.shape.nope), ("uv", self.shape.v))
        )
        self.w_uk, self.w_uv = w_uk.view(heads, -1, rank), w_uv.view(heads, -1, rank)
        self.projections = Projections(self.shape, self.w_uk, self.w_uv)

    @property
    def timed(self) -> bool:
        """Whether calls contain the projections."""
        return self.point.projections == "timed"

    def in_form(self, form: QueryForm) -> LatentInputs:
        """The same inputs, for an implementation that takes queries in this form."""
        other = copy(self)
        other.form = "expanded" if self.timed else form
        return other

    def queries(self, *purpose: int) -> torch.Tensor:
        q = self.draw_rows(self.point.heads * self.shape.key_dim, *purpose)
        q = q.view(-1, self.point.heads, self.shape.key_dim)
        if self.form == "expanded":
            return q
        absorbed = self.projections.absorb(q)
        return absorbed if self.form == "absorbed" else torch.cat([q.flatten(), absorbed.flatten()])

    def out_shape(self, implementation: str) -> tuple[int, ...]:
        rows = self.point.batch_size, self.point.heads
        width = {"expanded": self.shape.v, "absorbed": self.shape.kv_rank}
        if self.form == "both":
            return (rows[0] * rows[1] * sum(width.values()),)
        return *rows, width[self.form]


@dataclass(frozen=True)
class LatentCheck(Check):
    """A check whose outputs are projected in float64 before they are compared."""

    inputs: LatentInputs | None = None

    def _compared(self, out: torch.Tensor) -> torch.Tensor:
        assert self.inputs is not None
        shape, form = self.inputs.shape, self.inputs.form
        if form == "expanded":
            return super()._compared(out)
        rows = self.inputs.point.batch_size, self.inputs.point.heads
        expanded, latent = both_parts(out, rows, shape.v, shape.kv_rank) if form == "both" else (None, out)
        w_uv = self.inputs.w_uv[list(self.heads)].to("cpu", torch.float64)
        projected = torch.einsum("bhk,hvk->bhv", super()._compared(latent), w_uv)
        return projected if expanded is None else projected + super()._compared(expanded)


def make_latent_check(inputs: LatentInputs, steps: int, nonce: int, sample: bool) -> LatentCheck:
    """Make a check: random queries, and the output that the definition gives after `steps` completion tokens, for some
    sequences and query heads. Arguments: as for `checks.make_check`."""
    point, shape = inputs.point, inputs.shape
    chance = random.Random(f"check {nonce}")
    head_numbers = inputs.capacity * (shape.key_dim + shape.v)
    heads, sequences = sizes_of_check(chance, point.heads, point.batch_size, head_numbers, sample)
    plain = inputs.in_form("expanded").queries(nonce).cpu()
    w_uk, w_uv = (weights[heads].to("cpu", torch.float64) for weights in (inputs.w_uk, inputs.w_uv))
    expected = []
    for sequence in sequences:
        latents = inputs.context(sequence, steps)[0][:, 0].to("cpu", torch.float64)
        c, rotary = latents[:, : shape.kv_rank], latents[:, None, shape.kv_rank :].expand(-1, len(heads), -1)
        k = torch.cat([torch.einsum("nk,hdk->nhd", c, w_uk), rotary], -1)
        expected.append(attention(plain[sequence, heads], k, torch.einsum("nk,hdk->nhd", c, w_uv)))
    return LatentCheck(inputs.queries(nonce), tuple(sequences), tuple(heads), torch.stack(expected), inputs=inputs)
