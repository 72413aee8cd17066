"""Linear layers with packed weights (the layout is described in `src/linear.h`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from chunkbench.kernels.cpu import required
from chunkbench.kernels.cpu.store import dtype_name

BLOCK = 16
"""Number of outputs that the packed layout stores side by side."""
Finish = Literal["store", "store32", "add32", "gate"]
"""How a result is written. store: in the weights' dtype; store32: in float32; add32: added to float32 numbers; gate:
silu(gate) * up, for a gate and its up projection."""


def can_pack(linear: torch.nn.Linear) -> bool:
    """Whether the kernels support the weights of a linear layer."""
    weight = linear.weight
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    return weight.device.type == "cpu" and weight.dtype in dtypes and linear.in_features % BLOCK == 0


class PackedWeights:
    """The packed weights of a linear layer, or of several layers with the same input, whose outputs then lie side by
    side."""

    def __init__(self, linears: Sequence[torch.nn.Linear], finish: Finish = "store") -> None:
        """With `finish="gate"`, `linears` are the gate and its up projection. Both have the same number of outputs, a
        multiple of 16."""
        self.outputs = sum(linear.out_features for linear in linears)
        self.inputs, self.dtype = linears[0].in_features, linears[0].weight.dtype
        self.finish: Finish = finish
        weight = torch.cat([linear.weight.detach() for linear in linears])
        biases = [
            torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach().float()
            for linear in linears
        ]
        bias = None if all(linear.bias is None for linear in linears) else torch.cat(biases)
        self.blocks = -(-self.outputs // BLOCK)
        self._weights, self._bias = self._packed(weight), None if bias is None else self._in_blocks(bias)
        address = 0 if self._bias is None else self._bias.data_ptr()
        words = dtype_name(self.dtype), self.inputs, self.blocks, self._weights.data_ptr(), address, finish
        self.native = required().make_linear(*words)

    def _in_blocks(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows `[outputs, ...]` as blocks `[blocks, 16, ...]`; gate and up alternate."""
        spare = self.blocks * BLOCK - self.outputs
        if spare:
            rows = torch.cat([rows, rows.new_zeros(spare, *rows.shape[1:])])
        blocks = rows.reshape(self.blocks, BLOCK, *rows.shape[1:])
        if self.finish == "gate":
            blocks = torch.stack([blocks[: self.blocks // 2], blocks[self.blocks // 2 :]], 1).flatten(0, 1)
        return blocks.contiguous()

    def _packed(self, weight: torch.Tensor) -> torch.Tensor:
        step = 2 if self.dtype == torch.bfloat16 else 1
        blocks = self._in_blocks(weight)
        return blocks.view(self.blocks, BLOCK, self.inputs // step, step).transpose(1, 2).contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x `[..., inputs]` by the weights and add the bias. Returns `[..., outputs]`. Only for the finishes
        `store` and `store32`."""
        rows = x.reshape(-1, self.inputs).contiguous()
        dtype = self.dtype if self.finish == "store" else torch.float32
        y = torch.empty(rows.shape[0], self.blocks * BLOCK, dtype=dtype)
        threads = torch.get_num_threads()
        required().linear(self.native, rows.data_ptr(), rows.shape[0], y.data_ptr(), threads)
        return y[:, : self.outputs].view(*x.shape[:-1], self.outputs)
