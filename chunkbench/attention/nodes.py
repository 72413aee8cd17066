"""Nodes of the forest, which are runs of chunks. Lookups compare the token ids of the chunks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from chunkbench.attention.tokens import alike

NO_KEYS: list[bytes] = []
_NO_CHILDREN: dict[int, TreeNode] = {}
_NO_MATCHES: dict[bytes, list[TreeNode]] = {}
# Shared by all nodes without keys or children, as most new nodes are. Never written to.


class TreeSequence:
    """A live sequence. It ends where its node `leaf` ends."""

    __slots__ = ("id", "leaf", "slot")

    def __init__(self, id: int, slot: int, leaf: TreeNode) -> None:
        self.id = id
        self.slot = slot  # its index in the tree's arrays; it never changes
        self.leaf = leaf


class TreeNode:
    """A run of consecutive chunks on a path, all covered by the same sequences. The root has no chunks.

    A node is split where a sequence branches off or ends. It is merged with its only child when no sequence ends
    between them any more. So nodes are as long as possible, and the cost of a plan grows with the number of nodes, not
    of chunks.
    """

    # Not a dataclass, and with slots, for speed: a step of a batch may make a node for every sequence.
    __slots__ = (
        "children",
        "chunks",
        "ends",
        "evictable_children",
        "evictable_since",
        "keys",
        "matches",
        "parent",
        "references",
    )

    def __init__(self, parent: TreeNode | None, chunks: array[int], keys: list[bytes], references: int = 0) -> None:
        self.parent = parent
        self.chunks = chunks
        """Chunk ids in token order."""
        self.keys = keys
        """Token ids of each full chunk. Only the last chunk can be partial; then one sequence alone covers it."""
        self.references = references
        """Number of sequences that cover the node."""
        self.children: dict[int, TreeNode] = _NO_CHILDREN
        """Id of the first chunk -> child, in depth-first order, without evictable children. Splits and merges keep this
        order."""
        self.matches: dict[bytes, list[TreeNode]] = _NO_MATCHES
        """Token ids of the first chunk -> children, also evictable ones. Live sequences never merge, so several
        children can have the same key."""
        self.ends: dict[int, TreeSequence] = {}
        """Id -> sequence, for each sequence that ends at the end of this node."""
        self.evictable_since: int | None = None
        """Time at which the last sequence left; None while sequences cover the node."""
        self.evictable_children = 0

    @property
    def is_leaf(self) -> bool:
        return not self.children and not self.evictable_children

    @property
    def shared_end(self) -> bool:
        """Whether a sequence that ends here needs a new node to continue, because other sequences end here or the node
        has children."""
        return self.references > 1 or self.evictable_children > 0

    def branch(self, chunk: int, sequence: TreeSequence) -> None:
        """Add a last child with one partial chunk, in which a sequence that ends here continues."""
        # One method does all this, for speed: a step of a batch may call it for every sequence.
        node = TreeNode(self, array("q", (chunk,)), NO_KEYS, 1)
        if self.children is _NO_CHILDREN:
            self.children, self.matches = {}, {}
        self.children[chunk] = node
        del self.ends[sequence.id]
        node.ends[sequence.id] = sequence
        sequence.leaf = node

    def insert(self, chunks: Iterable[int], keys: list[bytes], references: int = 0) -> TreeNode:
        """Add a last child with these chunks, and return it."""
        node = TreeNode(self, array("q", chunks), keys, references)
        if self.children is _NO_CHILDREN:
            self.children, self.matches = {}, {}
        self.children[node.chunks[0]] = node
        if keys:
            self.matches.setdefault(keys[0], []).append(node)
        return node

    def seal(self, key: bytes) -> None:
        """Record the key of the last chunk, which is now full. From now on joins find this chunk."""
        if self.keys:
            self.keys.append(key)
            return
        self.keys = [key]
        assert self.parent is not None
        self.parent.matches.setdefault(key, []).append(self)

    def keep(self, chunks: int, full: int) -> list[int]:
        """Keep the first `chunks` chunks, of which `full` are full. Returns the ids of the dropped chunks."""
        dropped = self.chunks[chunks:].tolist()
        del self.chunks[chunks:]
        if full == 0 and self.keys:
            self._forget_first_key()
        del self.keys[full:]
        return dropped

    def split(self, count: int) -> TreeNode:
        """Move the first `count` chunks, all of them full, to a new node above this one. Returns the new node."""
        assert self.parent is not None
        upper = TreeNode(self.parent, self.chunks[:count], self.keys[:count], self.references)
        self._replace_by(upper)
        self.parent, self.chunks, self.keys = upper, self.chunks[count:], self.keys[count:]
        upper.evictable_since = self.evictable_since
        upper.children = {} if self.evictable_since is not None else {self.chunks[0]: self}
        upper.evictable_children = 0 if self.evictable_since is None else 1
        upper.matches = {self.keys[0]: [self]} if self.keys else {}
        return upper

    def remove(self) -> None:
        """Remove this node, which no sequence covers any more, from the forest."""
        assert self.parent is not None
        if self.evictable_since is None:
            del self.parent.children[self.chunks[0]]
        else:
            self.parent.evictable_children -= 1
        if self.keys:
            self._forget_first_key()

    def merge_only_child(self) -> None:
        """Merge with the child if it is the only one and no sequence ends between the two."""
        if len(self.children) != 1 or self.evictable_children or self.ends or self.parent is None:
            return
        (lower,) = self.children.values()
        self._replace_by(lower)
        lower.parent, lower.chunks, lower.keys = self.parent, self.chunks + lower.chunks, self.keys + lower.keys

    def _replace_by(self, other: TreeNode) -> None:
        """Replace this node, among the parent's children, by `other`, which begins with the same chunk."""
        assert self.parent is not None
        if self.evictable_since is None:
            self.parent.children[self.chunks[0]] = other
        if self.keys:
            same_key = self.parent.matches[self.keys[0]]
            same_key[same_key.index(self)] = other

    def _forget_first_key(self) -> None:
        assert self.parent is not None
        same_key = self.parent.matches[self.keys[0]]
        same_key.remove(self)
        if not same_key:
            del self.parent.matches[self.keys[0]]


