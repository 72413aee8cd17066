"""ChunkBench: decode attention over shared prompt prefixes, measured and set beside the ChunkAttention paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chunkbench.attention import ChunkAttention
    from chunkbench.store import load

__all__ = ["ChunkAttention", "__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # torch and pandas load only for those who use them: `chunkbench --help` stays quick.
    if name == "ChunkAttention":
        from chunkbench.attention import ChunkAttention

        return ChunkAttention
    if name == "load":
        from chunkbench.store import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
