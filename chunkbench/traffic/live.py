"""Finds the requests of a trace that are answered at one instant, and the forest of their prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from chunkbench.attention.tokens import alike
from chunkbench.bench.experiment.terms import TreeNode
from chunkbench.bench.experiment.tree import MAX_LEVELS, Forest
from chunkbench.traffic.trace import TraceRequest


class LiveRequest(NamedTuple):
    """A request at an instant at which it is being answered."""

    blocks: tuple[int, ...]
    """Block numbers of the prompt, as in `TraceRequest`."""
    prompt: int
    generated: int
    """Number of answer tokens so far."""


def live_at(
    requests: Sequence[TraceRequest], token_s: float, at: float | None = None, most: int | None = None
) -> tuple[float, list[LiveRequest]]:
    """Find the requests that are answered at the instant `at`. Returns this instant in seconds, and the first `most`
    requests.

    A request is live from its due time on, for `token_s` seconds per token of its answer. `requests` must be in
    order of due time. By default, `at` is the first instant with the largest number of live requests. Raises
    ValueError if no request is live.
    """
    if not 0 < token_s < math.inf:
        raise ValueError(f"a token takes {token_s} s; that must be a number above 0")
    at = _busiest(requests, token_s) if at is None else at
    live = [one for one in requests if one.due <= at < one.due + one.answer_tokens * token_s]
    if not live:
        raise ValueError(
            f"no request is live at {at:g} s; they are due from {requests[0].due:g} s on, the last one "
            f"at {requests[-1].due:g} s"
        )
    return at, [
        LiveRequest(one.blocks, one.prompt_tokens, min(int((at - one.due) / token_s), one.answer_tokens))
        for one in live[:most]
    ]


def _busiest(requests: Iterable[TraceRequest], token_s: float) -> float:
    ends: list[float] = []
    most, busiest = 0, 0.0
    for request in requests:
        if not request.answer_tokens:
            continue
        while ends and ends[0] <= request.due:
            heappop(ends)
        heappush(ends, request.due + request.answer_tokens * token_s)
        if len(ends) > most:
            most, busiest = len(ends), request.due
    return busiest


def cut_forest(live: Sequence[LiveRequest], block_tokens: int) -> Forest:
    """Build the forest of shared prefixes. It has a node wherever sequences branch, and the number of private tokens of
    each sequence.

    Prompts share equal leading blocks, up to the end of the shorter prompt. Answers share nothing. Sequences without
    blocks keep their order. Raises ValueError if the forest has more than `MAX_LEVELS` levels.
    """
    ordered = sorted(live, key=lambda one: (one.blocks, one.prompt if one.blocks else 0))
    common = [_common(one, other, block_tokens) for one, other in pairwise(ordered)]
    nodes, alone = _below(ordered, common, 0, 1)
    return (*nodes, (0, alone)) if alone else nodes


def forest_of(prompts: Iterable[Sequence[int]]) -> Forest:
    """Build the forest of prompts of token ids. Each shared prefix occurs once. Raises ValueError if the forest has
    more than `MAX_LEVELS` levels."""
    return cut_forest([LiveRequest(tuple(prompt), len(prompt), 0) for prompt in prompts], 1)


def _common(one: LiveRequest, other: LiveRequest, block_tokens: int) -> int:
    """Number of leading tokens that two prompts have in common."""
    return min(alike(one.blocks, other.blocks) * block_tokens, one.prompt, other.prompt)


def _below(
    live: Sequence[LiveRequest], common: Sequence[int], above: int, level: int
) -> tuple[tuple[TreeNode, ...], tuple[int, ...]]:
    """The part of the forest after the first `above` tokens, which all of `live` share: its nodes, and the private
    tokens of sequences that share no more.

    `common` holds the number of tokens that each of `live` shares with the next one. Because `live` is sorted,
    neighbours have the longest prefixes in common.
    """
    nodes: list[TreeNode] = []
    alone: list[int] = []
    begin = 0
    for end in (*(index + 1 for index, tokens in enumerate(common) if tokens <= above), len(live)):
        group, inside = live[begin:end], common[begin : end - 1]
        begin = end
        if not inside:
            alone += [one.prompt + one.generated - above for one in group]
            continue
        if level > MAX_LEVELS:
            raise ValueError(f"the forest has more than {MAX_LEVELS} levels of nodes")
        shared = min(inside)
        below, private = _below(group, inside, shared, level + 1)
        children = (*below, (0, private)) if below and private else below or private
        nodes.append((shared - above, children))
    return tuple(nodes), tuple(alone)
