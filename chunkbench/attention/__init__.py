"""ChunkAttention without the benchmark suite: it combines the prefix tree, a chunk store and a kernel."""

from chunkbench.attention.layered import LayeredChunkAttention
from chunkbench.attention.parts import Kernel, Partition
from chunkbench.attention.ragged import RaggedChunkAttention
from chunkbench.attention.single import ChunkAttention
from chunkbench.attention.tensors import WrongTensor

__all__ = ["ChunkAttention", "Kernel", "LayeredChunkAttention", "Partition", "RaggedChunkAttention", "WrongTensor"]
