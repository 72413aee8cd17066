"""The forest of prefix trees over token ids: which chunks hold which tokens, and which sequences cover them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Ordered

import numpy as np

from chunkbench.kvcache.changes import Append, Copy, Cut, Fork, Join
from chunkbench.kvcache.errors import EmptySequence, SharedChunk, UnknownSequence, WrongTokens
from chunkbench.kvcache.integers import Ints, ranges
from chunkbench.kvcache.nodes import NO_KEYS, Node, Sequence, deepest_match, path_to
from chunkbench.kvcache.plan import Plan
from chunkbench.kvcache.pool import ChunkPool
from chunkbench.kvcache.slots import Slots
from chunkbench.kvcache.tokens import Tokens, token_array

_NONE: Ints = np.empty(0, np.int64)


class PrefixTree:
    """Prefix trees over chunks of `chunk_size` tokens, found from the token ids alone.

    Only full chunks are shared. A partial chunk belongs to one sequence; once it is full, later joins can match it,
    while the sequences that live at that moment never merge. In depth-first order the sequences that cover a chunk
    are a contiguous range (PAKV, section 3.1 of the paper). `share=False` matches nothing: every sequence is private.

    Rows, here and wherever tensors meet the tree, are the live sequences in order of addition. What one sequence does
    (join, append, leave) costs what that sequence costs; the plan is brought up to date when it is next asked for.
    """

    def __init__(self, chunk_size: int, pool: ChunkPool | None = None, share: bool = True) -> None:
        if chunk_size < 1:
            raise ValueError(f"chunks hold at least 1 token, not {chunk_size}")
        self.chunk_size = chunk_size
        self.pool = pool if pool is not None else ChunkPool()
        self.share = share
        self.plan_rebuilds = 0
        """How often `plan` had to build one."""
        self._root = Node(None, array("q"), [])
        self._live: dict[int, Sequence] = {}  # by id, in order of addition
        self._by_slot: dict[int, Sequence] = {}
        self._next_id = 0
        self._slots = Slots(chunk_size)
        self._plan: Plan | None = None
        self._begun: list[tuple[Ints, Ints]] = []  # slots and their new last chunks, since the plan was made
        self._spare: int | None = None  # tokens that every last chunk still takes; None: to be counted

    # What is held

    def __len__(self) -> int:
        """Number of live sequences."""
        return len(self._live)

    @property
    def sequences(self) -> list[int]:
        """Ids of the live sequences in order of addition."""
        return list(self._live)

    @property
    def lengths(self) -> Ints:
        """Tokens of every live sequence `[b]`, by row."""
        return self._slots.lengths[self.slots].copy()

    @property
    def slots(self) -> Ints | slice:
        """`[b]`, by row: where a sequence stands in arrays that keep a place for it as long as it lives.

        Slots are numbers below the most sequences that ever lived at a time; a slice where rows and slots agree.
        """
        return self._slots.of_rows(self._live.values())

    @property
    def waste(self) -> int:
        """Token slots of chunks in use that hold no token; at most (chunk_size - 1) per live sequence."""
        return int((self.chunk_size - self._slots.last_tokens[self.slots]).sum())

    def slot(self, sequence: int) -> int:
        """A sequence's place in arrays; see `slots`. Raises UnknownSequence."""
        return self._find(sequence).slot

    def length(self, sequence: int) -> int:
        """Tokens of a sequence. Raises UnknownSequence."""
        return int(self._slots.lengths[self._find(sequence).slot])

    def path(self, sequence: int) -> list[int]:
        """Chunk ids of a sequence in token order. Raises UnknownSequence."""
        return [chunk for node in path_to(self._find(sequence).leaf) for chunk in node.chunks]

    def tokens(self, sequence: int) -> Ints:
        """Token ids of a sequence. Raises UnknownSequence."""
        found = self._find(sequence)
        full = np.frombuffer(b"".join(key for node in path_to(found.leaf) for key in node.keys), np.int64)
        return np.concatenate([full, self._slots.tails[found.slot, : self._slots.lengths[found.slot] - len(full)]])

    def match(self, tokens: Tokens) -> int:
        """How many leading tokens a join would find in the cache."""
        return self._match(self._keys(token_array(tokens))) * self.chunk_size

    # What changes it

    def join(self, tokens: Tokens) -> Join:
        """Add a sequence. Raises EmptySequence, WrongTokens, PoolExhausted."""
        ids = token_array(tokens)
        if len(ids) == 0:
            raise EmptySequence("a sequence needs at least one token")
        keys = self._keys(ids)
        match = deepest_match(self._root, keys if self.share else [])
        chunks = self.pool.allocate(-(-len(ids) // self.chunk_size) - match.chunks)
        node = match.node.split(match.within) if match.within < len(match.node.chunks) else match.node
        if chunks:
            node = node.insert(chunks, keys[match.chunks :])
        sequence = self._add(node, len(ids))
        rest = len(ids) % self.chunk_size
        if rest:
            self._slots.tails[sequence.slot, :rest] = ids[-rest:]
        cached = match.chunks * self.chunk_size
        return Join(sequence.id, cached, np.array(chunks, np.int64), len(ids) - cached)

    def fork(self, sequence: int) -> Fork:
        """Add a sequence with the same tokens; a partial last chunk is copied.

        Raises UnknownSequence, PoolExhausted.
        """
        source = self._find(sequence)
        leaf, length = source.leaf, int(self._slots.lengths[source.slot])
        if len(leaf.keys) == len(leaf.chunks):
            return Fork(self._add(leaf, length).id, None)
        (target,) = self.pool.allocate(1)
        above = leaf.split(len(leaf.chunks) - 1) if len(leaf.chunks) > 1 else leaf.parent
        assert above is not None
        twin = self._add(above.insert([target], NO_KEYS), length)
        tokens = int(self._slots.last_tokens[source.slot])
        self._slots.tails[twin.slot, :tokens] = self._slots.tails[source.slot, :tokens]
        return Fork(twin.id, Copy(leaf.chunks[-1], target, tokens))

    def append(self, tokens: Tokens, sequences: Ordered[int] | None = None, counts: Tokens | None = None) -> Append:
        """Add tokens to some sequences: `counts[i]` of them, one by default, to `sequences[i]`, by default to all.

        `tokens` are those of the first sequence, then those of the next. Raises UnknownSequence, WrongTokens,
        PoolExhausted.
        """
        ids = token_array(tokens)
        at = self.slots if sequences is None else self._slots_of(sequences)
        rows = len(self._live if sequences is None else sequences)
        if counts is None:
            if len(ids) != rows:
                whom = "live sequences" if sequences is None else "sequences"
                raise WrongTokens(f"{len(ids)} tokens for {rows} {whom}: append takes one for each")
            return self._append_one(at, ids, every_row=sequences is None)
        slots, taken = np.arange(rows) if isinstance(at, slice) else at, token_array(counts)
        if len(taken) != rows:
            raise WrongTokens(f"{len(taken)} counts for {rows} sequences")
        if rows and taken.min() < 1:
            raise WrongTokens("append takes at least one token for each sequence that is named")
        if taken.sum() != len(ids):
            raise WrongTokens(f"{len(ids)} tokens for {len(slots)} sequences, which are to take {taken.sum()} in all")
        begin = (self._slots.last_tokens[slots] + taken - 1) // self.chunk_size  # chunks that each has to begin
        new = np.array(self.pool.allocate(int(begin.sum())), np.int64)
        appended = self._slots.append(slots, taken, begin, new)
        self._extend_nodes(slots, taken, ids, begin, new)
        self._spare = None
        return appended

    def truncate(self, sequence: int, length: int) -> Cut | None:
        """Keep the first `length` tokens of a sequence; returns where its last chunk is now cut, if it is.

        Chunks that others cover stay for them. Raises UnknownSequence, EmptySequence (length 0), WrongTokens (length
        beyond the sequence), and SharedChunk where the end would lie inside a chunk that others cover.
        """
        found = self._find(sequence)
        held = self._slots.lengths[found.slot]
        if length < 1:
            raise EmptySequence(f"sequence {sequence} cannot be cut to {length} tokens: one is the least")
        if length > held:
            raise WrongTokens(f"sequence {sequence} has {held} tokens, fewer than {length}")
        if length == held:
            return None
        path = path_to(found.leaf)
        keep = -(-length // self.chunk_size)
        rest = length - (keep - 1) * self.chunk_size
        depth, within = 0, keep
        while within > len(path[depth].chunks):
            within -= len(path[depth].chunks)
            depth += 1
        node = path[depth]
        if rest < self.chunk_size and node.references > 1:
            raise SharedChunk(
                f"sequence {sequence} cannot be cut to {length} tokens: {node.references} sequences cover the chunk "
                f"that holds tokens {(keep - 1) * self.chunk_size} to {keep * self.chunk_size - 1}"
            )
        if node.references == 1:
            self._shorten(found, node, within, rest)
        else:
            del found.leaf.ends[sequence]
            end = node.split(within) if within < len(node.chunks) else node
            end.ends[sequence] = found
            found.leaf = end
            self._drop([*([node] if end is not node else []), *path[depth + 1 :]])
        self._slots.end_at(found.slot, length, found.leaf.chunks[-1])
        self._spare = None
        return Cut(found.leaf.chunks[-1], rest) if rest < self.chunk_size else None

    def leave(self, sequence: int) -> None:
        """Remove a sequence; chunks that nobody else covers return to the pool. Raises UnknownSequence."""
        found = self._find(sequence)
        del found.leaf.ends[sequence]
        self._drop(path_to(found.leaf))
        del self._live[sequence], self._by_slot[found.slot]
        self._slots.give_back(found.slot)
        self._spare = None

    # The plan

    def plan(self) -> Plan:
        """The plan of the forest as it is now, built anew only if the structure has changed since the last call."""
        plan = self._plan
        for slots, chunks in self._begun if plan is not None else ():
            plan = plan and plan.grown(self._slots.rows(slots), chunks)
        if plan is None:
            plan = self._build_plan()
        self.plan_rebuilds += plan is not self._plan
        self._begun.clear()
        self._plan = plan
        return plan

    def _build_plan(self) -> Plan:
        runs: list[array[int]] = []
        total = 0
        starts, begins, ends, order = [0], list[int](), list[int](), list[int]()
        stack = list(reversed(self._root.children.values()))
        while stack:
            node = stack.pop()
            runs.append(node.chunks)
            total += len(node.chunks)
            starts.append(total)
            # A node's sequences follow each other in depth-first order, and its first one comes next.
            begins.append(len(order))
            ends.append(len(order) + node.references)
            order.extend(sequence.slot for sequence in node.ends.values())
            stack.extend(reversed(node.children.values()))
        slots = self.slots
        return Plan(
            self.chunk_size,
            np.frombuffer(b"".join(runs), np.int64),
            np.array(starts, np.int64),
            np.array(begins, np.int64),
            np.array(ends, np.int64),
            self._slots.rows(np.array(order, np.int64)),
            self._slots.last_chunks,
            self._slots.last_tokens,
            slots,
        )

    # Nodes and slots

    def _spare_slots(self) -> int:
        """How many tokens the last chunk of every sequence still takes: appends till one begins a chunk."""
        if self._spare is None:
            self._spare = self.chunk_size - int(self._slots.last_tokens[self.slots].max(initial=0))
        return self._spare

    def _slots_of(self, sequences: Ordered[int]) -> Ints:
        slots = np.array([self._find(sequence).slot for sequence in sequences], np.int64)
        if len(set(sequences)) < len(slots):
            raise WrongTokens("append takes each sequence once; put its tokens together")
        return slots

    def _append_one(self, at: Ints | slice, ids: Ints, every_row: bool) -> Append:
        """One token for each of these."""
        arrays, c = self._slots, self.chunk_size
        spare = self._spare_slots() if every_row else 0
        slots = np.arange(at.stop) if isinstance(at, slice) else at
        new = _NONE
        if spare == 0:
            full = slots[arrays.last_tokens[at] == c]
            if len(full):
                new = np.array(self.pool.allocate(len(full)), np.int64)
                for slot, chunk in zip(full.tolist(), new.tolist(), strict=True):
                    self._extend(self._by_slot[slot], (chunk,), NO_KEYS)
                arrays.last_chunks[full] = new
                arrays.last_tokens[full] = 0
                self._begun.append((full, new))
        places = arrays.last_tokens[at].copy()
        arrays.tails[slots, places] = ids
        arrays.last_tokens[at] += 1
        arrays.lengths[at] += 1
        if spare < 2:
            for slot in slots[places == c - 1].tolist():
                self._by_slot[slot].leaf.seal(arrays.tails[slot].tobytes())
        self._spare = spare - 1 if spare > 1 else None
        return Append(arrays.last_chunks[at].copy(), places, new, every_row)

    def _extend_nodes(self, slots: Ints, taken: Ints, ids: Ints, begin: Ints, new: Ints) -> None:
        """Let nodes follow sequences that have taken tokens: new chunks, and the keys of those that are now full."""
        c, tails = self.chunk_size, self._slots.tails
        before = self._slots.last_tokens[slots] + begin * c - taken  # tokens in the last chunk as it was
        first_token, first_chunk = np.cumsum(taken) - taken, np.cumsum(begin) - begin
        for i in np.flatnonzero(before + taken >= c).tolist():
            held, slot = int(before[i]), int(slots[i])
            sequence = self._by_slot[slot]
            mine = ids[first_token[i] : first_token[i] + taken[i]]
            if held < c:
                mine = np.concatenate([tails[slot, :held], mine])
            keys = self._keys(mine)
            if held < c:
                sequence.leaf.seal(keys.pop(0))
            if begin[i]:
                self._extend(sequence, new[first_chunk[i] : first_chunk[i] + begin[i]].tolist(), keys)
            rest = len(mine) % c
            tails[slot, :rest] = mine[len(mine) - rest :]
        inside = np.flatnonzero(before + taken < c)
        rows = np.repeat(slots[inside], taken[inside])
        tails[rows, ranges(before[inside], taken[inside])] = ids[ranges(first_token[inside], taken[inside])]
        if len(new):
            self._begun.append((np.repeat(slots, begin), new))

    def _extend(self, sequence: Sequence, chunks: Iterable[int], keys: list[bytes]) -> None:
        """Let a sequence, whose last chunk is full, go on with new ones."""
        leaf = sequence.leaf
        if leaf.references > 1:
            del leaf.ends[sequence.id]
            sequence.leaf = node = leaf.insert(chunks, keys, 1)
            node.ends[sequence.id] = sequence
            return
        leaf.chunks.extend(chunks)
        for key in keys:
            leaf.seal(key)

    def _find(self, sequence: int) -> Sequence:
        found = self._live.get(sequence)
        if found is None:
            left = isinstance(sequence, int) and 0 <= sequence < self._next_id
            raise UnknownSequence(f"sequence {sequence} has left" if left else f"there is no sequence {sequence}")
        return found

    def _keys(self, ids: Ints) -> list[bytes]:
        """The whole chunks of the token ids, as the bytes by which they are found."""
        data = ids.tobytes()
        step = self.chunk_size * ids.itemsize
        return [data[start : start + step] for start in range(0, len(data) - step + 1, step)]

    def _match(self, keys: list[bytes]) -> int:
        """How many leading chunks are there."""
        return deepest_match(self._root, keys).chunks if self.share else 0

    def _shorten(self, sequence: Sequence, node: Node, chunks: int, rest: int) -> None:
        """Keep the first chunks of a node that only this sequence covers, `rest` tokens in the last of them."""
        full = chunks if rest == self.chunk_size else chunks - 1
        if full < chunks <= len(node.keys):
            self._slots.tails[sequence.slot] = np.frombuffer(node.keys[chunks - 1], np.int64)
        if chunks < len(node.chunks):
            self._plan = None
        self.pool.release(node.keep(chunks, full))

    def _drop(self, path: list[Node]) -> None:
        """One sequence no longer covers these nodes, each the child of the one before."""
        self._plan = None
        unused: list[int] = []
        for node in reversed(path):
            node.references -= 1
            if node.references == 0:
                node.remove()
                unused.extend(node.chunks)
        survivor = next((node for node in reversed(path) if node.references), None)
        if survivor is not None:
            survivor.join_only_child()
        self.pool.release(unused)

    def _add(self, leaf: Node, length: int) -> Sequence:
        """Make a new last row that ends at `leaf`."""
        self._plan = None
        sequence = Sequence(self._next_id, self._slots.take(), leaf)
        self._next_id += 1
        self._live[sequence.id] = self._by_slot[sequence.slot] = sequence
        leaf.ends[sequence.id] = sequence
        for node in path_to(leaf):
            node.references += 1
        self._slots.end_at(sequence.slot, length, leaf.chunks[-1])
        self._spare = None
        return sequence
