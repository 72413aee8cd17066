"""The library: prefix trees, pools of chunks, caches per head, and attention over these caches. It imports only the
kernels.

The modules load fast, because the classes with tensors are imported only when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chunkbench.attention.errors import EmptySequence, KVCacheError, PoolExhausted, UnknownSequence, WrongTokens
    from chunkbench.attention.layered import LayeredChunkAttention
    from chunkbench.attention.parts import Kernel, Partition
    from chunkbench.attention.ragged import RaggedChunkAttention
    from chunkbench.attention.single import ChunkAttention
    from chunkbench.attention.tensors import WrongTensor
    from chunkbench.attention.windows import HeadPolicy

__all__ = [
    "ChunkAttention",
    "EmptySequence",
    "HeadPolicy",
    "KVCacheError",
    "Kernel",
    "LayeredChunkAttention",
    "Partition",
    "PoolExhausted",
    "RaggedChunkAttention",
    "UnknownSequence",
    "WrongTensor",
    "WrongTokens",
]

_MODULES = ("errors", "windows", "tensors", "parts", "single", "layered", "ragged")
"""Modules that define the public names. The first two do not load torch."""


def __getattr__(name: str) -> Any:
    for module in map(import_module, (f"{__name__}.{one}" for one in _MODULES if name in __all__)):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
