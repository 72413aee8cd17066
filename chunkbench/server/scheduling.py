"""Decides which sequences run in each step: order of the queue, admission, limits, preemption. Works with any cache
manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, NamedTuple, TypeVar, cast

from chunkbench.attention.manager import Manager, NeverFits
from chunkbench.attention.text import Text


@dataclass(eq=False)
class Entry(ABC):
    """A request that waits or runs. `arrival` is its id in the cache manager."""

    arrival: int
    """Position of the request in the order of arrival."""
    _: KW_ONLY
    computed: int = 0
    """Number of leading tokens whose K and V are in the cache at the end of the current step."""
    joined: int = 0
    """Number of tokens of the prompt and the answer when the request was last admitted, or when several appended
    tokens last got slots at once. 0 before the first admission."""
    cached_tokens: int | None = None
    """Number of prompt tokens that were not computed; None until the first part of the prompt is computed."""
    preempted: int = 0
    """How many times the request was preempted."""
    _prompt_keys: list[int] | None = None

    @property
    @abstractmethod
    def text(self) -> Text:
        """The token ids for the cache manager."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of tokens of the prompt and of the answer so far."""

    def prompt_keys(self, block_tokens: int) -> list[int]:
        """Keys of the full blocks of the prompt. The first call computes them, so all calls must give the same block
        size."""
        if self._prompt_keys is None:
            full = self.text.prompt // block_tokens
            self._prompt_keys = self.text.keys(block_tokens)[:full].tolist()
        return self._prompt_keys

    @property
    def width(self) -> int:
        """Number of sequences that run once the prompt is computed: one for each answer."""
        return 1

    @property
    def mates(self) -> Sequence[Entry]:
        """This request, and all requests that can run only together with it. After a preemption, the first request of
        the list begins again for all."""
        return (self,)

    def restart(self) -> None:
        """Begin again after a preemption, without K and V."""
        self.preempted += 1
        self.computed = 0

    @property
    def generated(self) -> int:
        """Number of tokens of the answer so far."""
        return self.length - self.text.prompt

    @property
    def grown(self) -> bool:
        """Whether several tokens were appended at once and have no slots yet."""
        return self.length - 1 > self.computed >= self.joined > 0

    @property
    def decoding(self) -> bool:
        """Whether only the last token must be computed, and this token was generated after the tokens that `joined`
        counts."""
        return self.computed == self.length - 1 >= self.joined > 0

    def cut(self, tokens: int) -> None:
        """Record that only the first `tokens` tokens have valid K and V, because later tokens were replaced."""
        self.computed = min(self.computed, tokens)
        self.joined = min(self.joined, tokens)


E = TypeVar("E", bound=Entry)
Order = Callable[[Sequence[E], Manager], list[E]]
MOST_MATCHED = 128
"""Maximum number of waiting requests that `longest_prefix` sorts. A longer queue keeps the order of arrival, because
looking up all prompts would take too long."""


def by_arrival(waiting: Sequence[E], manager: Manager) -> list[E]:
    """First come, first served."""
    return list(waiting)


def longest_prefix(waiting: Sequence[E], manager: Manager) -> list[E]:
    """Longest cached prefix first (RadixAttention). Requests with equally long prefixes keep the order of arrival."""
    if len(waiting) > MOST_MATCHED:
        return list(waiting)
    return sorted(waiting, key=lambda entry: -manager.cached(entry.text))


def depth_first(waiting: Sequence[E], manager: Manager) -> list[E]:
    """Group waiting requests by shared prefixes, and finish one group before the next. Groups with cached prefixes come
    first, then larger groups.

    This order computes every shared token only once under two conditions: all requests are waiting at the start, and
    the cache has room for the longest request (RadixAttention).
    """
    size = manager.block_tokens
    ordered: list[E] = []
    stack: list[tuple[Sequence[E], int]] = [(waiting, 0)]
    while stack:
        group, depth = stack.pop()
        if len(group) == 1:
            ordered += group
            continue
        ends: list[E] = []
        branches: dict[int, list[E]] = {}
        for entry in group:
            own = entry.prompt_keys(size)
            if depth < len(own):
                branches.setdefault(own[depth], []).append(entry)
            else:
                ends.append(entry)
        ordered += ends
        below = list(branches.values())
        if len(below) > 1:
            begun = [manager.cached(branch[0].text) > depth * size for branch in below]
            first_to_last = sorted(zip(begun, below, strict=True), key=lambda pair: (not pair[0], -len(pair[1])))
            below = [branch for _, branch in first_to_last]
        stack += [(branch, depth + 1) for branch in reversed(below)]
    return ordered


