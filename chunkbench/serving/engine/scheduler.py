"""Iteration-level batching: which tokens of which sequences a step computes. Integers only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from chunkbench.attention import RaggedChunkAttention
from chunkbench.kvcache import PoolExhausted
from chunkbench.serving.engine.request import Request, Sequence


@dataclass
class Step:
    """The tokens of one step, row by row."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sampled: list[tuple[int, Sequence]] = field(default_factory=list)
    """Rows whose logits choose the next token of a sequence."""
    batch: int = 0
    """Sequences that take part."""
    prompt_tokens: int = 0
    preempted: int = 0

    def add(self, sequence: Sequence, first: int, count: int) -> None:
        """Add tokens of a sequence as the next rows."""
        self.tokens += sequence.tokens[first : first + count]
        self.positions += range(first, first + count)
        self.batch += 1
        if first + count == len(sequence.tokens):
            self.sampled.append((len(self.tokens) - 1, sequence))


class Scheduler:
    """First come, first served.

    Each step computes one token of every decoding sequence and, beside them, at most `prompt_budget` tokens of prompts,
    in order of arrival. A request is admitted when fewer than `max_batch` sequences run and the chunks for its whole
    prompt are there. When a decoding sequence needs a chunk and none is left, the sequence that was admitted last gives
    up all of its chunks. It waits in front of later requests and is computed again; nothing is admitted in that step.
    So the oldest sequence always goes on, and no request is lost or starves.
    """

    def __init__(self, attention: RaggedChunkAttention, max_batch: int, prompt_budget: int) -> None:
        self._attention = attention
        self._max_batch = max_batch
        self._prompt_budget = prompt_budget
        self._arrivals = 0
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In order of admission, which is the order of rows in the cache."""

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self.waiting.append(Sequence(request, self._arrivals, list(request.prompt)))
        self._arrivals += 1

    def drop(self, ids: Iterable[str]) -> None:
        """Forget these requests and free their chunks. Unknown ids are ignored: their answers may have just ended."""
        gone = set(ids)
        for sequence in [sequence for sequence in self.running if sequence.request.id in gone]:
            self.finish(sequence)
        self.waiting = deque(sequence for sequence in self.waiting if sequence.request.id not in gone)

    def finish(self, sequence: Sequence) -> None:
        """Remove a running sequence and free its chunks."""
        assert sequence.handle is not None
        self._attention.remove_sequence(sequence.handle)
        sequence.handle = None
        self.running.remove(sequence)

    def schedule(self) -> Step:
        """Choose the tokens of the next step and select them in the cache. No tokens: nothing runs, nothing waits."""
        step = Step()
        decoding = self._extend(step)
        for sequence in decoding:
            self._select(step, sequence, len(sequence.tokens) - 1, 1)
        for sequence in [sequence for sequence in self.running if sequence not in decoding]:
            self._prefill(step, sequence)
        while step.preempted == 0 and step.prompt_tokens < self._prompt_budget and self._admit():
            self._prefill(step, self.running[-1])
        self._attention.plan_selected()
        return step

    def _extend(self, step: Step) -> list[Sequence]:
        """Give each decoding sequence the slot for its last token; preempt sequences until all fit."""
        while True:
            decoding = [sequence for sequence in self.running if sequence.decoding]
            handles = [sequence.handle for sequence in decoding if sequence.handle is not None]
            try:
                if decoding:
                    self._attention.extend([sequence.tokens[-1] for sequence in decoding], handles)
                return decoding
            except PoolExhausted:
                self._preempt(self.running[-1])
                step.preempted += 1

    def _preempt(self, sequence: Sequence) -> None:
        self.finish(sequence)
        sequence.computed = 0
        sequence.preempted += 1
        # Earlier requests that wait were preempted, too, or never admitted: the queue stays in order of arrival.
        self.waiting.appendleft(sequence)

    def _admit(self) -> bool:
        """Admit the first waiting request if it fits."""
        if not self.waiting or len(self.running) >= self._max_batch:
            return False
        sequence = self.waiting[0]
        try:
            joined = self._attention.join(sequence.tokens)
        except PoolExhausted:
            return False
        sequence.handle = joined.sequence
        left = self._attention.chunks_left
        if left is not None and left < len(self.running):  # a chunk for each that runs, or it would be preempted soon
            self._attention.remove_sequence(joined.sequence)
            sequence.handle = None
            return False
        self.running.append(self.waiting.popleft())
        return True

    def _prefill(self, step: Step, sequence: Sequence) -> None:
        """Compute the next part of a prompt, as far as the budget goes."""
        budget = self._prompt_budget - step.prompt_tokens
        if budget < 1:
            return
        assert sequence.handle is not None
        last = len(sequence.tokens) - 1  # always computed, because its logits are needed
        sequence.computed = min(max(sequence.computed, self._attention.written(sequence.handle)), last)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        count = min(budget, len(sequence.tokens) - sequence.computed)
        step.prompt_tokens += count
        self._select(step, sequence, sequence.computed, count)

    def _select(self, step: Step, sequence: Sequence, first: int, count: int) -> None:
        assert sequence.handle is not None
        self._attention.select(sequence.handle, first, count)
        step.add(sequence, first, count)
        sequence.computed = first + count
