"""Chooses the kernel for a shape and a device, and makes the cache that this kernel reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from chunkbench.attention.caches import Cache, HeadCache
from chunkbench.attention.heads import Decode, DraftKernel, HeadDecode, HeadKernel, HeadStores
from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.tree import PrefixTree
from chunkbench.attention.windows import HeadPolicy
from chunkbench.kernels import cpu, triton
from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.cpu.decode import StoredHeads, TppNative
from chunkbench.kernels.cpu.store import PackedStore
from chunkbench.kernels.planners import Planner, flat
from chunkbench.kernels.tpp_torch import TppTorch
from chunkbench.kv_dtype import KV_DTYPES, KvDtype

Partition = Literal["two-phase", "sequence-first"]
Kernel = Literal["auto", "native", "triton", "torch"]
Chosen = Literal["native", "triton", "torch"]
MOST_SOFTCAP = 1000
"""Largest soft-capping. With a larger one the kernel's tanh would lose digits; models have 30 to 50."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class CacheShape(NamedTuple):
    """Sizes, dtype and device of K, V and q of a cache, and the soft-capping of its scores."""

    heads: int
    kv_heads: int
    head_dim: int
    chunk_size: int
    dtype: torch.dtype
    device: torch.device
    layers: int
    kv_dtype: KvDtype = "same"
    softcap: float = 0.0

    def check(self) -> None:
        """Raise ValueError for a shape that no kernel supports."""
        if self.heads < 1 or self.kv_heads < 1 or self.heads % self.kv_heads != 0:
            raise ValueError(f"{self.heads} query heads cannot be divided evenly among {self.kv_heads} KV heads")
        if self.head_dim < 16 or self.head_dim % 16 != 0:
            raise ValueError(f"head_dim must be a multiple of 16, not {self.head_dim}")
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype must be float32, float16 or bfloat16, not {self.dtype}")
        if self.layers < 1:
            raise ValueError(f"layers must be at least 1, not {self.layers}")
        if self.kv_dtype not in KV_DTYPES:
            raise ValueError(f"kv_dtype must be {', '.join(KV_DTYPES)}, not {self.kv_dtype!r}")
        if not 0 <= self.softcap <= MOST_SOFTCAP:
            raise ValueError(f"softcap must lie between 0 and {MOST_SOFTCAP}, not {self.softcap}")


def choose(shape: CacheShape, kernel: Kernel) -> Chosen:
    """The kernel for a shape. Raises ValueError if `kernel` does not support the shape or cannot run here."""
    if kernel not in ("auto", "native", "triton", "torch"):
        raise ValueError(f"kernel must be 'auto', 'native', 'triton' or 'torch', not {kernel!r}")
    device_kernel: Literal["native", "triton"] = "native" if shape.device.type == "cpu" else "triton"
    chosen = device_kernel if kernel == "auto" else kernel
    obstacle = "" if chosen == "torch" else _obstacle(shape, chosen)
    if kernel != "auto" and obstacle:
        raise ValueError(f"kernel={kernel!r}: {obstacle}")
    return "torch" if obstacle else chosen


def assemble(
    shape: CacheShape,
    kernel: Chosen,
    partition: Partition,
    policy: HeadPolicy | None,
    limit: int | None,
    make_tree: Callable[[ChunkPool], PrefixTree],
) -> Cache:
    """Make an empty cache for at most `limit` chunks. Raises ValueError."""
    if kernel != "native" and shape.softcap:
        raise ValueError(
            f"softcap: only kernel='native', on a CPU, can do this, not {kernel!r}; see `chunkbench doctor`"
        )
    if kernel == "torch" and policy is not None and policy.exact:
        raise ValueError("exact windows: PyTorch's kernel cannot do this; see `chunkbench doctor`")
    # The store grows before the tree changes, so the tree stays unchanged if memory runs out.
    if policy is None:
        store, decode = _store(shape, kernel, partition)
        return Cache(make_tree(ChunkPool(limit, store.grow)), store, decode)
    stores, decode_heads = _head_stores(shape, kernel, partition, policy, limit)
    return HeadCache(make_tree(stores.pool), stores, decode_heads)


