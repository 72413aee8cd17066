"""The two matrix products of attention, in a precision in which the processor is fast."""

from __future__ import annotations

import math

import torch

from chunkbench.kernels.eight_bits import widen
from chunkbench.kv_dtype import KvDtype


class Scratch:
    """Named buffers that are kept and only grow, so that nothing is allocated after the largest size was used."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Contiguous uninitialized memory, valid until the next `take` of the same name."""
        size = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name, dtype] = torch.empty(size, dtype=dtype, device=self._device)
        return buffer[:size].view(shape)


class Products:
    """Batched products `[B, ...]` in float32, with float32 scores, probabilities and outputs."""

    def __init__(
        self,
        scale: float,
        scratch: Scratch,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        loads: bool = False,
        kv_dtype: KvDtype = "same",
    ) -> None:
        self._scale = scale
        self._scratch = scratch
        self._head_dim = head_dim
        self._kv_dtype: KvDtype = kv_dtype
        self.dtype = dtype
        """The dtype to which queries must be converted."""
        self.loads = loads
        """Whether K and V have another dtype and `load` converts them. If so, pieces should fit into the cache."""

    def load(self, source: torch.Tensor) -> torch.Tensor:
        """Convert K or V of some chunks to the dtype of the products. The result is valid until the next `load`."""
        if not self.loads:
            return source
        loaded = self._scratch.take("loaded", (*source.shape[:-1], self._head_dim), self.dtype)
        return widen(source, self._kv_dtype, loaded)

    def scores(self, out: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> None:
        """out `[B, r, n]` = q `[B, r, d]` times k `[B, n, d]` transposed, scaled."""
        out.baddbmm_(q, k.transpose(1, 2), beta=0, alpha=self._scale)

    def outputs(self, out: torch.Tensor, weights: torch.Tensor, v: torch.Tensor, add: bool = False) -> None:
        """out `[B, r, d]` = weights `[B, r, n]` times v `[B, n, d]`. With `add`, the product is added to out."""
        out.baddbmm_(weights, v, beta=1 if add else 0)


class HalfProducts(Products):
    """Products in float16 or bfloat16, for processors with matrix instructions for these types.

    The scale is applied inside the product, before rounding. So a float16 score overflows only if the scaled score
    itself is too large (beyond 65504).
    """

    def scores(self, out: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> None:
        rounded = self._scratch.take("rounded scores", tuple(out.shape), self.dtype)
        out.copy_(rounded.baddbmm_(q, k.transpose(1, 2), beta=0, alpha=self._scale))

    def outputs(self, out: torch.Tensor, weights: torch.Tensor, v: torch.Tensor, add: bool = False) -> None:
        rounded = self._scratch.take("rounded weights", tuple(weights.shape), self.dtype).copy_(weights)
        product = self._scratch.take("rounded outputs", tuple(out.shape), self.dtype)
        torch.bmm(rounded, v, out=product)
        if add:
            out.add_(product)
        else:
            out.copy_(product)


def has_native_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the hardware has matrix products of this dtype. PyTorch's emulation is about 100 times slower."""
    if dtype == torch.float32 or device.type != "cpu":
        return True
    # The oldest supported PyTorch lacks these functions; a missing function counts as no hardware support.
    names = {
        torch.bfloat16: ("_is_avx512_bf16_supported", "_is_amx_tile_supported"),
        torch.float16: ("_is_amx_fp16_supported",),
    }
    return any(getattr(torch.cpu, name, lambda: False)() for name in names.get(dtype, ()))


def products_for(
    dtype: torch.dtype, device: torch.device, head_dim: int, scratch: Scratch, kv_dtype: KvDtype = "same"
) -> Products:
    """The products for queries of this dtype on this device. `kv_dtype`: the form of K and V. Scores are scaled by
    1/sqrt(head_dim)."""
    scale, eight = head_dim**-0.5, kv_dtype != "same"
    if dtype != torch.float32 and has_native_products(dtype, device):
        return HalfProducts(scale, scratch, head_dim, dtype, eight, kv_dtype)
    return Products(scale, scratch, head_dim, torch.float32, eight or dtype != torch.float32, kv_dtype)
