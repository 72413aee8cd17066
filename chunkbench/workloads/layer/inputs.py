"""Inputs of the modules of a decoder layer."""

from __future__ import annotations

import torch

from chunkbench.workers.inputs import PooledInputs
from chunkbench.workloads.layer.shape import shape_of_point


class LayerInputs(PooledInputs):
    """Inputs whose queries are hidden states, as wide as the widest input of a module."""

    def queries(self, *purpose: int) -> torch.Tensor:
        """Fresh hidden states `[b, width]`; a module reads as many leading columns as its input is wide."""
        point = self.point
        return self.draw_rows(max(point.heads * point.head_dim, shape_of_point(point).hidden_size), *purpose)
