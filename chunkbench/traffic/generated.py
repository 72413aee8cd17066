"""Makes the traffic that experiments name, such as `chat`. Also draws tokens for traces that hold only lengths."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chunkbench.bench.experiment.terms import TreeNode
from chunkbench.traffic.arrivals import LENGTHS, Arrivals, due_times
from chunkbench.traffic.conversations import Conversations, from_conversations
from chunkbench.traffic.prompts import Prompts
from chunkbench.traffic.replayed import ReplayRequest, from_lengths, from_prompts, from_texts
from chunkbench.traffic.request import PlannedRequest
from chunkbench.traffic.texts import read_texts
from chunkbench.traffic.trace import Trace, TraceRequest

CHAT_TURNS = 6
CHAT_THINK_S = 30.0
"""Mean pause between two turns of a conversation of `chat`, in seconds. This number and `CHAT_TURNS` are our choice."""


@dataclass(frozen=True)
class Demand:
    """The traffic that an experiment asks for. The fields `n_p` to `tree` are axes of the experiment. An axis that the
    experiment does not set is None."""

    rate: float
    """Mean number of requests per second."""
    count: int
    seed: int | str = 0
    n_p: int | None = None
    n_s: int | None = None
    n_c: int | None = None
    prompts: int | None = None
    tree: tuple[TreeNode, ...] | None = None

    @property
    def due(self) -> list[float]:
        """Due times of the requests in seconds, by a Poisson process."""
        return due_times(Arrivals(), self.rate, self.count, self.seed)


Generate = Callable[[Demand], list[ReplayRequest]]
"""A function that makes requests in order of due time. Raises ValueError if it cannot use an axis that is set."""


def _fixed(demand: Demand) -> list[ReplayRequest]:
    """Requests with prompts of n_p tokens that share n_s tokens, or a tree, and answers of n_c tokens."""
    if demand.n_p is None or demand.n_c is None:
        raise ValueError("traffic `fixed` needs n_p and n_c")
    if demand.tree is not None:
        _refuse("fixed", demand, "n_s", "prompts", why="beside a tree")
    prompts = Prompts(demand.n_p, demand.n_s or 0, _number(demand.prompts, 1), demand.tree)
    return from_prompts(prompts, demand.n_c, demand.due)


def _drawn(name: str) -> Generate:
    """Makes requests with the lengths of a published workload, after a shared system prompt of n_s tokens."""

    def generate(demand: Demand) -> list[ReplayRequest]:
        _refuse(name, demand, "n_p", "n_c", "tree")
        return from_lengths(LENGTHS[name], demand.due, demand.seed, demand.n_s or 0, _number(demand.prompts, 1))

    return generate


def _chat(demand: Demand) -> list[ReplayRequest]:
    """Conversations of 6 turns with ShareGPT's lengths, after a shared system prompt of n_s tokens."""
    _refuse("chat", demand, "n_p", "n_c", "tree")
    conversations = Conversations(
        CHAT_TURNS, LENGTHS["sharegpt"], CHAT_THINK_S, demand.n_s or 0, _number(demand.prompts, 1)
    )
    return from_conversations(conversations, demand.rate, demand.count, demand.seed)


def _conversations(demand: Demand) -> list[ReplayRequest]:
    """The conversations that come with ChunkBench: real text, in bytes."""
    _refuse("conversations", demand, "n_p", "n_c", "tree")
    if demand.n_s or _number(demand.prompts, 1) != 1:
        raise ValueError("traffic `conversations` has its own system prompts and does not take n_s and prompts")
    return from_texts(read_texts("conversations"), demand.rate, demand.count, demand.seed)


GENERATED: Mapping[str, Generate] = {
    "fixed": _fixed,
    "sharegpt": _drawn("sharegpt"),
    "alpaca": _drawn("alpaca"),
    "chat": _chat,
    "conversations": _conversations,
}
"""Name of traffic -> function that makes it. `fixed` needs n_p and n_c; it takes n_s and prompts, or tree.
`conversations` takes no axis. The others draw their lengths from `LENGTHS`, and take n_s and prompts for their
system prompts."""
DRAWN_SYSTEM_PROMPTS = ("fixed", "sharegpt", "alpaca", "chat")
"""Names of traffic whose system prompts are set by n_s and prompts."""


def _number(value: int | None, default: int) -> int:
    return default if value is None else value


def _refuse(name: str, demand: Demand, *unused: str, why: str = "") -> None:
    given = [axis for axis in unused if getattr(demand, axis) is not None]
    if given:
        raise ValueError(f"traffic `{name}` has no use for {' and '.join(given)}{why and ' '}{why}")


def draw_traffic(
    trace: Trace, count: int, vocabulary: int, seed: int | str, longest: int | None = None
) -> list[PlannedRequest]:
    """Take the first `count` requests of a trace that have at most `longest` tokens, and draw their token ids below
    `vocabulary`. The first request is due at 0 s.

    A turn of a conversation with a delay is sent that long after the answer to the turn before.

    Blocks with equal ids get equal tokens. Other blocks get different tokens if the vocabulary is large enough. If
    the trace says nothing about sharing, prompts share nothing. Raises ValueError if no request is short enough.
    """
    fitting = trace.first(count, longest)
    start = fitting[0].due
    turn_before: dict[int, int] = {}
    plan = []
    for number, request in enumerate(fitting):
        prompt = _prompt(request, number, trace.block_tokens, vocabulary, seed)
        due, after = request.due - start, None
        if request.session is not None:
            if request.delay is not None and request.session in turn_before:
                due, after = request.delay, turn_before[request.session]
            turn_before[request.session] = number
        plan.append(PlannedRequest(due, prompt, request.answer_tokens, after))
    return plan


def _prompt(request: TraceRequest, number: int, block_tokens: int, vocabulary: int, seed: int | str) -> tuple[int, ...]:
    if not request.blocks:
        return _tokens(f"{seed} request {number}", number, request.prompt_tokens, vocabulary)
    blocks = (_tokens(f"{seed} block {block}", block, block_tokens, vocabulary) for block in request.blocks)
    return tuple(token for block in blocks for token in block)[: request.prompt_tokens]


def _tokens(purpose: str, number: int, count: int, vocabulary: int) -> tuple[int, ...]:
    """`count` drawn token ids that begin with the digits of `number`, so that other numbers give other ids."""
    digits: list[int] = []
    while number or not digits:
        number, digit = divmod(number, vocabulary)
        digits.append(digit)
    drawn = random.Random(f"tokens {purpose}").choices(range(vocabulary), k=count)
    return (*digits, len(digits) % vocabulary, *drawn)[:count]
