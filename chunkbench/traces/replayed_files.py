"""Requests for a replay from files of real traffic."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as count_from
from pathlib import Path

from chunkbench.experiment.point import Segment
from chunkbench.kvcache.text import TokenText
from chunkbench.traces.files import read_trace
from chunkbench.traces.formats import Trace, TraceRequest, has_token_ids, read_traffic
from chunkbench.traces.pace import Pace, paced
from chunkbench.traces.replayed import ReplayRequest, replay_request
from chunkbench.traces.request import PlannedRequest

AS_IN_THE_TRACE = Pace()


def read_replayed(
    path: Path, count: int, pace: Pace = AS_IN_THE_TRACE, longest: int | None = None
) -> list[ReplayRequest]:
    """The first `count` requests of a file with at most `longest` tokens in prompt and answer, by due time.

    The formats are those of `read_traffic`. Raises TraceError, and ValueError as `from_trace`.
    """
    if has_token_ids(path):
        return from_token_ids(read_trace(path)[0], count, pace, longest)
    return from_trace(read_traffic(path), count, pace, longest)


def from_trace(
    trace: Trace, count: int, pace: Pace = AS_IN_THE_TRACE, longest: int | None = None
) -> list[ReplayRequest]:
    """Requests whose prompts share the blocks that the trace says, or nothing where it says nothing.

    Such traces do not say what was answered. So every answer is a segment of its own, and no later prompt finds it in a
    cache, although the next prompt of the same conversation begins with it. Raises ValueError if no request is short
    enough.
    """
    kept = [one for one in trace.requests if longest is None or one.prompt_tokens + one.answer_tokens <= longest]
    kept = kept[:count]
    _check_any(kept, longest)
    due = paced([one.due for one in kept], [one.due for one in trace.requests], pace)
    fresh = count_from(1 + max((block for one in kept for block in one.blocks), default=0))
    return [
        replay_request(time, _prompt(one, trace.block_tokens, next(fresh)), Segment(next(fresh), one.answer_tokens))
        for time, one in zip(due, kept, strict=True)
    ]


def from_token_ids(
    planned: Sequence[PlannedRequest], count: int, pace: Pace = AS_IN_THE_TRACE, longest: int | None = None
) -> list[ReplayRequest]:
    """Requests, by due time, whose prompts share what their token ids share.

    What would be answered is not known: the tokens of an answer are numbers above all ids of prompts, each used once.
    Raises ValueError if no request is short enough.
    """
    kept = [one for one in planned if longest is None or len(one.prompt) + one.max_tokens <= longest][:count]
    _check_any(kept, longest)
    due = paced([one.due for one in kept], [one.due for one in planned], pace)
    unused = 1 + max(max(one.prompt) for one in kept)
    requests = []
    for time, one in zip(due, kept, strict=True):
        ids = (*one.prompt, *range(unused, unused + one.max_tokens))
        unused += one.max_tokens
        requests.append(ReplayRequest(time, TokenText(ids, len(one.prompt), len(ids)), one.max_tokens))
    return requests


def _prompt(request: TraceRequest, block_tokens: int, private: int) -> list[Segment]:
    """The blocks of a prompt, of which the last may be partial; one segment where the trace has none."""
    if not request.blocks:
        return [Segment(private, request.prompt_tokens)]
    last = request.prompt_tokens - (len(request.blocks) - 1) * block_tokens
    return [*(Segment(block, block_tokens) for block in request.blocks[:-1]), Segment(request.blocks[-1], last)]


def _check_any(kept: Sequence[object], longest: int | None) -> None:
    if not kept:
        raise ValueError(f"no request of the trace has at most {longest} tokens")
