"""ChunkAttention for those who want the algorithm and not the suite: tree, chunk store and kernel put together."""

from chunkbench.attention.layered import LayeredChunkAttention
from chunkbench.attention.parts import Kernel, Partition
from chunkbench.attention.single import ChunkAttention
from chunkbench.attention.tensors import WrongTensor

__all__ = ["ChunkAttention", "Kernel", "LayeredChunkAttention", "Partition", "WrongTensor"]
