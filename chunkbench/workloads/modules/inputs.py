"""Inputs for the modules of a decoder layer."""

from __future__ import annotations

import torch

from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.workloads.modules.result import LayerPoint


class ModulesInputs(PooledInputs):
    """Inputs whose queries are hidden states, as wide as the widest input of a module."""

    def __init__(self, point: LayerPoint, seed: int) -> None:
        super().__init__(point, seed)
        self.shape = point.model

    def out_shape(self, implementation: str) -> tuple[int, ...]:
        """`[b, heads, head_dim]` for self-attention, else `[b, columns]`."""
        columns = {"qkv_projection": self.shape.qkv_size, "mlp": self.shape.hidden_size}
        if implementation in columns:
            return self.point.batch_size, columns[implementation]
        return super().out_shape(implementation)

    def queries(self, *purpose: int) -> torch.Tensor:
        """Fresh hidden states `[b, width]`. A module reads as many leading columns as its input is wide."""
        point = self.point
        return self.draw_rows(max(point.heads * point.head_dim, self.shape.hidden_size), *purpose)
