"""Linear layers whose weights stay packed for oneDNN, as vLLM keeps them on a CPU."""

from __future__ import annotations

import torch
from torch import nn

ROWS = 32
"""Rows of a usual step. oneDNN chooses the layout of packed weights for a number of rows."""


_FEW, _SMALL_STEP, _STEP = 64, 8, 32


def padded_rows(rows: int) -> int:
    """Number of rows that a product gets for `rows` rows: a multiple of 8 up to 64, above it of 32.

    oneDNN compiles a product for each number of rows, which takes as long as computing it with hundreds of rows. Steps
    of a server have any number of rows; padded, they have few numbers, and the engine compiles these at its start.
    """
    step = _SMALL_STEP if rows <= _FEW else _STEP
    return -(-rows // step) * step


def padded_sizes(most: int) -> list[int]:
    """All values of `padded_rows` for up to `most` rows."""
    return sorted({padded_rows(rows) for rows in range(1, most + 1)})


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on a CPU. The weight is packed once, not at every call."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.dtype = linear.weight.dtype
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


def compile_products(model: nn.Module, most_rows: int) -> None:
    """Compile the products of all packed layers for steps of up to `most_rows` rows."""
    layers = {
        (layer.in_features, layer.out_features): layer for layer in model.modules() if isinstance(layer, PackedLinear)
    }
    for layer in layers.values():
        for rows in padded_sizes(most_rows):
            layer(torch.zeros(rows, layer.in_features, dtype=layer.dtype))


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
