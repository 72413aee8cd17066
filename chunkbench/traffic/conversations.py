"""Draws conversations of several turns. Each prompt repeats all earlier prompts and answers of its conversation."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate

from chunkbench.bench.experiment.forest import PromptSegment
from chunkbench.traffic.arrivals import Arrivals, Lengths, due_times
from chunkbench.traffic.replayed import ReplayRequest, replay_request


@dataclass(frozen=True)
class Conversations:
    """Describes conversations that all have `turns` turns.

    The prompt of a turn is the system prompt, all earlier texts and answers of the conversation, and new text of the
    user. A cache that keeps answers finds everything but the new text. Raises ValueError.
    """

    turns: int
    lengths: Lengths
    """Lengths of the user's new text in a turn, and of an answer."""
    think_s: float
    """Mean of the exponential pauses between the due times of two turns, in seconds. A turn does not wait for the
    answer to the turn before. With a slow server it may be due before that answer ends, unlike with real users."""
    system_prompt: int = 0
    """Number of tokens of a system prompt."""
    system_prompts: int = 1
    """Number of different system prompts; conversation i has system prompt i modulo this number."""

    def __post_init__(self) -> None:
        if self.turns < 1 or self.system_prompts < 1:
            raise ValueError("a conversation needs at least one turn and one system prompt")
        if not self.think_s > 0 or self.system_prompt < 0:
            raise ValueError("think_s must be above 0 and system_prompt at least 0")


def from_conversations(conversations: Conversations, rate: float, count: int, seed: int | str) -> list[ReplayRequest]:
    """Draw conversations, and return their first `count` requests in order of due time. Conversations start by a
    Poisson process.

    `rate` is the mean number of requests per second after about `turns * think_s` seconds. During these first seconds,
    fewer requests are due. A larger `count` adds requests at the end. Raises ValueError.
    """
    starts = due_times(Arrivals(), rate / conversations.turns, count, f"{seed} conversations")
    turns = [
        (due, number, turn)
        for number, start in enumerate(starts)
        for turn, due in enumerate(_turn_times(conversations, start, f"{seed} {number}"))
    ]
    chosen = sorted(turns)[:count]
    said = {number: _said(conversations, number, f"{seed} {number}") for number in sorted({one[1] for one in chosen})}
    return [
        replay_request(due, said[number][: 2 * turn + 2], said[number][2 * turn + 2]) for due, number, turn in chosen
    ]


def _turn_times(conversations: Conversations, start: float, seed: str) -> list[float]:
    chance = random.Random(f"pauses {seed}")
    pauses = (chance.expovariate(1 / conversations.think_s) for _ in range(conversations.turns - 1))
    return list(accumulate(pauses, initial=start))


def _said(conversations: Conversations, number: int, seed: str) -> list[PromptSegment]:
    """The segments of a whole conversation: the system prompt, then the user's text and the answer of each turn. No
    other conversation has the ids of these turns."""
    chance = random.Random(f"lengths of conversation {seed}")
    said = [PromptSegment(number % conversations.system_prompts, conversations.system_prompt)]
    first = conversations.system_prompts + number * 2 * conversations.turns
    for turn in range(conversations.turns):
        user, answer = first + 2 * turn, first + 2 * turn + 1
        said.append(PromptSegment(user, conversations.lengths.prompt.draw(chance)))
        said.append(PromptSegment(answer, conversations.lengths.answer.draw(chance)))
    return said
