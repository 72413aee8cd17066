"""The forest of prefix trees over token ids. It knows the tokens of each chunk and the sequences that cover the
chunk."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from chunkbench.attention.errors import EmptySequence, PoolExhausted, UnknownSequence, WrongTokens
from chunkbench.attention.nodes import NO_KEYS, PrefixMatch, TreeNode, TreeSequence, deepest_match, path_to
from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.retention import EvictableNodes
from chunkbench.attention.slots import Slots
from chunkbench.attention.tokens import Tokens, token_array
from chunkbench.kernels.changes import Append, Copy, Fork, Join
from chunkbench.kernels.integers import Ints, ranges
from chunkbench.kernels.plan import Plan

_NONE: Ints = np.empty(0, np.int64)


class PrefixTree:
    """Prefix trees over chunks of `chunk_size` tokens (PAKV, section 3.1 of the paper). Token ids alone decide sharing.

    Only full chunks are shared. A partial chunk belongs to one sequence. Once it is full, later joins can match it, but
    sequences that are already live never merge. The sequences that cover a chunk are a contiguous range in depth-first
    order.

    - `share=False`: a join matches nothing, so every sequence has private chunks.
    - `retain`: the full, written chunks of sequences that left stay for later joins (RadixAttention). When the pool
      needs chunks, the least recently used are evicted first.
    - `deferred`: K and V of a chunk come some time after its tokens, and the owner calls `mark_written`. Without
      `deferred`, every chunk counts as written.

    Rows, here and in all tensors, are the live sequences in order of addition. The cost of an operation (join, append,
    leave) depends only on the sequence that it changes. The tree updates the plan at the next call of `plan`.
    """

    def __init__(
        self,
        chunk_size: int,
        pool: ChunkPool | None = None,
        share: bool = True,
        retain: bool = False,
        deferred: bool = False,
    ) -> None:
        if chunk_size < 1:
            raise ValueError(f"chunks hold at least 1 token, not {chunk_size}")
        self.chunk_size = chunk_size
        self.pool = pool if pool is not None else ChunkPool()
        self.share = share
        self.evictable = EvictableNodes() if retain else None
        """The chunks that no live sequence covers; None without `retain`."""
        self.plan_rebuilds = 0
        """Number of new plans that `plan` has returned so far."""
        self._deferred = deferred
        self._written: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)  # by chunk id
        self._root = TreeNode(None, array("q"), [])
        self._live: dict[int, TreeSequence] = {}  # by id, in order of addition
        self._by_slot: dict[int, TreeSequence] = {}
        self._next_id = 0
        self._slots = Slots(chunk_size)
        self._plan: Plan | None = None
        self._free_tokens: int | None = None  # cached result of `_count_free_tokens`; None: outdated

    # Queries

    def __len__(self) -> int:
        return len(self._live)

    @property
    def sequences(self) -> list[int]:
        """Ids of the live sequences in order of addition."""
        return list(self._live)

    @property
    def lengths(self) -> Ints:
        """`[b]`, by row: number of tokens of every live sequence."""
        return self._slots.lengths[self.slots].copy()

    @property
    def slots(self) -> Ints | slice:
        """`[b]`, by row: the sequence's index in arrays that have an entry for each live sequence. The index never
        changes while the sequence lives.

        All slots are smaller than the largest number of sequences that were ever live at once. The result is a slice if
        every row equals its slot.
        """
        return self._slots.of_rows(self._live.values())

    @property
    def live_chunks(self) -> int:
        """Number of chunks that live sequences cover."""
        return self.pool.in_use - (self.evictable.chunks if self.evictable else 0)

    @property
    def waste(self) -> int:
        """Token slots of chunks in use that hold no token; at most (chunk_size - 1) per live sequence."""
        return int((self.chunk_size - self._slots.last_tokens[self.slots]).sum())

    def slot(self, sequence: int) -> int:
        """Slot of a sequence, as in `slots`. Raises UnknownSequence."""
        return self._find(sequence).slot

    def length(self, sequence: int) -> int:
        """Number of tokens of a sequence. Raises UnknownSequence."""
        return int(self._slots.lengths[self._find(sequence).slot])

    def path(self, sequence: int) -> list[int]:
        """Ids of a sequence's chunks in token order. Raises UnknownSequence."""
        return [chunk for node in path_to(self._find(sequence).leaf) for chunk in node.chunks]

    def own_chunks(self, sequence: int) -> Ints:
        """Ids of the sequence's chunks that no other live sequence covers. Raises UnknownSequence."""
        nodes = path_to(self._find(sequence).leaf)
        return np.array([chunk for node in nodes if node.references == 1 for chunk in node.chunks], np.int64)

    def tokens(self, sequence: int) -> Ints:
        """Token ids of a sequence. Raises UnknownSequence."""
        entry = self._find(sequence)
        full = np.frombuffer(b"".join(key for node in path_to(entry.leaf) for key in node.keys), np.int64)
        return np.concatenate([full, self._slots.tails[entry.slot, : self._slots.lengths[entry.slot] - len(full)]])

    def match(self, tokens: Tokens) -> int:
        """Number of leading tokens that a join would find in the cache."""
        return self.match_keys(self.keys(tokens))

    def keys(self, tokens: Tokens) -> list[bytes]:
        """The keys that `match` looks up, one for each full chunk of these tokens."""
        return self._keys(token_array(tokens))

    def match_keys(self, keys: list[bytes]) -> int:
        """Like `match`, for tokens with these keys."""
        return self._match(keys).chunks * self.chunk_size

    def written(self, chunks: Ints) -> npt.NDArray[np.bool_]:
        """`[n]`: whether each of these chunks holds K and V in all its token slots."""
        return self._written[chunks]

    def written_tokens(self, sequence: int) -> int:
        """Number of leading tokens of a sequence that lie in written chunks. Raises UnknownSequence."""
        return min(self._written_chunks(self.path(sequence)) * self.chunk_size, self.length(sequence))

    # Changes

    def mark_written(self, chunks: Ints, written: bool = True) -> None:
        """Declare whether K and V of these full chunks are written. Chunks that will be written before they are read
        count as written."""
        self._written[chunks] = written

    def join(self, tokens: Tokens, spare: int = 0, share: bool = True) -> Join:
        """Add a sequence. Without `share` it matches nothing. Raises EmptySequence, WrongTokens, PoolExhausted.

        Also raises PoolExhausted, and changes nothing, if fewer than `spare` chunks would be left for live sequences.
        """
        ids = token_array(tokens)
        if len(ids) == 0:
            raise EmptySequence("a sequence needs at least one token")
        keys = self._keys(ids)
        match = self._match(keys if share else [])
        needed = -(-len(ids) // self.chunk_size) - match.chunks
        chunks, node = self._allocate_beside(match, needed, spare)
        if chunks:
            node = node.insert(chunks, keys[match.chunks :])
        sequence = self._add(node, len(ids))
        tail = len(ids) % self.chunk_size
        if tail:
            self._slots.tails[sequence.slot, :tail] = ids[-tail:]
        cached = match.chunks * self.chunk_size
        return Join(sequence.id, cached, np.array(chunks, np.int64), len(ids) - cached)

    def fork(self, sequence: int) -> Fork:
        """Add a sequence with the same tokens. A partial last chunk is copied. Raises UnknownSequence,
        PoolExhausted."""
        source = self._find(sequence)
        leaf, length = source.leaf, int(self._slots.lengths[source.slot])
        if len(leaf.keys) == len(leaf.chunks):
            return Fork(self._add(leaf, length).id, None)
        (target,) = self._allocate(1)
        above = leaf.split(len(leaf.chunks) - 1) if len(leaf.chunks) > 1 else leaf.parent
        assert above is not None
        twin = self._add(above.insert([target], NO_KEYS), length)
        tokens = int(self._slots.last_tokens[source.slot])
        self._slots.tails[twin.slot, :tokens] = self._slots.tails[source.slot, :tokens]
        return Fork(twin.id, Copy(leaf.chunks[-1], target, tokens, tokens))

    def append(self, tokens: Tokens, sequences: Sequence[int] | None = None, counts: Tokens | None = None) -> Append:
        """Add `counts[i]` tokens to `sequences[i]`. The default is one token for each live sequence, in the order of
        rows.

        `tokens` lists the tokens of the first sequence, then those of the next, and so on. Raises UnknownSequence,
        WrongTokens, PoolExhausted.
        """
        ids = token_array(tokens)
        index = self.slots if sequences is None else self._slots_of(sequences)
        rows = len(self._live if sequences is None else sequences)
        if counts is None:
            if len(ids) != rows:
                kind = "live sequences" if sequences is None else "sequences"
                raise WrongTokens(f"{len(ids)} tokens for {rows} {kind}: append takes one for each")
            return self._append_one(index, ids, every_row=sequences is None)
        slots, token_counts = np.arange(rows) if isinstance(index, slice) else index, token_array(counts)
        if len(token_counts) != rows:
            raise WrongTokens(f"{len(token_counts)} counts for {rows} sequences")
        if rows and token_counts.min() < 1:
            raise WrongTokens("append takes at least one token for each of the sequences")
        if token_counts.sum() != len(ids):
            raise WrongTokens(f"{len(ids)} tokens for {rows} sequences, but the counts add up to {token_counts.sum()}")
        chunk_counts = (self._slots.last_tokens[slots] + token_counts - 1) // self.chunk_size  # new chunks of each
        new = np.array(self._allocate(int(chunk_counts.sum())), np.int64)
        appended = self._slots.append(slots, token_counts, chunk_counts, new)
        self._extend_nodes(slots, token_counts, ids, chunk_counts, new)
        self._free_tokens = None
        return appended

    def truncate(self, sequence: int, length: int) -> Copy | None:
        """Keep the first `length` tokens of a sequence. `leave` says what becomes of the chunks after these tokens.

        If the new end lies inside a chunk, the result says where the tokens of this chunk are now. They stay in the
        chunk (`target == source`), unless other sequences cover the chunk or `retain` keeps it. Then the tokens move to
        a new chunk.

        Raises UnknownSequence, EmptySequence (length 0), WrongTokens (length beyond the sequence), PoolExhausted (no
        room for a new chunk, and no chunk becomes free).
        """
        entry = self._find(sequence)
        before = self._slots.lengths[entry.slot]
        if length < 1:
            raise EmptySequence(f"sequence {sequence} cannot be cut to {length} tokens: a sequence needs at least one")
        if length > before:
            raise WrongTokens(f"sequence {sequence} has {before} tokens, fewer than {length}")
        if length == before:
            return None
        full, last_tokens = divmod(length, self.chunk_size)
        path, kept_chunks = path_to(entry.leaf), self._kept_chunks(sequence)
        depth, place = 0, full
        while place >= len(path[depth].chunks):
            place -= len(path[depth].chunks)
            depth += 1
        node = path[depth]  # its chunk number `place` is the first that is no longer full
        source, key = node.chunks[place], node.keys[place : place + 1]
        stays = node.references > 1 or full < kept_chunks or any(below.evictable_children for below in path[depth:])
        new: list[int] = []
        if last_tokens and stays:
            try:
                new = self._allocate(1)
            except PoolExhausted:
                if entry.leaf.references > 1:
                    raise
                # A chunk that the sequence gives up makes room.
        elif last_tokens:
            place += 1
            if place == len(node.chunks):
                depth, place = depth + 1, 0
        end = node.split(place) if place else path[depth - 1] if depth else self._root
        del entry.leaf.ends[sequence]
        if path[depth:]:
            self._drop(path[depth:], kept_chunks - full)
        if last_tokens and stays:
            above, end = end, end.insert(new or self._allocate(1), NO_KEYS, 1)
            above.merge_only_child()
        elif last_tokens:
            end.keep(len(end.chunks), len(end.chunks) - 1)
            self._written[source] = not self._deferred
        end.ends[sequence] = entry
        entry.leaf = end
        if last_tokens and key:
            self._slots.tails[entry.slot] = np.frombuffer(key[0], np.int64)
        self._slots.end_at(entry.slot, length, end.chunks[-1])
        self._free_tokens = None
        held = min(int(before) - full * self.chunk_size, self.chunk_size)
        return Copy(source, end.chunks[-1], last_tokens, held) if last_tokens else None

    def leave(self, sequence: int) -> None:
        """Remove a sequence. The chunks that only this sequence covers return to the pool. With `retain`, written ones
        are kept instead. Raises UnknownSequence."""
        entry = self._find(sequence)
        kept = self._kept_chunks(sequence)
        del entry.leaf.ends[sequence]
        self._drop(path_to(entry.leaf), kept)
        del self._live[sequence], self._by_slot[entry.slot]
        self._slots.give_back(entry.slot)
        self._free_tokens = None

    # The plan

    def plan(self) -> Plan:
        """The plan of the current forest: a new object only if the structure changed since the last call."""
        if self._plan is None:
            self._plan = self._build_plan()
            self.plan_rebuilds += 1
        return self._plan

    def shared_chunks(self) -> tuple[int, int]:
        """Numbers of chunks that several sequences cover. The first number counts each chunk once. The second counts it
        once for every sequence that covers it."""
        once = covered = 0
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            if node.references > 1:  # the nodes below a node of one sequence belong to the same sequence
                once += len(node.chunks)
                covered += len(node.chunks) * node.references
                stack.extend(node.children.values())
        return once, covered

    def _nodes_in_order(self) -> list[TreeNode]:
        """The nodes that live sequences cover, in depth-first order, without the root."""
        nodes: list[TreeNode] = []
        stack = [iter(self._root.children.values())]
        while stack:
            for node in stack[-1]:
                nodes.append(node)
                if node.children:
                    stack.append(iter(node.children.values()))
                    break
            else:
                stack.pop()
        return nodes

    def _build_plan(self) -> Plan:
        nodes = self._nodes_in_order()
        starts = np.zeros(len(nodes) + 1, np.int64)
        runs = [node.chunks for node in nodes]
        np.cumsum([*map(len, runs)], out=starts[1:])
        # In depth-first order a node's sequences are contiguous, and those that end at the node come first.
        ends = [node.ends for node in nodes]
        own = np.array([*map(len, ends)], np.int64)
        begins = np.cumsum(own) - own
        covering = np.array([node.references for node in nodes], np.int64)
        order = [sequence.slot for of_node in ends for sequence in of_node.values()]
        slots = self.slots
        return Plan(
            self.chunk_size,
            np.frombuffer(b"".join(runs), np.int64),
            starts,
            begins,
            begins + covering,
            self._slots.rows(np.array(order, np.int64)),
            self._slots.last_chunks,
            self._slots.last_tokens,
            slots,
        )

    # Nodes and slots

    def _count_free_tokens(self) -> int:
        """Number of free token slots in the fullest last chunk: one token can be appended to every sequence this number
        of times without a new chunk."""
        if self._free_tokens is None:
            self._free_tokens = self.chunk_size - int(self._slots.last_tokens[self.slots].max(initial=0))
        return self._free_tokens

    def _slots_of(self, sequences: Sequence[int]) -> Ints:
        slots = np.array([self._find(sequence).slot for sequence in sequences], np.int64)
        if len(set(sequences)) < len(slots):
            raise WrongTokens("append takes each sequence once: give all its tokens together")
        return slots

    def _append_one(self, index: Ints | slice, ids: Ints, every_row: bool) -> Append:
        """Append one token to each of the slots `index`."""
        arrays, c = self._slots, self.chunk_size
        free_tokens = self._count_free_tokens() if every_row else 0
        slots = np.arange(index.stop) if isinstance(index, slice) else index
        new = _NONE
        if free_tokens == 0:
            full = slots[arrays.last_tokens[index] == c]
            if len(full):
                new = np.array(self._allocate(len(full)), np.int64)
                for slot, chunk in zip(full.tolist(), new.tolist(), strict=True):
                    sequence = self._by_slot[slot]
                    leaf = sequence.leaf
                    if leaf.shared_end:
                        leaf.branch(chunk, sequence)
                    else:
                        leaf.chunks.append(chunk)
                arrays.last_chunks[full] = new
                arrays.last_tokens[full] = 0
                self._plan = None
        places = arrays.last_tokens[index].copy()
        arrays.tails[slots, places] = ids
        arrays.last_tokens[index] += 1
        arrays.lengths[index] += 1
        if free_tokens < 2:
            for slot in slots[places == c - 1].tolist():
                self._by_slot[slot].leaf.seal(arrays.tails[slot].tobytes())
        self._free_tokens = free_tokens - 1 if free_tokens > 1 else None
        return Append(arrays.last_chunks[index].copy(), places, new, every_row)

    def _extend_nodes(self, slots: Ints, token_counts: Ints, ids: Ints, chunk_counts: Ints, new: Ints) -> None:
        """Update nodes and `tails` after an append: add the new chunks, and the keys of chunks that are now full."""
        c, tails = self.chunk_size, self._slots.tails
        before = self._slots.last_tokens[slots] + chunk_counts * c - token_counts  # in the old last chunk
        first_token, first_chunk = np.cumsum(token_counts) - token_counts, np.cumsum(chunk_counts) - chunk_counts
        for i in np.flatnonzero(before + token_counts >= c).tolist():
            last_tokens, slot = int(before[i]), int(slots[i])
            sequence = self._by_slot[slot]
            own_ids = ids[first_token[i] : first_token[i] + token_counts[i]]
            if last_tokens < c:
                own_ids = np.concatenate([tails[slot, :last_tokens], own_ids])
            keys = self._keys(own_ids)
            if last_tokens < c:
                sequence.leaf.seal(keys.pop(0))
            if chunk_counts[i]:
                self._extend(sequence, new[first_chunk[i] : first_chunk[i] + chunk_counts[i]].tolist(), keys)
            tail = len(own_ids) % c
            tails[slot, :tail] = own_ids[len(own_ids) - tail :]
        partial = np.flatnonzero(before + token_counts < c)
        counts = token_counts[partial]
        rows = np.repeat(slots[partial], counts)
        tails[rows, ranges(before[partial], counts)] = ids[ranges(first_token[partial], counts)]
        if len(new):
            self._plan = None

    def _extend(self, sequence: TreeSequence, chunks: Iterable[int], keys: list[bytes]) -> None:
        """Add new chunks to a sequence whose last chunk is full."""
        leaf = sequence.leaf
        if leaf.shared_end:
            del leaf.ends[sequence.id]
            sequence.leaf = node = leaf.insert(chunks, keys, 1)
            node.ends[sequence.id] = sequence
            return
        leaf.chunks.extend(chunks)
        for key in keys:
            leaf.seal(key)

    def _match(self, keys: list[bytes]) -> PrefixMatch:
        return deepest_match(self._root, keys if self.share else [], self.pool.shareable)

    def _find(self, sequence: int) -> TreeSequence:
        entry = self._live.get(sequence)
        if entry is None:
            left = isinstance(sequence, int) and 0 <= sequence < self._next_id
            raise UnknownSequence(f"sequence {sequence} has left" if left else f"there is no sequence {sequence}")
        return entry

    def _keys(self, ids: Ints) -> list[bytes]:
        """The key (the bytes of the token ids) of each full chunk."""
        data = ids.tobytes()
        step = self.chunk_size * ids.itemsize
        return [data[start : start + step] for start in range(0, len(data) - step + 1, step)]

    def _allocate_beside(self, match: PrefixMatch, chunks: int, spare: int) -> tuple[list[int], TreeNode]:
        """Take chunks without evicting those that a join matches. Returns the chunks and the node at which the match
        ends, split if needed.

        Raises PoolExhausted, and the errors of the pool's `make_room`; then nothing has changed.
        """
        evictable = [node for node in path_to(match.node) if node.evictable_since is not None] if self.evictable else []
        if self.pool.limit is not None:
            matched = sum(len(node.chunks) for node in evictable)
            if evictable:
                matched -= len(match.node.chunks) - match.node_chunks
            room = self.pool.limit - self.live_chunks - matched
            if chunks + spare > room:
                to_spare = f" and {spare} to spare" if spare else ""
                raise PoolExhausted(
                    f"{chunks} more chunks are needed{to_spare}; of at most {self.pool.limit} only {room} are available"
                )
        if self.evictable is None:
            return self._allocate(chunks), _end(match)
        node = _end(match)
        for above in path_to(node):
            if above.evictable_since is not None:
                self.evictable.remove(above)
        try:
            return self._allocate(chunks), node
        except BaseException:
            for above in reversed(path_to(node)):
                if above.references == 0:
                    self.evictable.add(above)
            node.merge_only_child()
            raise

    def _allocate(self, chunks: int) -> list[int]:
        """Take chunks from the pool, and evict others if necessary. Raises PoolExhausted, and then evicts none."""
        if self.evictable is not None and self.pool.limit is not None:
            # The limit may fall when chunks return to the pool.
            while 0 < (missing := chunks - (self.pool.limit - self.pool.in_use)) <= self.evictable.chunks:
                self.pool.release(self.evictable.evict(missing))
        ids = self.pool.allocate(chunks)
        if self.pool.capacity > len(self._written):
            more = np.zeros(self.pool.capacity - len(self._written), np.bool_)
            self._written = np.append(self._written, more)
        self._written[ids] = not self._deferred
        return ids

    def _kept_chunks(self, sequence: int) -> int:
        """Number of leading chunks that `retain` keeps when a sequence gives them up."""
        if self.evictable is None:
            return 0
        path, full = self.path(sequence), self.length(sequence) // self.chunk_size
        return self.pool.shareable(path, min(self._written_chunks(path), full))

    def _written_chunks(self, path: list[int]) -> int:
        """Number of leading chunks of a path that are written."""
        missing = np.flatnonzero(~self._written[path])
        return int(missing[0]) if len(missing) else len(path)

    def _drop(self, path: list[TreeNode], keep: int = 0) -> None:
        """Release the nodes of a path, from the top down, for one sequence that no longer covers them.

        Full chunks among the first `keep` chunks of the path become evictable instead.
        """
        self._plan = None
        unused: list[int] = []
        end = sum(len(node.chunks) for node in path)
        if self.evictable:
            self.evictable.advance_clock()
        for node in reversed(path):
            node.references -= 1
            begin = end - len(node.chunks)
            if node.references == 0:
                full = min(len(node.keys), max(0, keep - begin))
                if node.evictable_children:
                    full = len(node.keys)  # the evictable nodes below this node were written after it
                if self.evictable and full:
                    unused.extend(node.keep(full, full))
                    self.evictable.add(node)
                else:
                    node.remove()
                    unused.extend(node.chunks)
            end = begin
        survivor = next((node for node in reversed(path) if node.references), None)
        if survivor is not None:
            survivor.merge_only_child()
        self.pool.release(unused)

    def _add(self, leaf: TreeNode, length: int) -> TreeSequence:
        """Add a sequence that ends at `leaf` as the last row."""
        self._plan = None
        sequence = TreeSequence(self._next_id, self._slots.take(), leaf)
        self._next_id += 1
        self._live[sequence.id] = self._by_slot[sequence.slot] = sequence
        leaf.ends[sequence.id] = sequence
        for node in path_to(leaf):
            node.references += 1
        self._slots.end_at(sequence.slot, length, leaf.chunks[-1])
        self._free_tokens = None
        return sequence


def _end(match: PrefixMatch) -> TreeNode:
    """The node that ends with the last matching chunk, split off if necessary."""
    return match.node.split(match.node_chunks) if match.node_chunks < len(match.node.chunks) else match.node
