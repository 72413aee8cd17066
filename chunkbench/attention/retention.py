"""Keeps nodes for later sequences when no live sequence covers them any more (RadixAttention). Evicts the least
recently used first."""

from __future__ import annotations

import heapq

from chunkbench.attention.nodes import TreeNode

_MOST_OUTDATED = 1 << 16
"""Part of the limit on entries in the heap. The limit is this number + 2 * the number of evictable chunks. Beyond the
limit, all outdated entries are removed from the heap."""


class EvictableNodes:
    """The evictable nodes of a forest, with eviction of the least recently used.

    An evictable node has only full chunks, and the nodes below it are evictable, too. Eviction takes whole nodes: those
    least recently used first, but leaves before the nodes above them.
    """

    def __init__(self) -> None:
        self.chunks = 0
        """Number of chunks of all evictable nodes."""
        self.evictions = 0
        """Number of chunks that were evicted so far."""
        self._time = 0
        self._leaves: list[tuple[int, int, TreeNode]] = []  # heap by time of last use; may hold outdated entries
        self._entries = 0

    def advance_clock(self) -> None:
        """Advance the time of last use. Nodes added after this call count as more recently used than nodes added
        before."""
        self._time += 1

    def add(self, node: TreeNode) -> None:
        """Add a node whose last sequence left. The nodes below it must be evictable already."""
        assert node.parent is not None
        node.evictable_since = self._time
        del node.parent.children[node.chunks[0]]
        node.parent.evictable_children += 1
        self.chunks += len(node.chunks)
        self._offer(node)

    def remove(self, node: TreeNode) -> None:
        """Remove an evictable node that a sequence covers again. The node above it must not be evictable."""
        assert node.parent is not None
        node.evictable_since = None
        node.parent.evictable_children -= 1
        node.parent.children[node.chunks[0]] = node
        self.chunks -= len(node.chunks)

    def evict(self, chunks: int) -> list[int]:
        """Remove leaves until at least `chunks` chunks are free or no evictable node is left. Returns the ids of the
        free chunks."""
        freed: list[int] = []
        while len(freed) < chunks and self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            if not _is_current(used, node):
                continue
            parent = node.parent
            node.remove()
            node.evictable_since = None
            freed += node.chunks
            if parent is not None and parent.evictable_since is not None:
                self._offer(parent)
        self.chunks -= len(freed)
        self.evictions += len(freed)
        return freed

    def _offer(self, node: TreeNode) -> None:
        if node.is_leaf and node.evictable_since is not None:
            self._entries += 1
            heapq.heappush(self._leaves, (node.evictable_since, self._entries, node))
            if len(self._leaves) > 2 * self.chunks + _MOST_OUTDATED:
                self._leaves = [(used, number, leaf) for used, number, leaf in self._leaves if _is_current(used, leaf)]
                heapq.heapify(self._leaves)


def _is_current(used: int, node: TreeNode) -> bool:
    """Whether an entry of the heap is still valid: its node is still evictable since that time, and is a leaf."""
    return node.evictable_since == used and node.is_leaf
