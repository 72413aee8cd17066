"""The prefix-aware KV cache (PAKV) without the tensors: prefix trees, a pool of chunk ids, plans, block tables."""

from chunkbench.kvcache.blocks import BlockTables, JoinedBlocks
from chunkbench.kvcache.changes import Append, Copy, Fork, Join
from chunkbench.kvcache.errors import (
    EmptySequence,
    KVCacheError,
    PoolExhausted,
    UnknownSequence,
    WrongTokens,
)
from chunkbench.kvcache.plan import Plan, Segment
from chunkbench.kvcache.pool import ChunkPool
from chunkbench.kvcache.tree import PrefixTree
from chunkbench.kvcache.windows import HeadPolicy, WindowedPool

__all__ = [
    "Append",
    "BlockTables",
    "ChunkPool",
    "Copy",
    "EmptySequence",
    "Fork",
    "HeadPolicy",
    "Join",
    "JoinedBlocks",
    "KVCacheError",
    "Plan",
    "PoolExhausted",
    "PrefixTree",
    "Segment",
    "UnknownSequence",
    "WindowedPool",
    "WrongTokens",
]
