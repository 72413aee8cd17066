"""Random joins, leaves, forks, appends and truncates, checked against a model without trees."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chunkbench.attention.errors import EmptySequence, KVCacheError, PoolExhausted, WrongTokens
from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.tree import PrefixTree
from chunkbench.kernels.changes import Copy

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)


def state(tree):
    """Everything that a caller can observe of a tree."""
    plan = tree.plan()
    return {
        "tokens": {s: tree.tokens(s).tolist() for s in tree.sequences},
        "paths": {s: tree.path(s) for s in tree.sequences},
        "sequences": tree.sequences,
        "lengths": tree.lengths.tolist(),
        "segments": [(s.chunks.tolist(), s.begin, s.end) for s in plan.segments],
        "tokens of segments": plan.tokens.tolist(),
        "order": plan.order.tolist(),
        "in_use": tree.pool.in_use,
        "live": tree.live_chunks,
        "waste": tree.waste,
    }


class Model(RuleBasedStateMachine):
    """Sequences are lists of tokens, and a stored chunk is a dictionary from slot to token."""

    @initialize(
        chunk_size=st.integers(1, 4),
        limit=st.one_of(st.none(), st.integers(3, 14)),
        share=st.sampled_from([True, True, True, False]),
        retain=st.booleans(),
        deferred=st.booleans(),
    )
    def start(self, chunk_size, limit, share, retain, deferred):
        self.c, self.limit = chunk_size, limit
        self.share, self.retain, self.deferred = share, retain, deferred
        self.tree = PrefixTree(chunk_size, ChunkPool(limit), share, retain, deferred)
        self.tokens: dict[int, list[int]] = {}
        self.memory: dict[tuple[int, int], int] = {}
        self.written: dict[int, bool] = {}
        """By chunk id: whether K and V of the whole chunk are there."""
        self.left: list[list[int]] = []
        """Tokens of written chunks that sequences gave up: a tree with `retain` keeps them until it needs the room."""

    def attempt(self, call):
        """Run an operation. If it raises, the tree must be unchanged."""
        before = state(self.tree)
        try:
            return call()
        except KVCacheError as error:
            assert state(self.tree) == before
            return error

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.tokens)))

    @rule(tokens=prompts)
    def join(self, tokens):
        live = max((self.common(tokens, other) for other in self.tokens.values()), default=0)
        kept = max((self.common(tokens, other) for other in self.left), default=0)
        shared = self.tree.match(tokens)
        if not self.share:
            assert shared == 0
        elif self.limit is None:
            assert shared == max(live, kept)
        else:
            assert live <= shared <= max(live, kept)
        needed = -(-len(tokens) // self.c) - shared // self.c
        joined = self.attempt(lambda: self.tree.join(tokens))
        if isinstance(joined, KVCacheError):
            assert isinstance(joined, PoolExhausted)
            return
        assert joined.cached == shared
        assert len(joined.chunks) == needed
        self.begin(joined.chunks)
        for place, token in enumerate(tokens[joined.cached :]):
            self.write(int(joined.chunks[place // self.c]), place % self.c, token)
        self.tokens[joined.sequence] = list(tokens)

    @rule(tokens=prompts, data=st.data())
    @precondition(lambda self: self.tokens)
    def join_with_a_common_prefix(self, tokens, data):
        other = self.tokens[self.pick(data)]
        self.join(other[: data.draw(st.integers(0, len(other)))] + tokens)

    @rule(data=st.data())
    @precondition(lambda self: self.tokens)
    def leave(self, data):
        sequence = self.pick(data)
        self.give_up(sequence)
        self.tree.leave(sequence)
        del self.tokens[sequence]

    @rule(data=st.data())
    @precondition(lambda self: self.tokens)
    def append(self, data):
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=len(self.tokens), max_size=len(self.tokens)))
        needed = sum(len(own) % self.c == 0 for own in self.tokens.values())
        appended = self.attempt(lambda: self.tree.append(tokens))
        if isinstance(appended, KVCacheError):
            assert isinstance(appended, PoolExhausted)
            return
        assert len(appended.new) == needed
        self.begin(appended.new)
        for row, sequence in enumerate(self.tokens):
            self.tokens[sequence].append(tokens[row])
            self.write(int(appended.chunks[row]), int(appended.slots[row]), tokens[row])

    @rule(data=st.data())
    @precondition(lambda self: self.tokens)
    def append_to_some(self, data):
        """Any subset of the sequences in any order, any number of tokens for each."""
        subset = data.draw(st.lists(st.sampled_from(sorted(self.tokens)), unique=True, max_size=4))
        one_token_each = data.draw(st.booleans())
        most = 1 if one_token_each else 3 * self.c + 1
        lists = [data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=most)) for _ in subset]
        flat = [token for tokens in lists for token in tokens]
        counts = None if one_token_each else [len(tokens) for tokens in lists]
        needed = sum(
            (len(self.tokens[sequence]) + len(tokens) - 1) // self.c - (len(self.tokens[sequence]) - 1) // self.c
            for sequence, tokens in zip(subset, lists, strict=True)
        )
        appended = self.attempt(lambda: self.tree.append(flat, subset, counts))
        if isinstance(appended, KVCacheError):
            assert isinstance(appended, PoolExhausted)
            return
        assert len(appended.new) == needed
        self.begin(appended.new)
        assert not appended.every_row
        for chunk, slot, token in zip(appended.chunks.tolist(), appended.slots.tolist(), flat, strict=True):
            self.write(chunk, slot, token)
        for sequence, tokens in zip(subset, lists, strict=True):
            self.tokens[sequence] += tokens

    @rule(data=st.data())
    @precondition(lambda self: self.tokens)
    def fork(self, data):
        source = self.pick(data)
        forked = self.attempt(lambda: self.tree.fork(source))
        if isinstance(forked, KVCacheError):
            assert isinstance(forked, PoolExhausted)
            return
        rest = len(self.tokens[source]) % self.c
        assert (forked.copy is not None) == (rest > 0)
        if forked.copy is not None:
            assert forked.copy.held == forked.copy.tokens == rest
            self.copy(forked.copy)
        self.tokens[forked.sequence] = list(self.tokens[source])

    @rule(data=st.data())
    @precondition(lambda self: self.tokens)
    def truncate(self, data):
        sequence = self.pick(data)
        tokens, path = self.tokens[sequence], self.tree.path(sequence)
        length = data.draw(st.integers(1, len(tokens)))
        full, rest = divmod(length, self.c)
        others = {chunk for other in self.tokens if other != sequence for chunk in self.tree.path(other)}
        result = self.attempt(lambda: self.tree.truncate(sequence, length))
        if isinstance(result, KVCacheError):
            assert isinstance(result, PoolExhausted)
            assert path[full] in others  # it needs a chunk of its own,
            assert self.tree.live_chunks == self.limit  # there is none,
            assert others.issuperset(path)  # and it gives none up
            return
        if rest == 0 or length == len(tokens):
            assert result is None
        else:
            assert (result.source, result.tokens) == (path[full], rest)
            assert result.held == min(len(tokens) - full * self.c, self.c)
            if path[full] in others or (self.limit is None and full < self.kept_chunks(sequence, path)):
                assert result.target != result.source
            elif full >= self.kept_chunks(sequence, path):
                assert result.target == result.source
        self.give_up(sequence, path)
        if result is not None:
            self.copy(result)
        self.tokens[sequence] = tokens[:length]

    @rule(data=st.data())
    @precondition(lambda self: self.tokens and self.deferred)
    def mark_written(self, data):
        """K and V of the next full chunks of a sequence have come."""
        sequence = self.pick(data)
        chunks = self.tree.path(sequence)[: len(self.tokens[sequence]) // self.c]
        first = self.tree.written_tokens(sequence) // self.c
        new = chunks[first : data.draw(st.integers(first, max(first, len(chunks))))]
        self.tree.mark_written(np.array(new, np.int64))
        self.written.update(dict.fromkeys(new, True))

    @rule(unknown=st.integers(-2, 40), data=st.data())
    def misuse(self, unknown, data):
        if unknown not in self.tokens:
            for call in (self.tree.leave, self.tree.fork, lambda s: self.tree.truncate(s, 1)):
                assert isinstance(self.attempt(lambda call=call: call(unknown)), KVCacheError)
        wrong = [0] * (len(self.tokens) + 1)
        assert isinstance(self.attempt(lambda: self.tree.append(wrong)), KVCacheError)
        assert isinstance(self.attempt(lambda: self.tree.join([])), KVCacheError)
        subset = sorted(self.tokens)[:1]
        for sequence in subset:
            for length in (0, len(self.tokens[sequence]) + 1):
                cut = self.attempt(lambda s=sequence, n=length: self.tree.truncate(s, n))
                assert isinstance(cut, EmptySequence if length == 0 else WrongTokens)
        for sequences, counts, tokens in (
            ([unknown] if unknown not in self.tokens else [*subset, *subset, *subset], None, [0, 0, 0]),
            (subset, [2], [0]),
            (subset, [0], []),
            (subset, [1, 1], [0, 0]),
            (None, [1] * (len(self.tokens) + 1), wrong),
        ):
            if sequences != []:
                refused = self.attempt(lambda s=sequences, c=counts, t=tokens: self.tree.append(t, s, c))
                assert isinstance(refused, KVCacheError)

    def begin(self, chunks):
        self.written.update(dict.fromkeys(map(int, chunks), not self.deferred))

    def copy(self, copy: Copy):
        """What the store does. In a copy or a cut chunk, not all K and V are there any more."""
        for slot in range(copy.tokens):
            self.write(copy.target, slot, self.memory[copy.source, slot])
        self.begin([copy.target])

    def kept_chunks(self, sequence, path):
        """Leading chunks of a sequence that are full and written."""
        full = path[: len(self.tokens[sequence]) // self.c]
        missing = [n for n, chunk in enumerate(full) if not self.written[chunk]]
        return (missing[0] if missing else len(full)) if self.retain else 0

    def give_up(self, sequence, path=None):
        kept = self.kept_chunks(sequence, self.tree.path(sequence) if path is None else path)
        self.left.append(self.tokens[sequence][: kept * self.c])

    def write(self, chunk, slot, token):
        """Write a token. `paths_hold_the_tokens` fails if a live sequence then reads another token."""
        self.memory[chunk, slot] = token

    def common(self, tokens, other):
        """Number of tokens in the leading full chunks that both lists have in common."""
        full = min(len(tokens), len(other)) // self.c * self.c
        return max(n for n in range(0, full + 1, self.c) if tokens[:n] == other[:n])

    @invariant()
    def paths_hold_the_tokens(self):
        assert self.tree.sequences == list(self.tokens)
        assert self.tree.lengths.tolist() == [len(tokens) for tokens in self.tokens.values()]
        for sequence, tokens in self.tokens.items():
            path = self.tree.path(sequence)
            assert len(path) == -(-len(tokens) // self.c)
            assert [self.memory[path[n // self.c], n % self.c] for n in range(len(tokens))] == tokens
            assert self.tree.tokens(sequence).tolist() == tokens

    @invariant()
    def nothing_leaks(self):
        used = {chunk for sequence in self.tokens for chunk in self.tree.path(sequence)}
        assert self.tree.live_chunks == len(used)
        assert self.tree.pool.in_use == len(used) or self.retain
        distinct = {(chunk, n) for s, t in self.tokens.items() for n in range(len(t)) for chunk in [self.at(s, n)]}
        slots = {(chunk, n % self.c) for chunk, n in distinct}
        assert self.tree.waste == len(used) * self.c - len(slots)
        assert self.tree.waste <= (self.c - 1) * len(self.tokens)

    def at(self, sequence, n):
        return self.tree.path(sequence)[n // self.c]

    @invariant()
    def the_plan_describes_the_paths(self):
        plan = self.tree.plan()
        assert self.tree.plan() is plan
        order = [self.tree.sequences[row] for row in plan.order]
        assert sorted(order) == sorted(self.tokens)
        paths: dict[int, list[int]] = {sequence: [] for sequence in order}
        token_counts: dict[int, int] = dict.fromkeys(order, 0)
        chunks: list[int] = []
        for segment, tokens in zip(plan.segments, plan.tokens, strict=True):
            assert segment.begin < segment.end
            assert len(segment.chunks) > 0
            chunks += segment.chunks.tolist()
            for sequence in order[segment.begin : segment.end]:
                paths[sequence] += segment.chunks.tolist()
                token_counts[sequence] += tokens
        assert len(set(chunks)) == len(chunks)
        # The sequences of a chunk are one range, and parents come before children, so this restores the paths.
        assert paths == {sequence: self.tree.path(sequence) for sequence in order}
        assert token_counts == {sequence: len(self.tokens[sequence]) for sequence in order}
        # Segments are maximal: no two segments have the same sequences, unless chunks were kept between them.
        ranges = [(segment.begin, segment.end) for segment in plan.segments]
        assert len(set(ranges)) == len(ranges) or self.retain

    @invariant()
    def only_what_came_counts_as_written(self):
        for sequence in self.tokens:
            path = self.tree.path(sequence)
            assert self.tree.written(np.array(path, np.int64)).tolist() == [self.written[chunk] for chunk in path]


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