class PrefixMatch(NamedTuple):
    """The result of a lookup: a path, from the root to `node`, whose chunks match the first keys."""

    node: TreeNode
    node_chunks: int
    """Number of matching chunks in `node`."""
    chunks: int
    """Number of matching chunks on the whole path."""


def deepest_match(root: TreeNode, keys: list[bytes], shareable: Callable[[Sequence[int], int], int]) -> PrefixMatch:
    """The longest path of full, shareable chunks whose token ids equal the first keys.

    `shareable(path, n)`: how many of the first n chunks of a path can be shared.
    """
    ends: list[tuple[TreeNode, int]] = []  # (node, matching chunks on the path to its end) where a path stops matching
    level = [(root, 0)]
    while level:
        next_level: list[tuple[TreeNode, int]] = []
        for node, depth in level:
            children = node.matches.get(keys[depth], ()) if depth < len(keys) else ()
            if not children:
                ends.append((node, depth))
            for child in children:
                common = alike(child.keys, keys[depth : depth + len(child.keys)])
                whole = common == len(child.chunks)
                (next_level if whole else ends).append((child, depth + common))
        level = next_level
    best = PrefixMatch(root, 0, 0)
    # More of a path never has less to share. So the nodes above these ends need no look of their own, which would make
    # the time of a lookup grow with the square of the number of nodes on a path.
    for node, count in sorted(ends, key=lambda end: end[1], reverse=True):
        if count <= best.chunks:
            break
        nodes = path_to(node)
        shared = shareable([chunk for above in nodes for chunk in above.chunks], count)
        if shared > best.chunks:
            best = _place(nodes, shared)
    return best


def _place(nodes: Sequence[TreeNode], chunks: int) -> PrefixMatch:
    """Where a path of nodes has this number of chunks."""
    before = 0
    for node in nodes:
        if chunks <= before + len(node.chunks):
            return PrefixMatch(node, chunks - before, chunks)
        before += len(node.chunks)
    raise ValueError(f"the path has {before} chunks, not {chunks}")


def path_to(node: TreeNode) -> list[TreeNode]:
    """Nodes on the path from the root (not included) to `node`."""
    nodes = []
    current: TreeNode | None = node
    while current is not None and current.parent is not None:
        nodes.append(current)
        current = current.parent
    nodes.reverse()
    return nodes