def shortest(waiting: Sequence[E], manager: Manager) -> list[E]:
    return sorted(waiting, key=lambda entry: entry.text.prompt)


ORDERS: Mapping[str, Order[Entry]] = {
    "fcfs": by_arrival,
    "prefix": longest_prefix,
    "depth-first": depth_first,
    "shortest": shortest,
}
"""Name of an order in experiments and in `chunkbench serve` -> its function."""


@dataclass(frozen=True)
class Rules:
    max_batch: int = 32
    """Maximum number of sequences in a step. The default is the paper's."""
    prompt_budget: int = 512
    """Maximum number of prompt tokens in a step."""
    decode_in_budget: bool = False
    """Whether tokens of decoding sequences count towards `prompt_budget`, as in vLLM 1."""
    spare: bool = True
    """If True, a request is admitted only if one block per running sequence stays free. Otherwise growing sequences
    would soon preempt the new request."""
    order: str = "fcfs"
    swap: bool = False
    """If True, preempted sequences are swapped out, if the manager can do this. Otherwise they are computed again."""


class Piece(NamedTuple, Generic[E]):
    """A part of a sequence to compute: `tokens` tokens from position `first` on."""

    entry: E
    first: int
    tokens: int

    @property
    def sampled(self) -> bool:
        """Whether the part ends with the last token, whose logits give the next token."""
        return self.first + self.tokens == self.entry.length


@dataclass
class Step(Generic[E]):
    decoding: list[E] = field(default_factory=list)
    """Sequences for which the step computes one token, in order of admission."""
    prompts: list[Piece[E]] = field(default_factory=list)
    preempted: int = 0
    swapped_tokens: int = 0
    """Number of tokens whose K and V were swapped out or in."""
    refused: list[tuple[E, str]] = field(default_factory=list)
    """Requests that were removed from the queue because the memory can never hold them, each with the reason."""

    @property
    def batch(self) -> int:
        return len(self.decoding) + len(self.prompts)

    @property
    def prompt_tokens(self) -> int:
        return sum(piece.tokens for piece in self.prompts)


