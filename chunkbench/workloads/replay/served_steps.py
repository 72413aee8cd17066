"""What the steps of a measured server computed, found from its requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chunkbench.attention.manager import Reads
from chunkbench.workloads.replay.measured import TimedStep
from chunkbench.workloads.replay.step_time import StepShape


class ServedRequest(NamedTuple):
    """A request that a server answered. Times in seconds."""

    sent: float
    prompt: int
    """Tokens of the prompt."""
    cached: int
    """Of these, tokens that were not computed."""
    answer: int
    """Tokens of the answer."""


@dataclass
class _Live:
    request: ServedRequest
    computed: int
    """Tokens of the prompt whose K and V are there."""
    tokens: int = 0
    """Tokens of the answer so far."""

    @property
    def decoding(self) -> bool:
        return self.computed == self.request.prompt


def served_steps(
    steps: Sequence[tuple[float, int, int, float]], requests: Sequence[ServedRequest], shared: int
) -> list[TimedStep]:
    """Shapes of the steps of one measurement, with the seconds that they took.

    A step is what the server wrote down: when it was, batch, prompt tokens, seconds (`every_step` of the facts). The
    rest follows if it computed prompts in the order in which they were sent, each decoding sequence got one token in
    each step, and the first token of an answer came from the step that ended its prompt. `shared`: leading tokens that
    the cache holds once for all requests. Raises ValueError if the batches that follow are not those that the server
    wrote down, as after a preemption.
    """
    waiting = deque(sorted(requests, key=lambda request: request.sent))
    live: list[_Live] = []
    shapes = []
    for number, (_, batch, prompt_tokens, seconds) in enumerate(steps):
        decoding = [entry for entry in live if entry.decoding]
        reads = _reads(decoding, shared)
        left, prompts, prompt_reads = prompt_tokens, 0, 0
        ahead = deque(entry for entry in live if not entry.decoding)
        while left and (ahead or waiting):
            if not ahead:
                joined = waiting.popleft()
                ahead.append(_Live(joined, joined.cached))
                live.append(ahead[0])
            entry = ahead.popleft()
            last = min(entry.computed + left, entry.request.prompt)
            prompt_reads += sum(range(entry.computed + 1, last + 1))
            left -= last - entry.computed
            entry.computed = last
            prompts += 1
        if left or len(decoding) + prompts != batch:
            raise ValueError(
                f"step {number} of the server had {batch} sequences and {prompt_tokens} prompt tokens; its requests, "
                f"in the order in which they were sent, give {len(decoding) + prompts} and {prompt_tokens - left}"
            )
        ready = [entry for entry in live if entry.decoding]
        shapes.append((StepShape(len(decoding), reads, prompt_tokens, prompt_reads, len(ready)), seconds))
        for entry in ready:
            entry.tokens += 1
        live = [entry for entry in live if entry.tokens < entry.request.answer]
    return shapes


def _reads(decoding: Sequence[_Live], shared: int) -> Reads:
    """What these sequences attend to; one sequence alone shares nothing."""
    covered = sum(entry.request.prompt + entry.tokens for entry in decoding)
    held = shared if len(decoding) > 1 else 0
    return Reads(covered - held * len(decoding), held, held * len(decoding))
