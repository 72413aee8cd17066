"""Random operations on each manager and on a slow, obvious model of it: same answers, same accounts, no lost block."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.attention.errors import EmptySequence, UnknownSequence, WrongTokens
from chunkbench.attention.manager import NeverFits
from chunkbench.attention.text import SegmentText, Text, TokenText
from chunkbench.workloads.replay.managers import keyed_blocks
from chunkbench.workloads.replay.managers.contiguous import Contiguous
from chunkbench.workloads.replay.managers.hashed import HashedBlocks
from chunkbench.workloads.replay.managers.keyed_blocks import KeyedBlocks
from chunkbench.workloads.replay.managers.paged import Paged
from tests.workloads.replay.managers.reference import SlowContiguous, SlowHashed, SlowPaged

MANAGERS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[Any, ...]]]] = {
    # A manager, its model, and the arguments that both are made with.
    "contiguous": (Contiguous, SlowContiguous, [(100, "max", 21), (90, "pow2", 24), (75, "exact", 26)]),
    "paged": (Paged, SlowPaged, [(12, 4, 0.1), (30, 1, 0), (9, 3, 0.4)]),
    "hashed": (HashedBlocks, SlowHashed, [(12, 4), (30, 1), (9, 3)]),
}
CASES = [
    pytest.param(manager, model, arguments, id=f"{name} {arguments}")
    for name, (manager, model, made) in MANAGERS.items()
    for arguments in made
]
BATCH = 300
"""Operations until a new, empty memory."""
NAMES = (
    *(*["allocate"] * 5, *["extend"] * 8, *["append"] * 8, *["grow"] * 3, *["fork"] * 3),
    *("free", "preempt", "swap", "misuse"),
)
IDS = 6
LONGEST = 22
# Texts have common prefixes of 0, 5, 8 and 13 tokens; many are equal, and some are prefixes of others.
TOKENS = [[0] * LONGEST, [0] * 8 + [1] * LONGEST, [0] * 13 + [2] * LONGEST, [3] * LONGEST]
SEGMENTS = [[(1, LONGEST)], [(2, 5), (3, LONGEST)], [(2, 5), (4, 8), (5, LONGEST)], [(2, 5), (4, 8), (6, LONGEST)]]

Operation = tuple[str, int, int]


def cut(segments: list[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """The first `length` tokens of segments."""
    kept = []
    for segment, tokens in segments:
        if length > 0:
            kept.append((segment, min(tokens, length)))
        length -= tokens
    return kept


def new_text(a: int, b: int) -> Text:
    total = 1 + a % LONGEST
    prompt = 1 + b % total
    kind = (a // LONGEST + b) % 8
    if kind < 4:
        return TokenText(TOKENS[kind][:total], prompt, total)
    return SegmentText(cut(SEGMENTS[kind - 4], total), prompt)


class Both:
    """A manager, its model, and a memory in which every slot says what was written to it last."""

    def __init__(self, manager: Any, model: Any) -> None:
        self.manager, self.model = manager, model
        self.texts: dict[int, Text] = {}
        self.known: dict[int, int] = {}
        self.done: dict[int, int] = {}
        """Tokens of the live sequences that are in memory."""
        self.swapped: set[int] = set()
        self.preempted: list[tuple[Text, int]] = []
        self.memory: dict[tuple[int, int], int] = {}
        self.segments = 100

    def same(self, call: Callable[[Any], Any]) -> Any:
        """What both answer; NeverFits if both raise it."""
        answers = []
        for one in (self.manager, self.model):
            try:
                answers.append(call(one))
            except NeverFits:
                answers.append(NeverFits)
        assert answers[0] == answers[1]
        return answers[0]

    def do(self, name: str, a: int, b: int) -> None:
        live = sorted(self.done)
        if name in ("allocate", "misuse"):
            getattr(self, name)(a, b)
        elif name in ("append", "grow"):
            ready = [s for s in live if self.done[s] == self.known[s] < self.texts[s].total]
            if name == "append":
                self.append([sequence for sequence in ready if a >> sequence & 1] or ready)
            elif ready:
                self.grow(ready[a % len(ready)], b)
        elif name == "swap":
            if isinstance(self.manager, Paged):
                self.swap(a, b)
        elif live:
            getattr(self, name)(live[a % len(live)], b)
        self.check(new_text(a, b))

    def allocate(self, a: int, b: int) -> None:
        sequence = a % IDS
        if sequence in self.known:
            with pytest.raises(ValueError, match="lives already"):
                self.manager.allocate(sequence, new_text(a, b), 1)
            return
        again = bool(self.preempted) and b % 2 == 0
        text, known = self.preempted.pop() if again else (new_text(a, b), new_text(a, b).prompt)
        cached = self.same(lambda one: one.allocate(sequence, text, known))
        if cached is not None and cached is not NeverFits:
            assert 0 <= cached < known
            self.texts[sequence], self.known[sequence], self.done[sequence] = text, known, cached

    def extend(self, sequence: int, b: int) -> None:
        begin = max(self.done[sequence], self.manager.computed_tokens(sequence))
        if begin < self.known[sequence]:
            tokens = self.known[sequence] if b % 2 else begin + 1 + b // 2 % (self.known[sequence] - begin)
            if self.same(lambda one: one.extend(sequence, tokens)):
                self.done[sequence] = tokens
                self.write(sequence, begin, tokens)

    def append(self, sequences: list[int]) -> None:
        if self.copying(sequences, lambda one: one.append(sequences)):
            for sequence in sequences:
                self.known[sequence] += 1
                self.done[sequence] += 1
                self.write(sequence, self.done[sequence] - 1, self.done[sequence])

    def grow(self, sequence: int, b: int) -> None:
        """Several tokens at once; `extend` computes them."""
        more = 1 + b % (self.texts[sequence].total - self.known[sequence])
        if self.copying([sequence], lambda one: one.grow(sequence, more)):
            self.known[sequence] += more

    def copying(self, sequences: list[int], call: Callable[[Any], Any]) -> Any:
        """What both answer to a call after which blocks of these sequences may be copies of others."""
        before = {sequence: self.slots(sequence) for sequence in sequences}
        answer, old = self.same(call), self.memory.copy()
        for sequence in sequences:
            for source, target in zip(before[sequence], self.slots(sequence), strict=True):
                self.memory[target] = old[source]  # as after a copy on write
        return answer

    def fork(self, sequence: int, b: int) -> None:
        twin = b % IDS
        if self.done[sequence] != self.known[sequence]:
            return
        text = self.twin_text(sequence, b)
        if twin in self.known:
            with pytest.raises(ValueError, match="lives already"):
                self.manager.fork(sequence, twin, self.texts[sequence])
        elif self.same(lambda one: one.fork(sequence, twin, text)) is True:
            self.texts[twin], self.known[twin], self.done[twin] = text, self.known[sequence], self.done[sequence]
            for source, target in zip(self.slots(sequence), self.slots(twin), strict=True):
                self.memory[target] = self.memory[source]

    def twin_text(self, sequence: int, b: int) -> Text:
        """The same text, or one that goes on differently."""
        text, length = self.texts[sequence], self.known[sequence]
        prompt, more = min(text.prompt, length), b // IDS % 6
        if more == 0:
            return text
        if isinstance(text, TokenText):
            return TokenText([*text.ids[:length], *[7 + b % 2] * more], prompt, length + more)
        assert isinstance(text, SegmentText)
        self.segments += 1
        return SegmentText([*cut(list(text.segments), length), (self.segments, more)], prompt)

    def free(self, sequence: int, b: int) -> None:
        self.same(lambda one: one.free(sequence))
        self.forget(sequence)

    def preempt(self, sequence: int, b: int) -> None:
        self.same(lambda one: one.free(sequence))
        self.preempted.append((self.texts[sequence], self.known[sequence]))
        self.forget(sequence)

    def swap(self, a: int, b: int) -> None:
        """Swap a sequence out; or one in; or one that is out is freed."""
        ready = sorted(s for s in self.done if self.done[s] == self.known[s])
        out = sorted(self.swapped)
        if ready and b % 2:
            sequence = ready[a % len(ready)]
            assert self.same(lambda one: one.swap_out(sequence)) == self.known[sequence]
            self.swapped.add(sequence)
            del self.done[sequence]
        elif out and b % 10:
            sequence = out[a % len(out)]
            if self.same(lambda one: one.swap_in(sequence)) is True:
                self.swapped.remove(sequence)
                self.done[sequence] = self.known[sequence]
                self.write(sequence, 0, self.known[sequence])
        elif out:
            self.done[out[0]] = 0
            self.free(out[0], 0)
            self.swapped.remove(out[0])

    def misuse(self, a: int, b: int) -> None:
        """An id that nobody has, or that of a sequence that is swapped out; the model does not see these calls."""
        nobody, manager = min(set(range(IDS + 1)) - set(self.known)), self.manager
        ready = [sequence for sequence in self.done if self.done[sequence] == self.known[sequence]]
        calls = [(manager.free, nobody)]
        for unknown in (nobody, *self.swapped):
            calls += [
                (manager.computed_tokens, unknown),
                (manager.table, unknown),
                (manager.extend, unknown, 1),
                (manager.append, [*ready, unknown]),
                (manager.grow, unknown, 2),
                (manager.fork, unknown, 99, new_text(a, b)),
            ]
            if isinstance(manager, Paged):
                calls.append((manager.swap_out, unknown))
        for method, *arguments in calls:
            with pytest.raises(UnknownSequence):
                method(*arguments)

    def forget(self, sequence: int) -> None:
        del self.texts[sequence], self.known[sequence], self.done[sequence]

    def slots(self, sequence: int) -> list[tuple[int, int]]:
        """Block and offset of each token of a sequence that is in memory; none if the manager has no tables."""
        if not hasattr(self.manager, "table"):
            return []
        size, table = self.manager.block_tokens, self.manager.table(sequence)
        return [(table[place // size], place % size) for place in range(self.done[sequence])]

    def write(self, sequence: int, first: int, last: int) -> None:
        tokens = self.texts[sequence].tokens(first, last).tolist()
        self.memory.update(zip(self.slots(sequence)[first:last], tokens, strict=False))

    def check(self, text: Text) -> None:
        manager, model = self.manager, self.model
        accounts, reads = manager.accounts(), manager.reads()
        assert accounts == model.accounts()
        assert reads == model.reads()
        assert accounts.capacity == manager.capacity
        assert min(vars(accounts).values()) >= 0
        assert (reads.private + reads.shared, reads.private + reads.shared_covered) == (accounts.used, accounts.covered)
        assert manager.slots_held == model.slots_held
        assert manager.cached(text) == model.cached(text)
        for counter in ("copies", "evictions"):
            assert getattr(manager, counter, 0) == getattr(model, counter, 0)
        for sequence in self.done:
            assert manager.computed_tokens(sequence) == model.computed_tokens(sequence)
            slots = self.slots(sequence)
            # What another sequence wrote over, or what was never written, is not what the text says.
            assert [self.memory[slot] for slot in slots] == self.texts[sequence].tokens(0, len(slots)).tolist()


@pytest.mark.parametrize(("manager", "model", "arguments"), CASES)
def test_a_manager_does_what_its_model_does(manager: Any, model: Any, arguments: tuple[Any, ...]) -> None:
    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 999), st.integers(0, 999)), max_size=50))
    def run(operations: list[Operation]) -> None:
        both = Both(manager(*arguments), model(*arguments))
        for operation in operations:
            both.do(*operation)

    run()


def drawn(seed: int) -> Iterator[Operation]:
    chance = random.Random(seed)
    for _ in range(BATCH):
        yield chance.choice(NAMES), chance.randrange(1000), chance.randrange(1000)


def soak(both: Both, seed: int) -> None:
    """BATCH operations on a manager and its model; at the end no block is lost."""
    done: list[Operation] = []
    try:
        for operation in drawn(seed):
            done.append(operation)
            both.do(*operation)
    except Exception as error:
        error.add_note(f"seed {seed}, the last operations: {done[-5:]}")
        raise
    for sequence in [*both.done, *both.swapped]:
        both.manager.free(sequence)
    left = both.manager.accounts()
    assert left.evictable + left.free + left.external_fragmentation == left.capacity == both.manager.capacity


@pytest.mark.parametrize(("manager", "model", "arguments"), CASES)
def test_soak(manager: Any, model: Any, arguments: tuple[Any, ...]) -> None:
    """Many more seeds: `make torture PART=forests`."""
    for seed in range(3):
        soak(Both(manager(*arguments), model(*arguments)), seed)


def test_texts_meet_what_the_models_assume() -> None:
    """Equal keys mean equal prefixes, also between the two kinds of texts."""
    texts = [new_text(a, b) for a in range(0, 1000, 3) for b in range(8)]
    names: dict[int, tuple[int, ...]] = {}
    for text in texts:
        for place, key in enumerate(np.asarray(text.keys(3)).tolist()):
            name = tuple(text.tokens(0, 3 * place + 3).tolist())
            assert names.setdefault(key, name) == name
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize("arguments", MANAGERS["hashed"][2], ids=str)
def test_blocks_with_one_key_while_the_queue_is_cleaned_all_the_time(
    arguments: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences that compute one prompt at once have blocks of their own with equal keys. They are evicted, too."""
    monkeypatch.setattr(keyed_blocks, "_MOST_OUTDATED", -(10**9))
    equal = evictions = 0
    for seed in range(5):
        manager = HashedBlocks(*arguments)
        both = Both(manager, SlowHashed(*arguments))
        for operation in drawn(seed):
            both.do(*operation)
            assert isinstance(manager._pool, KeyedBlocks)
            equal += bool(manager._pool._more)
        evictions += manager.evictions
    assert equal > 100
    assert evictions > 20


