"""Cache managers behind one protocol: contiguous, paged, paged with hashes, prefix tree, radix tree. Ids only."""

from chunkbench.kvcache.managers.contiguous import Contiguous
from chunkbench.kvcache.managers.hashed import HashedBlocks
from chunkbench.kvcache.managers.manager import AccountedManager, Accounts, Manager, NeverFits, Reads
from chunkbench.kvcache.managers.paged import Paged
from chunkbench.kvcache.managers.prefix import PrefixManager

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
