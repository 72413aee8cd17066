"""Checks of a decoder layer's modules against float64."""

from __future__ import annotations

import random

import torch

from chunkbench.bench.workers.checks import Check, make_check
from chunkbench.workloads.modules.inputs import ModulesInputs

_SEQUENCES, _COLUMNS = 4, 256
"""The largest number of sequences and columns of an output that a check compares."""
_ROWS = 1024
"""Rows of a weight that are converted to float64 at once."""


def make_module_check(inputs: ModulesInputs, module: str, nonce: int) -> Check:
    """Make a check that compares `module` with float64 on new hidden states. `nonce` selects the compared sequences and
    columns.
    """
    if module == "self_attention":
        return make_check(inputs, 1, nonce)
    shape = inputs.shape
    rng = random.Random(f"check {nonce}")
    _, width = inputs.out_shape(module)
    sequences = sorted(rng.sample(range(inputs.point.batch_size), min(_SEQUENCES, inputs.point.batch_size)))
    columns = sorted(rng.sample(range(width), min(_COLUMNS, width)))
    q = inputs.queries(nonce)
    x = q[sequences, : shape.hidden_size].to("cpu", torch.float64)
    if module == "qkv_projection":
        last = inputs.weights(module, shape.qkv_size, shape.hidden_size, columns)
    else:
        gate, up = (_product(inputs, name, x, shape.intermediate_size) for name in ("gate", "up"))
        x = torch.nn.functional.silu(gate) * up
        last = inputs.weights("down", shape.hidden_size, shape.intermediate_size, columns)
    expected = x @ last.to("cpu", torch.float64).t()
    return Check(q, tuple(sequences), tuple(columns), expected)


def _product(inputs: ModulesInputs, name: str, x: torch.Tensor, rows: int) -> torch.Tensor:
    """x `[n, columns]` times the transpose of a whole weight `[rows, columns]`, in float64."""
    parts = []
    for start in range(0, rows, _ROWS):
        part = inputs.weights(name, rows, x.shape[1], range(start, min(rows, start + _ROWS)))
        parts.append(x @ part.to("cpu", torch.float64).t())
    return torch.cat(parts, dim=1)