def _head_stores(
    shape: CacheShape, kernel: Chosen, partition: Partition, policy: HeadPolicy, limit: int | None
) -> tuple[HeadStores, HeadDecode]:
    if len(policy.full) != shape.layers or any(len(heads) != shape.kv_heads for heads in policy.full):
        sizes = f"{len(policy.full)} layers of {len(policy.full[0]) if policy.full else 0} KV heads"
        raise ValueError(
            f"heads: the policy is for {sizes}; this model has {shape.layers} layers of {shape.kv_heads} KV heads"
        )
    if kernel == "torch" and shape.device.type != "cpu":
        raise ValueError(f"heads: PyTorch's kernel of caches with window heads needs a CPU, not {shape.device}")
    group, planner, together = shape.heads // shape.kv_heads, _planner(partition), kernel != "torch"

    def make_store(heads: int) -> ChunkStore:
        return _chunk_store(shape._replace(kv_heads=1, layers=heads), kernel)

    def make_kernel(store: ChunkStore, heads: int) -> HeadKernel:
        if isinstance(store, PackedStore):
            return TppNative(StoredHeads(store, heads), heads * group, planner, softcap=shape.softcap)
        if kernel == "torch":
            return TppTorch(store, group, planner)
        from chunkbench.kernels.triton import store as triton_store
        from chunkbench.kernels.triton.decode import TppTriton

        assert isinstance(store, triton_store.TritonStore)
        return TppTriton(triton_store.StoredHeads(store, heads), heads * group, planner)

    stores = HeadStores(policy, limit, shape.chunk_size, shape.head_dim, group, together, make_store, shape.device)
    return stores, HeadDecode(stores, make_kernel, strided=kernel == "triton")


def _store(shape: CacheShape, kernel: Chosen, partition: Partition) -> tuple[ChunkStore, Decode]:
    planner, store = _planner(partition), _chunk_store(shape, kernel)
    if kernel == "torch":
        return store, TppTorch(store, shape.heads, planner)
    return store, new_kernel(store, shape.heads, planner, shape.softcap)


def _chunk_store(shape: CacheShape, kernel: Chosen) -> ChunkStore:
    sizes = shape.chunk_size, shape.kv_heads, shape.head_dim, shape.dtype
    if kernel == "native":
        return PackedStore(*sizes, shape.layers, shape.kv_dtype)
    if kernel == "torch":
        return ChunkStore(*sizes, shape.device, shape.layers, shape.kv_dtype)
    # Imported here because importing Triton takes a second and only a GPU needs it.
    from chunkbench.kernels.triton.store import TritonStore

    return TritonStore(*sizes, shape.device, shape.layers, shape.kv_dtype)


def new_kernel(
    store: ChunkStore | HeadStores, heads: int, planner: Planner | None, softcap: float = 0.0
) -> DraftKernel:
    """The native or the Triton kernel over a store of its own kind."""
    if isinstance(store, PackedStore):
        return TppNative(store, heads, planner, softcap=softcap)
    from chunkbench.kernels.triton.decode import TppTriton
    from chunkbench.kernels.triton.store import TritonStore

    assert isinstance(store, TritonStore)
    return TppTriton(store, heads, planner)


def _planner(partition: Partition) -> Planner | None:
    """The planner for a partition; None stands for the kernel's own planner. Raises ValueError."""
    if partition not in ("two-phase", "sequence-first"):
        raise ValueError(f"partition must be 'two-phase' or 'sequence-first', not {partition!r}")
    return None if partition == "two-phase" else flat


def _obstacle(shape: CacheShape, kernel: Literal["native", "triton"]) -> str:
    """Why a kernel cannot be used; empty if it can."""
    if kernel == "triton":
        unsupported = triton.why_not(shape.dtype, shape.heads, shape.kv_heads, shape.head_dim, shape.chunk_size)
        return triton.why_unavailable(shape.device) or unsupported
    if shape.device.type != "cpu":
        return f"it runs on a CPU, not on {shape.device}"
    return cpu.why_not(shape.head_dim, shape.chunk_size) or cpu.why_missing()