ONE = TokenText([1], 1, 1)
MISUSE: list[tuple[Callable[[], object], type[Exception], str]] = [
    *[(partial(Paged, *given), ValueError, "no memory") for given in ((0, 4), (4, 0), (4, 4, 1.0), (4, 4, -0.1))],
    *[(partial(HashedBlocks, *given), ValueError, "no memory") for given in ((0, 4), (4, 0))],
    (partial(Contiguous, 0, "max", 1), ValueError, "at least 1 slot"),
    (partial(Contiguous, 1, "max", 0), ValueError, "at least 1 token"),
    (partial(Contiguous, 1, "all", 1), ValueError, '"all"'),  # type: ignore[arg-type]
    (partial(Paged(4, 4).allocate, 1, ONE, 0), EmptySequence, ""),
    (partial(HashedBlocks(4, 4).allocate, 1, ONE, 0), EmptySequence, ""),
    (partial(Contiguous(8, "exact", 8).allocate, 1, ONE, 0), EmptySequence, ""),
    *[(partial(SegmentText, [(id, 4)], 4), WrongTokens, "lie between 0 and 274877906943") for id in (-1, 1 << 38)],
]


@pytest.mark.parametrize(("call", "error", "words"), MISUSE)
def test_misuse(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words or None):
        call()


