"""The replay: requests, a scheduler and a cache manager on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chunkbench.attention.manager import Accounts, ReplayedManager
from chunkbench.attention.text import Text
from chunkbench.server.scheduling import Entry, Rules, Scheduler, Step
from chunkbench.traffic.replayed import ReplayRequest
from chunkbench.workloads.replay.step_time import StepShape, StepTime

_MOMENTS = 100
"""The timeline keeps at least this number of moments, if there are enough steps."""


class Stuck(RuntimeError):
    """Requests wait, but nothing runs and no request is admitted: the manager or the rules have an error."""


@dataclass(eq=False)
class Replayed(Entry):
    """A request and its times in the replay, in seconds on the virtual clock."""

    request: ReplayRequest
    length: int = 0
    """Tokens of prompt and answer so far."""
    total: int = 0
    """Tokens of prompt and answer at the end."""
    first: float | None = None
    """Time of the first token of the answer."""
    last: float | None = None
    refused: str = ""
    """Why the request never fits into the memory. Empty if it fits."""

    @property
    def text(self) -> Text:
        return self.request.text


@dataclass(frozen=True)
class ReplayMoment:
    """The state of a replay after a step was scheduled."""

    at: float
    batch: int
    waiting: int
    accounts: Accounts


@dataclass
class Replay:
    """The outcome of a replay."""

    requests: list[Replayed]
    steps: int = 0
    end: float = 0.0
    """Seconds on the virtual clock until the last token."""
    computed_tokens: int = 0
    """Tokens that were computed as prompts. Prompt and answer tokens that are computed again after a preemption count
    again.
    """
    preemptions: int = 0
    swapped_tokens: int = 0
    peak_slots: int = 0
    """Largest number of slots that live sequences had, in whole blocks."""
    peak_batch: int = 0
    mean_batch: float = 0.0
    """Mean number of requests in a step, over the time until the last request is due. 0.0 if all requests are due at
    time 0.
    """
    moments: list[ReplayMoment] = field(default_factory=list)
    """Moments evenly spread over the steps."""


def replay(
    requests: Sequence[ReplayRequest],
    manager: ReplayedManager,
    rules: Rules,
    step_time: StepTime,
    answers: int = 1,
) -> Replay:
    """Run requests through a scheduler and a manager on a virtual clock. `requests` must be in order of due time. Each
    request has `answers` answers.

    With several answers, `manager` is an `AnswerGroups`, and the budget of a step counts one answer per request. A
    request joins the queue at the first step that begins at or after its due time. A step takes the time that
    `step_time` gives. The step's tokens appear at the end of the step. Raises Stuck.
    """
    entries = [
        Replayed(number, request, request.text.prompt, request.text.total) for number, request in enumerate(requests)
    ]
    scheduler: Scheduler[Replayed] = Scheduler(manager, rules)
    outcome = Replay(entries)
    clock, batch_time, arrived, every = 0.0, 0.0, 0, 1
    while arrived < len(entries) or not scheduler.idle:
        if scheduler.idle:
            clock = max(clock, entries[arrived].request.due)
        while arrived < len(entries) and entries[arrived].request.due <= clock:
            scheduler.add(entries[arrived])
            arrived += 1
        step = scheduler.schedule()
        for entry, reason in step.refused:
            entry.refused = reason
        if not step.batch and not step.swapped_tokens:
            if step.refused or step.preempted:
                continue
            raise Stuck(f"{len(scheduler.waiting)} requests wait at {clock:.3f} s, nothing runs, and none is admitted")
        sampled = [*step.decoding, *(piece.entry for piece in step.prompts if piece.sampled)]
        shape = _shape(step, answers, manager)
        taken = step_time.seconds(shape)
        batch_time += step.batch * max(0.0, min(taken, entries[-1].request.due - clock))
        clock += taken
        _count(outcome, step, shape, manager)
        if outcome.steps % every == 0:
            outcome.moments.append(ReplayMoment(clock, step.batch, len(scheduler.waiting), manager.accounts()))
            if len(outcome.moments) == 2 * _MOMENTS:
                del outcome.moments[::2]
                every *= 2
        for entry in sampled:
            if entry.first is None:
                entry.first = clock
            entry.length += 1
            if entry.length == entry.total:
                entry.last = clock
                scheduler.finish(entry)
    outcome.end = clock
    if entries and entries[-1].request.due:
        outcome.mean_batch = batch_time / entries[-1].request.due
    return outcome


def _shape(step: Step[Replayed], answers: int, manager: ReplayedManager) -> StepShape:
    """The work of a step. After a preemption a step computes the tokens of all answers again."""
    computed = reads = 0
    decoding = sampled = len(step.decoding) * answers
    for piece in step.prompts:
        first, last, prompt = piece.first, piece.first + piece.tokens, piece.entry.text.prompt
        own = max(first, prompt)  # tokens from here on belong to answers
        computed += last - first + (answers - 1) * max(0, last - own)
        reads += _reads(first, last) + (answers - 1) * _reads(own, last)
        if piece.sampled:
            sampled += answers if piece.entry.length > prompt else 1
    return StepShape(decoding, manager.reads(), computed, reads, sampled, step.swapped_tokens)


def _reads(first: int, last: int) -> int:
    """Sum, over the tokens `first` to `last - 1`, of the tokens that each attends to: all tokens up to itself."""
    return (last - first) * (first + last + 1) // 2 if first < last else 0


def _count(done: Replay, step: Step[Replayed], shape: StepShape, manager: ReplayedManager) -> None:
    done.steps += 1
    done.computed_tokens += shape.prompt_tokens
    done.preemptions += step.preempted
    done.swapped_tokens += step.swapped_tokens
    done.peak_batch = max(done.peak_batch, step.batch)
    done.peak_slots = max(done.peak_slots, manager.slots_held)
