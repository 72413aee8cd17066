"""The forest of prefix trees over token ids: which chunks hold which tokens, and which sequences cover them."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np

from chunkbench.kvcache.changes import Append, Copy, Cut, Fork, Join
from chunkbench.kvcache.errors import EmptySequence, SharedChunk, UnknownSequence, WrongTokens
from chunkbench.kvcache.plan import Ints, Plan
from chunkbench.kvcache.pool import ChunkPool
from chunkbench.kvcache.tokens import Tokens, token_array

_NONE: Ints = np.empty(0, np.int64)


class _Node:
    """A chunk in the forest; the root of the forest is a node without a chunk."""

    __slots__ = ("children", "chunk", "ends", "key", "matches", "parent", "references")

    def __init__(self, chunk: int, parent: _Node | None, key: bytes | None) -> None:
        self.chunk = chunk
        self.parent = parent
        self.key = key  # the token ids of a full chunk; None while it is partial
        self.references = 0  # sequences that cover it
        self.children: dict[int, _Node] = {}  # by chunk id, in order of insertion: this fixes the depth-first order
        # Full children by content. Live sequences never merge, so several siblings can hold the same tokens.
        self.matches: dict[bytes, list[_Node]] = {}
        self.ends: dict[int, _Sequence] = {}  # sequences whose last chunk this is


class _Sequence:
    __slots__ = ("id", "leaf", "row")

    def __init__(self, id: int, row: int, leaf: _Node) -> None:
        self.id = id
        self.row = row
        self.leaf = leaf


class PrefixTree:
    """Prefix trees whose nodes are chunks of `chunk_size` tokens, found from the token ids alone.

    Only full chunks are shared. A partial chunk belongs to one sequence; once it is full, later joins can match it,
    while the sequences that live at that moment never merge. In depth-first order the sequences that cover a chunk
    are a contiguous range (PAKV, section 3.1 of the paper). `share=False` matches nothing: every sequence is private.

    Rows, here and wherever tensors meet the tree, are the live sequences in order of addition.
    """

    def __init__(self, chunk_size: int, pool: ChunkPool | None = None, share: bool = True) -> None:
        if chunk_size < 1:
            raise ValueError(f"chunks hold at least 1 token, not {chunk_size}")
        self.chunk_size = chunk_size
        self.pool = pool if pool is not None else ChunkPool()
        self.share = share
        self.plan_rebuilds = 0
        """How often `plan` had to build one."""
        self._root = _Node(-1, None, None)
        self._live: list[_Sequence] = []
        self._by_id: dict[int, _Sequence] = {}
        self._next_id = 0
        self._plan: Plan | None = None
        self._begun: list[tuple[Ints, Ints]] = []  # rows and their new last chunks, since the plan was made
        self._spare: int | None = None  # tokens that every last chunk still takes; None: to be counted
        # By row; longer than the number of live sequences, so that joins seldom reallocate.
        self._lengths = np.zeros(8, np.int64)
        self._last_chunks = np.zeros(8, np.int64)
        self._last_tokens = np.zeros(8, np.int64)
        self._tails = np.zeros((8, chunk_size), np.int64)  # token ids of the last chunk, valid while it is partial

    # What is held

    def __len__(self) -> int:
        """Number of live sequences."""
        return len(self._live)

    @property
    def sequences(self) -> list[int]:
        """Ids of the live sequences in order of addition."""
        return [sequence.id for sequence in self._live]

    @property
    def lengths(self) -> Ints:
        """Tokens of every live sequence `[b]`, by row."""
        return self._lengths[: len(self._live)].copy()

    @property
    def waste(self) -> int:
        """Token slots of chunks in use that hold no token; at most (chunk_size - 1) per live sequence."""
        return int((self.chunk_size - self._last_tokens[: len(self._live)]).sum())

    def row(self, sequence: int) -> int:
        """Place of a sequence in order of addition. Raises UnknownSequence."""
        return self._find(sequence).row

    def path(self, sequence: int) -> list[int]:
        """Chunk ids of a sequence in token order. Raises UnknownSequence."""
        return [node.chunk for node in self._nodes(self._find(sequence))]

    def tokens(self, sequence: int) -> Ints:
        """Token ids of a sequence. Raises UnknownSequence."""
        found = self._find(sequence)
        full = b"".join(node.key for node in self._nodes(found) if node.key is not None)
        if found.leaf.key is not None:
            return np.frombuffer(full, np.int64)
        tail = self._tails[found.row, : self._last_tokens[found.row]]
        return np.concatenate([np.frombuffer(full, np.int64), tail])

    def match(self, tokens: Tokens) -> int:
        """How many leading tokens a join would find in the cache."""
        return self._match(self._keys(token_array(tokens)))[1] * self.chunk_size

    def chunks_to_join(self, tokens: Tokens) -> int:
        """How many new chunks a join of these tokens would take."""
        ids = token_array(tokens)
        return -(-len(ids) // self.chunk_size) - self._match(self._keys(ids))[1]

    def chunks_to_append(self) -> int:
        """How many new chunks the next append would take."""
        if self._spare_slots():
            return 0
        return int(np.count_nonzero(self._last_tokens[: len(self._live)] == self.chunk_size))

    def chunks_to_fork(self, sequence: int) -> int:
        """How many new chunks a fork would take: 1 if the last chunk is partial, else 0. Raises UnknownSequence."""
        return int(self._find(sequence).leaf.key is None)

    # What changes it

    def join(self, tokens: Tokens) -> Join:
        """Add a sequence. Raises EmptySequence, WrongTokens, PoolExhausted."""
        ids = token_array(tokens)
        if len(ids) == 0:
            raise EmptySequence("a sequence needs at least one token")
        keys: list[bytes | None] = list(self._keys(ids))
        node, depth = self._match(keys)
        rest = len(ids) % self.chunk_size
        if rest:
            keys.append(None)
        chunks = self.pool.allocate(len(keys) - depth)
        for chunk, key in zip(chunks, keys[depth:], strict=True):
            node = self._insert(node, chunk, key)
        sequence = self._add(node, len(ids))
        if rest:
            self._tails[sequence.row, :rest] = ids[-rest:]
        return Join(sequence.id, depth * self.chunk_size, np.array(chunks, np.int64))

    def fork(self, sequence: int) -> Fork:
        """Add a sequence with the same tokens; a partial last chunk is copied.

        Raises UnknownSequence, PoolExhausted.
        """
        source = self._find(sequence)
        length = int(self._lengths[source.row])
        if source.leaf.key is not None:
            return Fork(self._add(source.leaf, length).id, None)
        tokens = int(self._last_tokens[source.row])
        (target,) = self.pool.allocate(1)
        assert source.leaf.parent is not None
        twin = self._add(self._insert(source.leaf.parent, target, None), length)
        self._tails[twin.row, :tokens] = self._tails[source.row, :tokens]
        return Fork(twin.id, Copy(source.leaf.chunk, target, tokens))

    def append(self, tokens: Tokens) -> Append:
        """Add one token to every live sequence, by row. Raises WrongTokens, PoolExhausted."""
        ids = token_array(tokens)
        rows = len(self._live)
        if len(ids) != rows:
            raise WrongTokens(f"{len(ids)} tokens for {rows} live sequences: append takes one for each")
        last_chunks, last_tokens = self._last_chunks[:rows], self._last_tokens[:rows]
        spare = self._spare_slots()
        new = _NONE if spare else self._begin_chunks(np.flatnonzero(last_tokens == self.chunk_size))
        slots = last_tokens.copy()
        self._tails[np.arange(rows), slots] = ids
        last_tokens += 1
        self._lengths[:rows] += 1
        self._spare = spare - 1 if spare > 1 else None
        if self._spare is None:
            for row in np.flatnonzero(last_tokens == self.chunk_size).tolist():
                self._seal(self._live[row].leaf, self._tails[row].tobytes())
        return Append(last_chunks.copy(), slots, new)

    def truncate(self, sequence: int, length: int) -> Cut | None:
        """Keep the first `length` tokens of a sequence; returns where its last chunk is now cut, if it is.

        Chunks that others cover stay for them. Raises UnknownSequence, EmptySequence (length 0), WrongTokens (length
        beyond the sequence), and SharedChunk where the end would lie inside a chunk that others cover.
        """
        found = self._find(sequence)
        row = found.row
        if length < 1:
            raise EmptySequence(f"sequence {sequence} cannot be cut to {length} tokens: one is the least")
        if length > self._lengths[row]:
            raise WrongTokens(f"sequence {sequence} has {self._lengths[row]} tokens, fewer than {length}")
        if length == self._lengths[row]:
            return None
        keep = -(-length // self.chunk_size)
        nodes = self._nodes(found)
        leaf, dropped = nodes[keep - 1], nodes[keep:]
        rest = length - (keep - 1) * self.chunk_size
        if rest < self.chunk_size and leaf.references > 1:
            raise SharedChunk(
                f"sequence {sequence} cannot be cut to {length} tokens: {leaf.references} sequences cover the chunk "
                f"that holds tokens {(keep - 1) * self.chunk_size} to {keep * self.chunk_size - 1}"
            )
        if dropped:
            self._end(found, leaf)
            self._drop(dropped)
        if rest < self.chunk_size and leaf.key is not None:
            self._tails[row] = np.frombuffer(leaf.key, np.int64)
            self._unseal(leaf)
        self._lengths[row] = length
        self._last_chunks[row] = leaf.chunk
        self._last_tokens[row] = rest
        self._spare = None
        return Cut(leaf.chunk, rest) if rest < self.chunk_size else None

    def leave(self, sequence: int) -> None:
        """Remove a sequence; chunks that nobody else covers return to the pool. Raises UnknownSequence."""
        found = self._find(sequence)
        del found.leaf.ends[sequence]
        self._drop(self._nodes(found))
        rows = len(self._live)
        for array in (self._lengths, self._last_chunks, self._last_tokens, self._tails):
            array[found.row : rows - 1] = array[found.row + 1 : rows]
        self._spare = None
        del self._live[found.row], self._by_id[sequence]
        for below in self._live[found.row :]:
            below.row -= 1

    # The plan

    def plan(self) -> Plan:
        """The plan of the forest as it is now, built anew only if the structure has changed since the last call."""
        plan = self._plan
        for rows, chunks in self._begun if plan is not None else ():
            plan = plan and plan.grown(rows, chunks)
        if plan is None:
            plan = self._build_plan()
        self.plan_rebuilds += plan is not self._plan
        self._begun.clear()
        self._plan = plan
        return plan

    def _build_plan(self) -> Plan:
        chunks: list[int] = []
        starts, begins, ends, order = [0], list[int](), list[int](), list[int]()
        stack = list(reversed(self._root.children.values()))
        while stack:
            node = stack.pop()
            chunks.append(node.chunk)
            while len(node.children) == 1 and not node.ends:
                (node,) = node.children.values()
                chunks.append(node.chunk)
            # A segment's sequences follow each other in depth-first order, and its first one comes next.
            starts.append(len(chunks))
            begins.append(len(order))
            ends.append(len(order) + node.references)
            order.extend(sequence.row for sequence in node.ends.values())
            stack.extend(reversed(node.children.values()))
        rows = len(self._live)
        return Plan(
            self.chunk_size,
            np.array(chunks, np.int64),
            np.array(starts, np.int64),
            np.array(begins, np.int64),
            np.array(ends, np.int64),
            np.array(order, np.int64),
            self._last_chunks[:rows],
            self._last_tokens[:rows],
        )

    # Nodes and rows

    def _spare_slots(self) -> int:
        """How many tokens the last chunk of every sequence still takes: appends till one begins a chunk."""
        if self._spare is None:
            self._spare = self.chunk_size - int(self._last_tokens[: len(self._live)].max(initial=0))
        return self._spare

    def _begin_chunks(self, rows: Ints) -> Ints:
        """Give these rows, whose last chunks are full, new ones; returns them. Raises PoolExhausted."""
        new = self.pool.allocate(len(rows))
        for row, chunk in zip(rows.tolist(), new, strict=True):
            sequence = self._live[row]
            self._end(sequence, self._insert(sequence.leaf, chunk, None, references=1))
        chunks = np.array(new, np.int64)
        self._last_chunks[rows] = chunks
        self._last_tokens[rows] = 0
        self._begun.append((rows, chunks))
        return chunks

    def _find(self, sequence: int) -> _Sequence:
        found = self._by_id.get(sequence)
        if found is None:
            left = isinstance(sequence, int) and 0 <= sequence < self._next_id
            raise UnknownSequence(f"sequence {sequence} has left" if left else f"there is no sequence {sequence}")
        return found

    def _nodes(self, sequence: _Sequence) -> list[_Node]:
        """Nodes from the forest's root (left out) to the sequence's last chunk."""
        nodes = []
        node = sequence.leaf
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def _keys(self, ids: Ints) -> list[bytes]:
        """The whole chunks of the token ids, as the bytes by which they are found."""
        data = ids.tobytes()
        step = self.chunk_size * ids.itemsize
        return [data[start : start + step] for start in range(0, len(data) - step + 1, step)]

    def _match(self, keys: Ordered[bytes | None]) -> tuple[_Node, int]:
        """The deepest node whose path spells the first keys, and its depth."""
        if not self.share:
            return self._root, 0
        level = [self._root]
        depth = 0
        for key in keys:
            below = [child for node in level for child in node.matches.get(key or b"", ())]
            if not below:
                break
            level = below
            depth += 1
        return level[0], depth

    def _insert(self, parent: _Node, chunk: int, key: bytes | None, references: int = 0) -> _Node:
        node = _Node(chunk, parent, None)
        node.references = references
        parent.children[chunk] = node
        if key is not None:
            self._seal(node, key)
        return node

    def _seal(self, node: _Node, key: bytes) -> None:
        """The chunk is full: from now on joins find it."""
        assert node.parent is not None
        node.key = key
        node.parent.matches.setdefault(key, []).append(node)

    def _unseal(self, node: _Node) -> None:
        assert node.parent is not None
        assert node.key is not None
        twins = node.parent.matches[node.key]
        twins.remove(node)
        if not twins:
            del node.parent.matches[node.key]
        node.key = None

    def _end(self, sequence: _Sequence, leaf: _Node) -> None:
        del sequence.leaf.ends[sequence.id]
        leaf.ends[sequence.id] = sequence
        sequence.leaf = leaf

    def _drop(self, nodes: list[_Node]) -> None:
        """One sequence no longer covers these nodes of its path."""
        self._plan = None
        unused = []
        for node in nodes:
            node.references -= 1
            if node.references == 0:
                assert node.parent is not None
                if node.key is not None:
                    self._unseal(node)
                del node.parent.children[node.chunk]
                unused.append(node.chunk)
        self.pool.release(unused)

    def _add(self, leaf: _Node, length: int) -> _Sequence:
        """Make a new last row that ends at `leaf`."""
        self._plan = None
        row = len(self._live)
        if row == len(self._lengths):
            self._lengths, self._last_chunks, self._last_tokens, self._tails = (
                np.concatenate([array, np.zeros_like(array)])
                for array in (self._lengths, self._last_chunks, self._last_tokens, self._tails)
            )
        sequence = _Sequence(self._next_id, row, leaf)
        self._next_id += 1
        self._live.append(sequence)
        self._by_id[sequence.id] = sequence
        leaf.ends[sequence.id] = sequence
        for node in self._nodes(sequence):
            node.references += 1
        self._lengths[row] = length
        self._last_chunks[row] = leaf.chunk
        self._last_tokens[row] = (length - 1) % self.chunk_size + 1
        self._spare = None
        return sequence
