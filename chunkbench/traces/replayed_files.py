"""Requests for a replay from files of real traffic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as count_from
from itertools import islice
from pathlib import Path

from chunkbench.experiment.forest import PromptSegment
from chunkbench.kvcache.text import TokenText
from chunkbench.traces.arrivals import Arrivals, due_times
from chunkbench.traces.formats import read_traffic
from chunkbench.traces.replayed import ReplayRequest, replay_request
from chunkbench.traces.trace import TraceRequest


def read_replayed(
    path: Path, count: int, longest: int | None = None, rate: float | None = None, seed: int | str = 0
) -> list[ReplayRequest]:
    """The first `count` requests of a file with at most `longest` tokens in prompt and answer, by due time.

    Prompts share what their token ids or the blocks of the trace share, or nothing where it says nothing. What was
    answered is not known. So the tokens of an answer are nobody else's, and no later prompt finds them in a cache,
    although the next prompt of the same conversation begins with them. `rate`: Poisson arrivals of so many requests per
    second by `seed`; None: as in the file, from 0 s on. Raises TraceError, and ValueError if all requests are longer.
    """
    trace = read_traffic(path)
    kept = trace.first(count, longest)
    due = due_times(Arrivals(), rate, len(kept), seed) if rate else [request.due - kept[0].due for request in kept]
    if trace.has_token_ids:
        fresh = count_from(1 + max(max(request.prompt) for request in kept))
        return [_of_tokens(time, request, fresh) for time, request in zip(due, kept, strict=True)]
    fresh = count_from(1 + max((block for request in kept for block in request.blocks), default=0))
    return [_of_blocks(time, request, trace.block_tokens, fresh) for time, request in zip(due, kept, strict=True)]


def _of_tokens(due: float, request: TraceRequest, fresh: Iterator[int]) -> ReplayRequest:
    ids = (*request.prompt, *islice(fresh, request.answer_tokens))
    return ReplayRequest(due, TokenText(ids, request.prompt_tokens, len(ids)))


def _of_blocks(due: float, request: TraceRequest, block_tokens: int, fresh: Iterator[int]) -> ReplayRequest:
    """The last block of a prompt may be partial. Where the trace has no blocks, the prompt is one segment."""
    prompt = [PromptSegment(block, block_tokens) for block in request.blocks[:-1]]
    left = request.prompt_tokens - len(prompt) * block_tokens
    prompt.append(PromptSegment(request.blocks[-1] if request.blocks else next(fresh), left))
    return replay_request(due, prompt, PromptSegment(next(fresh), request.answer_tokens))
