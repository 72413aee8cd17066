"""The forms in which K and V are stored, and their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

KvDtype = Literal["same", "int8", "uint8", "fp8"]
"""How K and V are stored. `same`: in the dtype of q. The others have 8 bits: `int8` with a float32 scale for each token
and KV head, `uint8` with a scale and a zero point for each, `fp8` (E4M3) with a scale for each KV head.
"""
KV_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)
FLOATS: Mapping[KvDtype, int] = {"int8": 1, "uint8": 2, "fp8": 0}
"""Float32 numbers beside the K of a token and KV head in 8 bits; beside its V there are as many."""


def width(head_dim: int, kv_dtype: KvDtype) -> int:
    """Elements of a stored vector of `head_dim` numbers: numbers, or in 8 bits the bytes with those of its scales."""
    return head_dim + 4 * FLOATS.get(kv_dtype, 0)


def kv_bytes(head_dim: int, itemsize: int, kv_dtype: KvDtype) -> int:
    """Bytes of K and V of one token and KV head, with their scales. `itemsize`: bytes of a number of q."""
    return 2 * width(head_dim, kv_dtype) * (itemsize if kv_dtype == "same" else 1)


def why_not_stored(kv_dtype: str, forms: Sequence[KvDtype]) -> str:
    """Why something that stores K and V in these forms cannot store them as `kv_dtype`; empty if it can."""
    return "" if kv_dtype in forms else f"stores K and V as {', '.join(forms)}, not as {kv_dtype}"
