"""Log-probabilities of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

_GROUP = 64
"""The search for the most probable tokens divides the vocabulary into groups of this many tokens."""


class Logprob(NamedTuple):
    token: int
    logprob: float
    """Natural logarithm of the probability that the model gives the token. Temperature, top_p and constraints do not
    change it."""
    rank: int
    """Rank among all tokens by probability; 1 for the most probable."""


class TokenLogprobs(NamedTuple):
    """The log-probability of a token in a prompt or an answer, and those of the most probable tokens at its
    position."""

    chosen: Logprob
    top: tuple[Logprob, ...]
    """The most probable tokens, best first. The request says how many."""


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """For row i of the logits `[n, vocabulary]`: the log-probability of `tokens[i]`, and those of the `counts[i]`
    most probable tokens."""
    logits = logits.float()
    sums = logits.logsumexp(-1)
    own = logits.gather(-1, torch.tensor(tokens, device=logits.device)[:, None])
    ranks = (logits > own).sum(-1).add_(1).tolist()
    chosen = (own[:, 0] - sums).tolist()
    values, ids = largest(logits, min(max(counts, default=0), logits.shape[-1]))
    best, places = (values - sums[:, None]).tolist(), ids.tolist()
    return [
        TokenLogprobs(
            Logprob(token, chosen[row], ranks[row]),
            tuple(Logprob(id, best[row][rank], rank + 1) for rank, id in enumerate(places[row][:count])),
        )
        for row, (token, count) in enumerate(zip(tokens, counts, strict=True))
    ]


def largest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The values and token ids of the `count` largest logits of each row, largest first. Both are `[n, count]`.

    For speed, only the `count` groups of tokens with the largest maxima are searched, and the tokens after the last
    whole group. No other group can hold a larger logit.
    """
    rows, vocabulary = logits.shape
    if count == 0 or vocabulary < _GROUP * count:
        values, ids = logits.topk(count)
        return values, ids
    whole = vocabulary // _GROUP * _GROUP
    groups = logits[:, :whole].view(rows, -1, _GROUP).amax(-1).topk(count).indices
    candidates = (groups[..., None] * _GROUP + torch.arange(_GROUP, device=logits.device)).flatten(1)
    rest = torch.arange(whole, vocabulary, device=logits.device).expand(rows, -1)
    candidates = torch.cat([candidates, rest], -1)
    values, places = logits.gather(-1, candidates).topk(count)
    return values, candidates.gather(-1, places)
