"""K and V in 8 bits, as PyTorch tensors: for references, and for kernels in PyTorch.

A vector of `d` numbers is stored as `d` bytes and then its float32 numbers: the scale of `int8`, the scale and the zero
point of `uint8`, nothing for `fp8`. The native kernels round in the same way, and keep these numbers in their own
order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from chunkbench.kv_dtype import FLOATS, KvDtype, width

NUMBERS: Mapping[str, torch.dtype] = {"int8": torch.int8, "uint8": torch.uint8, "fp8": torch.float8_e4m3fn}
"""The type of a stored number."""
_FP8_MOST = 448.0


class Rounded(NamedTuple):
    """Vectors in 8 bits: x = scale * (numbers - zero)."""

    numbers: torch.Tensor
    """`[..., d]`, of the type in NUMBERS."""
    scale: torch.Tensor
    """`[..., 1]`, float32."""
    zero: torch.Tensor
    """`[..., 1]`, float32."""


def rounded(x: torch.Tensor, kv_dtype: KvDtype) -> Rounded:
    """K or V `[..., d]` in 8 bits. `kv_dtype` is not `same`.

    Computes with the same operations in float32 as the native kernels, so that ties are rounded alike. A NaN or an
    infinity makes the whole vector NaN with int8 and uint8. fp8 stores NaN as NaN, and infinities as its largest
    number.
    """
    x = x.float()
    none = torch.zeros_like(x[..., :1])
    if kv_dtype == "fp8":
        return Rounded(x.clamp(-_FP8_MOST, _FP8_MOST).to(torch.float8_e4m3fn), none + 1, none)
    if kv_dtype == "int8":
        peak = x.abs().amax(-1, keepdim=True)
        lift = torch.where(peak < 1e-30, 2.0**100, 1.0)  # 127 / peak must be finite
        inverse = torch.full_like(peak, 127.0) / (peak * lift)  # `127 / x` of PyTorch rounds twice
        numbers = (x * lift * inverse).nan_to_num(0.0, 0.0, 0.0).round()
        return Rounded(numbers.to(torch.int8), peak / 127, none)
    least, most = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = most / 255 - least / 255
    step = torch.where(step > 0, step, torch.where(least == 0, 1.0, least.abs()))
    zero = -least / step
    numbers = (x / step + zero).nan_to_num(0.0, 0.0, 0.0).clamp(0, 255).round()
    finite = x.isfinite().all(-1, keepdim=True)
    return Rounded(numbers.to(torch.uint8), torch.where(finite, step, torch.nan), torch.where(finite, zero, 0.0))


def stored(x: torch.Tensor, kv_dtype: KvDtype) -> torch.Tensor:
    """The values that are stored for K or V `[..., d]`, in float64."""
    if kv_dtype == "same":
        return x.double()
    numbers, scale, zero = rounded(x, kv_dtype)
    return scale.double() * (numbers.double() - zero.double())


def narrow(x: torch.Tensor, kv_dtype: KvDtype) -> torch.Tensor:
    """K or V `[..., d]` as bytes `[..., d + 4 * FLOATS[kv_dtype]]`; unchanged if `kv_dtype` is `same`."""
    if kv_dtype == "same":
        return x
    if not len(x):  # PyTorch cannot view vectors of a tensor without any as bytes
        return torch.empty((*x.shape[:-1], width(x.shape[-1], kv_dtype)), dtype=torch.uint8, device=x.device)
    numbers, *floats = rounded(x, kv_dtype)
    return torch.cat([part.contiguous().view(torch.uint8) for part in (numbers, *floats[: FLOATS[kv_dtype]])], -1)


def widened(source: torch.Tensor, kv_dtype: KvDtype, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """`widen` into a new tensor of this dtype; the source itself if there is nothing to widen."""
    if source.dtype == dtype:
        return source
    out = torch.empty((*source.shape[:-1], head_dim), dtype=dtype, device=source.device)
    return widen(source, kv_dtype, out)


def widen(source: torch.Tensor, kv_dtype: KvDtype, out: torch.Tensor) -> torch.Tensor:
    """Write what `narrow` made, or values of `same`, to out `[..., d]`. Returns out."""
    if kv_dtype == "same":
        return out.copy_(source)
    d = out.shape[-1]
    numbers = source[..., :d].view(NUMBERS[kv_dtype])
    if kv_dtype == "fp8":
        return out.copy_(numbers)
    floats = source[..., d:].view(torch.float32)
    if kv_dtype == "int8":
        return torch.mul(numbers, floats, out=out)
    return out.copy_((numbers - floats[..., 1:]) * floats[..., :1])  # in float32, which holds all zero points