class Scheduler(Generic[E]):
    """Chooses the tokens of each step, with any cache manager.

    Each step computes one token of every decoding sequence, and at most `prompt_budget` tokens of prompts, in order of
    admission. If several tokens were appended to a sequence at once, they are computed like a prompt, before new
    prompts. A request is admitted if the manager has room for it and fewer than `max_batch` sequences run. A request
    with several answers needs room for all of them.

    If the manager has no room for the next token of a sequence, the sequences that were admitted last are preempted,
    until the others fit. They wait at the front of the queue. Such a step admits no request.
    """

    def __init__(self, manager: Manager, rules: Rules) -> None:
        """Raises ValueError if the name of the order is unknown."""
        if rules.order not in ORDERS:
            raise ValueError(f"there is no order {rules.order!r}; there are {', '.join(ORDERS)}")
        self.rules = rules
        self._manager = manager
        self._order = cast("Order[E]", ORDERS[rules.order])
        self.waiting: deque[E] = deque()
        self.swapped: list[E] = []
        self.running: list[E] = []
        """Running requests, in order of admission."""
        self._prefilling: list[E] = []
        """Running requests whose prompt was not completely computed before this step."""

    @property
    def idle(self) -> bool:
        """True if no request waits or runs."""
        return not (self.running or self.waiting or self.swapped)

    def add(self, entry: E) -> None:
        self.waiting.append(entry)

    def drop(self, gone: Iterable[E]) -> None:
        """Remove waiting or running requests, and free their memory."""
        dropped = set(gone)
        for entry in [entry for entry in self.running if entry in dropped]:
            self.finish(entry)
        for entry in [entry for entry in self.swapped if entry in dropped]:
            self._manager.free(entry.arrival)
        self.swapped = [entry for entry in self.swapped if entry not in dropped]
        self.waiting = deque(entry for entry in self.waiting if entry not in dropped)

    def finish(self, entry: E) -> None:
        self._manager.free(entry.arrival)
        self.running.remove(entry)
        self._prefilling = [other for other in self._prefilling if other is not entry]

    def branch(self, entry: E, twin: E) -> None:
        """Start `twin`, another answer to the same prompt. The manager has already copied the computed tokens of
        `entry`."""
        twin.computed, twin.joined, twin.cached_tokens = entry.computed, entry.joined, entry.cached_tokens
        self.running.append(twin)

    def put_back(self, entry: E) -> None:
        """Free the memory of a running request, and move the request to the front of the queue."""
        mates = cast("Sequence[E]", entry.mates)
        for mate in [other for other in self.running if other in mates]:
            self.finish(mate)
        mates[0].restart()
        # Earlier requests that wait were also preempted, or never admitted, so the queue stays in order of arrival.
        self.waiting.appendleft(mates[0])

    def schedule(self) -> Step[E]:
        """Choose the tokens of the next step. If nothing runs and no waiting request fits, the batch is 0."""
        step: Step[E] = Step()
        self._prefilling = [entry for entry in self._prefilling if not entry.decoding]
        self._grow(step)
        step.decoding = self._append(step)
        for entry in step.decoding:
            entry.computed = entry.length
        budget = self.rules.prompt_budget - (len(step.decoding) if self.rules.decode_in_budget else 0)
        for entry in list(self._prefilling):
            while entry in self.running and not self._prefill(step, entry, budget):
                self._preempt(step)
        if step.preempted == 0:
            self._admit(step, budget)
        return step

    def _grow(self, step: Step[E]) -> None:
        """Give slots to sequences to which several tokens were appended; preempt sequences until all fit."""
        grown = [entry for entry in self.running if entry.grown]
        for entry in grown:
            while entry in self.running and not self._manager.grow(entry.arrival, entry.length - entry.computed):
                self._preempt(step)
            entry.joined = entry.length
        if grown:
            others = [entry for entry in self._prefilling if entry not in grown]
            self._prefilling = [*(entry for entry in grown if entry in self.running), *others]

    def _append(self, step: Step[E]) -> list[E]:
        """Give each decoding sequence the slot for its last token; preempt sequences until all fit."""
        while True:
            decoding = self.running.copy()
            if self._prefilling:
                decoding = [entry for entry in decoding if entry not in self._prefilling]
            if not decoding or self._manager.append([entry.arrival for entry in decoding]):
                return decoding
            self._preempt(step)

    def _preempt(self, step: Step[E]) -> None:
        entry = self.running[-1]
        step.preempted += 1
        step.decoding = [other for other in step.decoding if other not in entry.mates]
        step.prompts = [piece for piece in step.prompts if piece.entry not in entry.mates]
        if self.rules.swap and entry.decoding:
            moved = self._manager.swap_out(entry.arrival)
            if moved is not None:
                entry.preempted += 1
                step.swapped_tokens += moved
                self.swapped.insert(0, self.running.pop())
                return
        self.put_back(entry)

    def _admit(self, step: Step[E], budget: int) -> None:
        """Admit requests that fit: first swapped ones, then waiting ones."""
        while self.swapped and len(self.running) < self.rules.max_batch:
            entry = self.swapped[0]
            if not self._manager.swap_in(entry.arrival):
                return
            step.swapped_tokens += entry.computed
            self.running.append(self.swapped.pop(0))  # this request decodes from the next step on
        if self.swapped or not self._room(step, budget):
            return
        if len(self.waiting) > 1 and self.rules.order != "fcfs":
            self.waiting = deque(self._order(self.waiting, self._manager))
        while self.waiting and self._room(step, budget, self.waiting[0].width):
            entry = self.waiting[0]
            branches = self._branches + entry.width - 1
            spare = branches + (len(self.running) if self.rules.spare else 0)
            try:
                if self._manager.allocate(entry.arrival, entry.text, entry.length, spare) is None:
                    return
            except NeverFits as error:
                step.refused.append((self.waiting.popleft(), str(error)))
                continue
            entry.joined = entry.length
            self.running.append(entry)
            self._prefilling.append(entry)
            if not self._prefill(step, entry, budget):
                self.running.pop()
                self._prefilling.pop()
                self._manager.free(entry.arrival)
                entry.computed = 0
                return
            self.waiting.popleft()

    def _room(self, step: Step[E], budget: int, width: int = 1) -> bool:
        running = len(self.running) + self._branches
        return running + width <= self.rules.max_batch and step.prompt_tokens < budget

    @property
    def _branches(self) -> int:
        """Number of sequences that running requests still become."""
        return sum(entry.width - 1 for entry in self._prefilling)

    def _prefill(self, step: Step[E], entry: E, budget: int) -> bool:
        """Choose the next part of a prompt within the budget. False if the manager has no room for it."""
        left = budget - step.prompt_tokens
        if left < 1:
            return True
        last = entry.length - 1  # always computed, because its logits are needed
        computed = min(max(entry.computed, self._manager.computed_tokens(entry.arrival)), last)
        count = min(left, entry.length - computed)
        if not self._manager.extend(entry.arrival, computed + count):
            return False
        if entry.cached_tokens is None:
            entry.cached_tokens = computed
        step.prompts.append(Piece(entry, computed, count))
        entry.computed = computed + count
        return True
