"""Nodes of the forest: runs of chunks, found by the token ids that they hold."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

NO_KEYS: list[bytes] = []
_NO_CHILDREN: dict[int, Node] = {}
_NO_MATCHES: dict[bytes, list[Node]] = {}
# Of nodes that have none, as most that a step makes: never written to.


class Sequence:
    """A live sequence. It ends where a node ends."""

    __slots__ = ("id", "leaf", "slot")

    def __init__(self, id: int, slot: int, leaf: Node) -> None:
        self.id = id
        self.slot = slot  # its place in the tree's arrays, the same for as long as it lives
        self.leaf = leaf


class Node:
    """A run of chunks, one after the other on a path, that the same sequences cover; a root has no chunks.

    Runs are as long as they can be: a node is split where a sequence branches off or ends, and joined with its only
    child when no sequence ends there any more. So a plan costs as much as there are nodes, not chunks.
    """

    # Slots and a constructor by hand: a step of a batch may make a node for every sequence.
    __slots__ = ("children", "chunks", "ends", "keys", "matches", "parent", "references")

    def __init__(self, parent: Node | None, chunks: array[int], keys: list[bytes], references: int = 0) -> None:
        self.parent = parent
        self.chunks = chunks
        """Chunk ids in token order."""
        self.keys = keys
        """Token ids of each full chunk. Only the last chunk can be partial, and then one sequence alone covers it."""
        self.references = references
        """Sequences that cover it."""
        self.children: dict[int, Node] = _NO_CHILDREN
        """By first chunk. Their order is the depth-first order, and a split or a join keeps a node's place in it."""
        self.matches: dict[bytes, list[Node]] = _NO_MATCHES
        """Children by the token ids of their first chunk. Live sequences never merge, so several may hold the same."""
        self.ends: dict[int, Sequence] = {}
        """Sequences that end here, by id."""

    def insert(self, chunks: Iterable[int], keys: list[bytes], references: int = 0) -> Node:
        """A new last child with these chunks."""
        node = Node(self, array("q", chunks), keys, references)
        if self.children is _NO_CHILDREN:
            self.children, self.matches = {}, {}
        self.children[node.chunks[0]] = node
        if keys:
            self.matches.setdefault(keys[0], []).append(node)
        return node

    def seal(self, key: bytes) -> None:
        """The last chunk is full: from now on joins find it."""
        if self.keys:
            self.keys.append(key)
            return
        self.keys = [key]
        assert self.parent is not None
        self.parent.matches.setdefault(key, []).append(self)

    def keep(self, chunks: int, full: int) -> list[int]:
        """Keep the first `chunks` chunks, `full` of which are full; returns the ids of the others."""
        dropped = self.chunks[chunks:].tolist()
        del self.chunks[chunks:]
        if full == 0 and self.keys:
            self._forget_first_key()
        del self.keys[full:]
        return dropped

    def split(self, at: int) -> Node:
        """Give the first `at` chunks to a new node above this one, and return that. All of them are full."""
        assert self.parent is not None
        upper = Node(self.parent, self.chunks[:at], self.keys[:at], self.references)
        self._replaced_by(upper)
        self.parent, self.chunks, self.keys = upper, self.chunks[at:], self.keys[at:]
        upper.children = {self.chunks[0]: self}
        upper.matches = {self.keys[0]: [self]} if self.keys else {}
        return upper

    def remove(self) -> None:
        """Take the node, which no sequence covers, out of the forest."""
        assert self.parent is not None
        del self.parent.children[self.chunks[0]]
        if self.keys:
            self._forget_first_key()

    def join_only_child(self) -> None:
        """Become one with the child, if there is just one and no sequence ends between the two."""
        if len(self.children) != 1 or self.ends or self.parent is None:
            return
        (lower,) = self.children.values()
        self._replaced_by(lower)
        lower.parent, lower.chunks, lower.keys = self.parent, self.chunks + lower.chunks, self.keys + lower.keys

    def _replaced_by(self, other: Node) -> None:
        """Let another node, which begins with the same chunk, stand in this one's place below the parent."""
        assert self.parent is not None
        self.parent.children[self.chunks[0]] = other
        if self.keys:
            twins = self.parent.matches[self.keys[0]]
            twins[twins.index(self)] = other

    def _forget_first_key(self) -> None:
        assert self.parent is not None
        twins = self.parent.matches[self.keys[0]]
        twins.remove(self)
        if not twins:
            del self.parent.matches[self.keys[0]]


class Match(NamedTuple):
    """How far a path agrees with some keys: up to chunk `within` of `node`, `chunks` chunks in all."""

    node: Node
    within: int
    chunks: int


def deepest_match(root: Node, keys: list[bytes]) -> Match:
    """The longest path of full chunks that spells the first of the keys."""
    best = Match(root, 0, 0)
    level = [(root, 0)]
    while level:
        below: list[tuple[Node, int]] = []
        for node, depth in level:
            for child in node.matches.get(keys[depth], ()) if depth < len(keys) else ():
                common = _common(child.keys, keys, depth)
                if depth + common > best.chunks:
                    best = Match(child, common, depth + common)
                if common == len(child.chunks):
                    below.append((child, depth + common))
        level = below
    return best


def _common(run: list[bytes], keys: list[bytes], start: int) -> int:
    """How many keys of a run agree with those from `start` on."""
    count = min(len(run), len(keys) - start)
    if run[:count] == keys[start : start + count]:
        return count
    return next(index for index in range(count) if run[index] != keys[start + index])


def path_to(node: Node) -> list[Node]:
    """Nodes from the root (left out) to this one."""
    nodes = []
    at: Node | None = node
    while at is not None and at.parent is not None:
        nodes.append(at)
        at = at.parent
    nodes.reverse()
    return nodes