def segments(*parts: tuple[int, int]) -> SegmentText:
    """A prompt of segments (id, tokens)."""
    return SegmentText(parts, sum(tokens for _, tokens in parts))


def run(manager: Any, sequence: int, prompt: SegmentText) -> int | None:
    """Join, compute the prompt, leave. Returns the tokens that were found."""
    cached: int | None = manager.allocate(sequence, prompt, prompt.prompt)
    if cached is not None:
        assert manager.extend(sequence, prompt.prompt)
        manager.free(sequence)
    return cached


def test_tokens_that_the_text_does_not_know_have_no_key() -> None:
    manager = HashedBlocks(4, 2)
    assert manager.allocate(1, TokenText([5, 6, 7], prompt=3, total=8), 3) == 0
    assert manager.extend(1, 3)
    assert manager.append([1])
    manager.free(1)
    assert manager.accounts().evictable == 2
    assert manager.cached(TokenText([5, 6, 7, 8, 9], prompt=5, total=8)) == 2


def test_a_key_behind_a_block_without_one() -> None:
    manager = HashedBlocks(8, 2)
    assert manager.allocate(1, TokenText([5, 6, 7], prompt=3, total=6), 3) == 0
    assert manager.extend(1, 3)
    assert manager.append([1])  # the second block is full and has no key
    assert manager.fork(1, 2, TokenText([5, 6, 7, 8, 9, 4], prompt=3, total=6))
    assert manager.append([2])
    assert manager.append([2])  # the third has one
    manager.free(1)
    manager.free(2)
    assert manager.accounts().evictable == 4
    assert manager.cached(TokenText([5, 6, 7, 8, 9, 4, 3], prompt=7, total=8)) == 2
    assert run(manager, 3, segments((1, 16))) == 0
    assert manager.evictions == 2


def test_a_memory_without_limit_costs_what_is_used_of_it() -> None:
    manager = HashedBlocks(1 << 60, 16)
    assert run(manager, 1, segments((1, 100))) == 0
    assert manager.cached(segments((1, 100))) == 96
    assert manager.accounts().capacity == manager.capacity == 1 << 64


def test_what_is_used_again_and_again_takes_no_more_memory() -> None:
    manager = HashedBlocks(4100, 1)
    for sequence in range(30):
        assert run(manager, sequence, segments((1, 4000), (2 + sequence, 1))) == (4000 if sequence else 0)
        assert manager._pool._queued <= 2 * manager._pool.evictable + keyed_blocks._MOST_OUTDATED
    assert manager.cached(segments((1, 4000), (31, 9))) == 4001
