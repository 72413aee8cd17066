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
"""At least so many moments of the timeline are kept, if there are so many steps."""


class Stuck(RuntimeError):
    """Requests wait, nothing runs, and none of them is admitted: the manager or the rules are wrong."""


@dataclass(eq=False)
class Replayed(Entry):
    """A request, and what the replay did with it. Times in seconds on the virtual clock."""

    request: ReplayRequest
    length: int = 0
    """Tokens so far: prompt and answer."""
    total: int = 0
    """Tokens at its end."""
    first: float | None = None
    """When the first token of the answer was there."""
    last: float | None = None
    refused: str = ""
    """Why it never fits into the memory; empty if it does."""

    @property
    def text(self) -> Text:
        """Its tokens."""
        return self.request.text


@dataclass(frozen=True)
class ReplayMoment:
    """The state after a step was scheduled."""

    at: float
    batch: int
    waiting: int
    accounts: Accounts


@dataclass
class Replay:
    """What happened."""

    requests: list[Replayed]
    steps: int = 0
    end: float = 0.0
    """Time of the last token, seconds."""
    computed_tokens: int = 0
    """Prompt tokens that were computed; those computed again after a preemption count again, answers' tokens too."""
    preemptions: int = 0
    swapped_tokens: int = 0
    peak_slots: int = 0
    """Most slots that live sequences had, whole blocks."""
    peak_batch: int = 0
    mean_batch: float = 0.0
    """Requests in a step, mean over the time until the last request is due; 0.0 if that is at once."""
    moments: list[ReplayMoment] = field(default_factory=list)
    """Evenly spread over the steps."""


def replay(
    requests: Sequence[ReplayRequest],
    manager: ReplayedManager,
    rules: Rules,
    step_time: StepTime,
    answers: int = 1,
) -> Replay:
    """Replay requests, which are in order of due time. Each has so many answers; with several, see `AnswerGroups`, and
    the budget of a step counts the tokens of one of them.

    A request joins the queue at the first step that begins at or after its due time. A step takes the time that
    `step_time` says; its tokens are there at its end. Raises Stuck.
    """
    entries = [
        Replayed(number, request, request.text.prompt, request.text.total) for number, request in enumerate(requests)
    ]
    scheduler: Scheduler[Replayed] = Scheduler(manager, rules)
    done = Replay(entries)
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
        _count(done, step, shape, manager)
        if done.steps % every == 0:
            done.moments.append(ReplayMoment(clock, step.batch, len(scheduler.waiting), manager.accounts()))
            if len(done.moments) == 2 * _MOMENTS:
                del done.moments[::2]
                every *= 2
        for entry in sampled:
            if entry.first is None:
                entry.first = clock
            entry.length += 1
            if entry.length == entry.total:
                entry.last = clock
                scheduler.finish(entry)
    done.end = clock
    if entries and entries[-1].request.due:
        done.mean_batch = batch_time / entries[-1].request.due
    return done


def _shape(step: Step[Replayed], answers: int, manager: ReplayedManager) -> StepShape:
    """What a step computes. After a preemption it computes the tokens of all answers again."""
    computed = reads = 0
    decoding = sampled = len(step.decoding) * answers
    for piece in step.prompts:
        first, last, prompt = piece.first, piece.first + piece.tokens, piece.entry.text.prompt
        own = max(first, prompt)  # from here on, tokens of answers
        computed += last - first + (answers - 1) * max(0, last - own)
        reads += _reads(first, last) + (answers - 1) * _reads(own, last)
        if piece.sampled:
            sampled += answers if piece.entry.length > prompt else 1
    return StepShape(decoding, manager.reads(), computed, reads, sampled, step.swapped_tokens)


def _reads(first: int, last: int) -> int:
    """Tokens that the tokens `first` to `last - 1` attend to, each all up to itself."""
    return (last - first) * (first + last + 1) // 2 if first < last else 0


def _count(done: Replay, step: Step[Replayed], shape: StepShape, manager: ReplayedManager) -> None:
    done.steps += 1
    done.computed_tokens += shape.prompt_tokens
    done.preemptions += step.preempted
    done.swapped_tokens += step.swapped_tokens
    done.peak_batch = max(done.peak_batch, step.batch)
    done.peak_slots = max(done.peak_slots, manager.slots_held)
