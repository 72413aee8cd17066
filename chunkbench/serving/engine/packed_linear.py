"""Linear layers whose weights stay packed for oneDNN, as vLLM keeps them on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic

import torch
from torch import nn

ROWS = 32
"""Rows of a usual step. oneDNN chooses the layout of packed weights for a number of rows."""


_FEW, _SMALL_STEP, _STEP = 64, 8, 32


def padded_rows(rows: int) -> int:
    """Number of rows that a product gets for `rows` rows: a multiple of 8 up to 64, above it of 32.

    oneDNN compiles a product for each number of rows, which takes milliseconds, as much as a step of few rows. Steps of
    a server have any number of rows; padded, they have few numbers, and the engine compiles these at its start.
    """
    step = _SMALL_STEP if rows <= _FEW else _STEP
    return -(-rows // step) * step


def padded_sizes(most: int) -> Iterator[int]:
    """All values of `padded_rows` for up to `most` rows, from the smallest on."""
    rows = 0
    while rows < most:
        rows = padded_rows(rows + 1)
        yield rows


TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers that a model calls one after the other with the same input: they are computed as one product. A call of a
product costs up to 0.2 ms besides its arithmetic, when the weights that it reads have thrown everything else out of the
caches."""


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on a CPU, or several with the same input as one. The weight is packed once, not at
    every call."""

    def __init__(self, *linears: nn.Linear) -> None:
        """The outputs of several layers lie side by side."""
        super().__init__()
        weight = torch.cat([linear.weight.detach() for linear in linears])
        self.out_features, self.in_features = weight.shape
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        self.dtype = weight.dtype
        self._bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[..., in_features]` times the weight, plus the bias: `[..., out_features]`."""
        rows = x.reshape(-1, self.in_features)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return product.view(*x.shape[:-1], self.out_features)


class PackedPart(nn.Module):
    """One of several layers that are computed as one product, when the first of them is called."""

    def __init__(self, product: PackedProduct, begin: int, end: int) -> None:
        super().__init__()
        self._product, self._begin, self._end = product, begin, end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This layer's part of the product with x `[..., in_features]`."""
        return self._product.of(x)[..., self._begin : self._end]


class PackedProduct(nn.Module):
    """The product of several layers with their common input."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        self._linear = PackedLinear(*linears)
        self._parts = len(linears)
        self._input: torch.Tensor | None = None
        self._output: torch.Tensor | None = None
        self._left = 0

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Computed anew for another tensor, and forgotten when all layers have had it."""
        if self._output is None or self._input is not x:
            self._input, self._output, self._left = x, self._linear(x), self._parts
        output: torch.Tensor = self._output
        self._left -= 1
        if self._left == 0:
            self._input = self._output = None
        return output


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes products of this dtype on this CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def compile_products(model: nn.Module, most_rows: int, head: nn.Module, most_logits: int, seconds: float) -> None:
    """Compile the products of all packed layers for steps of up to `most_rows` rows, of which the layer `head` gets at
    most `most_logits`: the smallest first, as many as so many seconds allow.

    To be compiled, a product has to be computed: all sizes take time in proportion to the square of the rows. What is
    left is compiled when it is needed, and those are the products beside whose own time that counts least.
    """
    layers = {
        (layer.in_features, layer.out_features): layer
        for layer in model.modules()
        if isinstance(layer, PackedLinear) and layer is not head
    }
    done, end = 0, monotonic() + seconds
    for rows in padded_sizes(most_rows):
        wanted = [*layers.values(), *([head] if isinstance(head, PackedLinear) and done < most_logits else [])]
        for layer in wanted:
            layer(torch.zeros(rows, layer.in_features, dtype=layer.dtype))
        done = rows
        if monotonic() > end:
            break


def pack_linear_layers(model: nn.Module) -> int:
    """Replace every `nn.Linear` of a model, and return how many there were. The model keeps no other copy of them."""
    count = 0
    for parent in list(model.modules()):
        linears = {name: child for name, child in parent.named_children() if type(child) is nn.Linear}
        count += len(linears)
        for names in TOGETHER:
            if _fit_together([linears.get(name) for name in names]):
                _pack_together(parent, {name: linears.pop(name) for name in names})
        for name, linear in linears.items():
            setattr(parent, name, PackedLinear(linear))
    return count


def _fit_together(linears: Sequence[nn.Linear | None]) -> bool:
    """Whether all layers are there, and alike but for their outputs."""
    kinds = {linear and (linear.in_features, linear.bias is None, linear.weight.dtype) for linear in linears}
    return len(kinds) == 1 and None not in kinds


def _pack_together(parent: nn.Module, linears: Mapping[str, nn.Linear]) -> None:
    product = PackedProduct(list(linears.values()))
    end = 0
    for name, linear in linears.items():
        begin, end = end, end + linear.out_features
        setattr(parent, name, PackedPart(product, begin, end))
