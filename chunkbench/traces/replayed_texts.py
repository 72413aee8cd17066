"""Requests for a replay from texts, whose bytes are the tokens."""

from __future__ import annotations

from itertools import count as count_from
from itertools import islice

from chunkbench.kvcache.text import TokenText
from chunkbench.traces.arrivals import Arrivals, due_times
from chunkbench.traces.replayed import ReplayRequest
from chunkbench.traces.request import Chat
from chunkbench.traces.texts import Texts

_BYTES = 256


def from_texts(texts: Texts, rate: float, count: int, seed: int | str) -> list[ReplayRequest]:
    """The first `count` requests, by due time; fewer if the texts have fewer.

    No tokenizer is asked for: the tokens are the bytes of the text in UTF-8, about four times as many as a model's.
    An answer has `MOST_ANSWER_TOKENS` tokens, which are nobody else's. A later turn repeats all that was said before,
    the answers too, and is due its delay after the turn before was due. Conversations start by a Poisson process, so
    that `rate` requests per second are due in the mean. Raises ValueError.
    """
    turns = sum(map(len, texts.lines))
    starts = due_times(Arrivals(), rate * len(texts.lines) / turns, len(texts.lines), f"{seed} conversations")
    fresh = count_from(_BYTES)
    said: list[tuple[int, ...]] = []
    requests: list[ReplayRequest] = []
    for planned in texts.plan(starts, None):
        text = planned.prompt.text() if isinstance(planned.prompt, Chat) else planned.prompt
        assert isinstance(text, str)
        due, prompt = planned.due, tuple(text.encode())
        if planned.after is not None:
            due, prompt = requests[planned.after].due + due, said[planned.after] + prompt
        said.append((*prompt, *islice(fresh, planned.max_tokens)))
        requests.append(ReplayRequest(due, TokenText(said[-1], len(prompt), len(said[-1]))))
    return sorted(requests, key=lambda request: request.due)[:count]
