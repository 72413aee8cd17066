"""Linear layers whose weights stay packed for oneDNN, as vLLM keeps them on a CPU."""

from __future__ import annotations

import torch
from torch import nn

ROWS = 32
"""Rows of a usual step. oneDNN chooses the layout of packed weights for a number of rows."""


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on a CPU. The weight is packed once, not at every call."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[..., in_features]` times the weight, plus the bias: `[..., out_features]`."""
        rows = x.reshape(-1, self.in_features)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return product.view(*x.shape[:-1], self.out_features)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes products of this dtype on this CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def pack_linear_layers(model: nn.Module) -> int:
    """Replace every `nn.Linear` of a model, and return how many there were. The model keeps no other copy of them."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    for parent, name, child in found:
        setattr(parent, name, PackedLinear(child))
    return len(found)
