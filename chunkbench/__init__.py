"""ChunkBench measures decode attention over shared prompt prefixes, and compares it with the ChunkAttention paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkbench.version import __version__

if TYPE_CHECKING:
    from chunkbench.attention import ChunkAttention, LayeredChunkAttention
    from chunkbench.report.frames import load

__all__ = ["ChunkAttention", "LayeredChunkAttention", "__version__", "load"]


def __getattr__(name: str) -> Any:
    # Import torch and pandas only when they are needed, so that `chunkbench --help` stays fast.
    if name in ("ChunkAttention", "LayeredChunkAttention"):
        from chunkbench import attention

        return getattr(attention, name)
    if name == "load":
        from chunkbench import workloads
        from chunkbench.report.frames import load

        workloads.register()
        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
