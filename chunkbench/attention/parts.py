"""The parts of a cache: which kernel takes a shape on a device, and the chunk store that it reads."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch

from chunkbench.kernels import cpu, triton
from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.cpu.decode import TppNative
from chunkbench.kernels.cpu.store import PackedStore
from chunkbench.kernels.tpp_torch import TppTorch
from chunkbench.kvcache import Plan

Partition = Literal["two-phase", "sequence-first"]
Kernel = Literal["auto", "native", "triton", "torch"]
Chosen = Literal["native", "triton", "torch"]
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Shape(NamedTuple):
    """What K, V and q of a cache look like."""

    heads: int
    kv_heads: int
    head_dim: int
    chunk_size: int
    dtype: torch.dtype
    device: torch.device
    layers: int

    def check(self) -> None:
        """Raise ValueError for a shape that no kernel takes."""
        if self.heads < 1 or self.kv_heads < 1 or self.heads % self.kv_heads != 0:
            raise ValueError(f"{self.heads} query heads cannot be spread evenly over {self.kv_heads} KV heads")
        if self.head_dim < 16 or self.head_dim % 16 != 0:
            raise ValueError(f"head_dim is a multiple of 16, not {self.head_dim}")
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype is float32, float16 or bfloat16, not {self.dtype}")
        if self.layers < 1:
            raise ValueError(f"layers is at least 1, not {self.layers}")


class Decode(Protocol):
    """What the kernels have in common."""

    @property
    def work_items(self) -> int: ...
    def plan(self, plan: Plan) -> None: ...
    def decode(self, q: torch.Tensor, out: torch.Tensor, layer: int = 0) -> None: ...


def choose(shape: Shape, kernel: Kernel) -> Chosen:
    """The kernel for a shape. Raises ValueError where one is asked for that does not take it, or cannot run here."""
    if kernel not in ("auto", "native", "triton", "torch"):
        raise ValueError(f"kernel is 'auto', 'native', 'triton' or 'torch', not {kernel!r}")
    own: Literal["native", "triton"] = "native" if shape.device.type == "cpu" else "triton"
    wanted = own if kernel == "auto" else kernel
    obstacle = "" if wanted == "torch" else _obstacle(shape, wanted)
    if kernel != "auto" and obstacle:
        raise ValueError(f"kernel={kernel!r}: {obstacle}")
    return "torch" if obstacle else wanted


def assemble(shape: Shape, kernel: Chosen, partition: Partition) -> tuple[ChunkStore, Decode]:
    """An empty store, and the kernel that reads it. Raises ValueError for another partition."""
    if partition not in ("two-phase", "sequence-first"):
        raise ValueError(f"partition is 'two-phase' or 'sequence-first', not {partition!r}")
    chunk_first = partition == "two-phase"
    sizes = shape.chunk_size, shape.kv_heads, shape.head_dim, shape.dtype
    if kernel == "native":
        packed = PackedStore(*sizes, shape.layers)
        return packed, TppNative(packed, shape.heads, chunk_first)
    if kernel == "triton":
        # Importing Triton takes a second, and only a GPU needs it.
        from chunkbench.kernels.triton.decode import TppTriton
        from chunkbench.kernels.triton.store import TritonStore

        on_gpu = TritonStore(*sizes, shape.device, shape.layers)
        return on_gpu, TppTriton(on_gpu, shape.heads, chunk_first)
    store = ChunkStore(*sizes, shape.device, shape.layers)
    return store, TppTorch(store, shape.heads, chunk_first)


def _obstacle(shape: Shape, kernel: Literal["native", "triton"]) -> str:
    """Why a kernel cannot be used; empty when it can."""
    if kernel == "triton":
        unfit = triton.why_not(shape.dtype, shape.heads, shape.kv_heads, shape.head_dim, shape.chunk_size)
        return triton.why_unavailable(shape.device) or unfit
    if shape.device.type != "cpu":
        return f"it runs on a CPU, not on {shape.device}"
    if shape.chunk_size % 16 or shape.head_dim > 256:
        return "it takes chunk sizes that are multiples of 16 and head dimensions up to 256"
    return cpu.why_missing()
