"""Cache managers with one interface: contiguous, paged, paged with hashes, prefix tree, radix tree. They manage ids
only, no tensors.
"""

from chunkbench.attention.manager import AccountedManager, Accounts, Manager, NeverFits, Reads
from chunkbench.workloads.replay.managers.contiguous import Contiguous
from chunkbench.workloads.replay.managers.hashed import HashedBlocks
from chunkbench.workloads.replay.managers.paged import Paged
from chunkbench.workloads.replay.managers.prefix import PrefixManager

__all__ = [
    "AccountedManager",
    "Accounts",
    "Contiguous",
    "HashedBlocks",
    "Manager",
    "NeverFits",
    "Paged",
    "PrefixManager",
    "Reads",
]
