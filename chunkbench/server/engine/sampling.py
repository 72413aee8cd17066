"""Chooses the next token of every sequence from its logits."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered

import numpy as np
import torch

from chunkbench.server.engine.request import Sequence

_LIKELY = 128
"""Number of most probable tokens that are tried first. In most steps of a trained model they are enough for top_p."""
_NEVER = -torch.inf
"""Logit of a token that cannot be chosen."""


def next_tokens(logits: torch.Tensor, sequences: Ordered[Sequence]) -> list[int | None]:
    """Choose a token for each row of logits `[n, vocabulary]`, as the request of `sequences[i]` asks.

    None where the largest logit is NaN or infinite. Other rows do not influence a row, so the same seed gives the
    same tokens.
    """
    logits = _allowed(without_early_ends(logits, sequences), sequences)
    best = _best(logits)
    largest = logits.gather(-1, best[:, None])[:, 0]
    finite = largest.isfinite().tolist()
    tokens = [token if fine else None for token, fine in zip(best.tolist(), finite, strict=True)]
    drawn = [row for row, sequence in enumerate(sequences) if finite[row] and not sequence.request.sampling.greedy]
    if drawn:
        # The largest logit is subtracted first, so that no quotient overflows at any temperature.
        below = logits[drawn].float().sub_(largest[drawn].float()[:, None])  # a copy, because indexing makes one
        for row, token in zip(drawn, _draw(below, [sequences[row] for row in drawn]), strict=True):
            tokens[row] = token
    return tokens


def _best(logits: torch.Tensor) -> torch.Tensor:
    """`[rows]`: the token with the largest logit, or the first NaN. On a CPU numpy takes a tenth of PyTorch's time."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    return torch.from_numpy(logits.float().numpy().argmax(-1))


def without_early_ends(logits: torch.Tensor, sequences: Ordered[Sequence]) -> torch.Tensor:
    """The logits, without the tokens that would end an answer before its `min_tokens`."""
    rows, ids = [], []
    for row, sequence in enumerate(sequences):
        if sequence.generated < sequence.request.min_tokens:
            ends = [token for token in sequence.ends if token < logits.shape[-1]]
            rows += [row] * len(ends)
            ids += ends
    if rows:
        logits = logits.clone()
        logits[rows, ids] = _NEVER
    return logits


def _allowed(logits: torch.Tensor, sequences: Ordered[Sequence]) -> torch.Tensor:
    """The logits, changed in place, without the tokens that break the constraint of an answer."""
    matchers = {
        row: sequence.request.matcher for row, sequence in enumerate(sequences) if sequence.request.matcher is not None
    }
    greedy = [row for row in matchers if sequences[row].request.sampling.greedy]
    if greedy:  # if the best token of all is allowed, it is also the best allowed token
        for row, token in zip(greedy, _best(logits[greedy]).tolist(), strict=True):
            if matchers[row].allows(token):
                del matchers[row]
    if not matchers:
        return logits
    vocabulary = logits.shape[-1]
    bits = np.zeros((len(matchers), -(-vocabulary // 32)), np.int32)
    for line, matcher in zip(bits, matchers.values(), strict=True):
        matcher.allow(line)
    broken = np.unpackbits(~bits.view(np.uint8), axis=1, count=vocabulary, bitorder="little").view(np.bool_)
    if logits.device.type != "cpu":
        rows = list(matchers)
        logits[rows] = logits[rows].masked_fill(torch.from_numpy(broken).to(logits.device), _NEVER)
        return logits
    # numpy on one thread: waking PyTorch's takes longer than the work. It knows no bfloat16, so it sees the bits, and
    # whole numbers are four times as fast as a choice between two numbers.
    integer = {2: torch.int16, 4: torch.int32}[logits.dtype.itemsize]
    numbers, never = logits.view(integer).numpy(), torch.tensor(_NEVER, dtype=logits.dtype).view(integer).item()
    for row, line in zip(matchers, broken, strict=True):
        kept = np.subtract(line.view(np.int8), 1, dtype=numbers.dtype)  # all bits, or none
        numbers[row] &= kept
        numbers[row] |= ~kept & never
    return logits


def _draw(logits: torch.Tensor, sequences: Ordered[Sequence]) -> list[int]:
    """Draw tokens by probability: from all tokens, from the `top_k` most probable, or from those whose probabilities
    reach top_p.

    The largest logit of each row must be 0. Changes the logits.
    """
    settings = [sequence.request.sampling for sequence in sequences]
    heat = torch.tensor([setting.temperature for setting in settings], device=logits.device)
    logits.div_(heat[:, None])
    for row, setting in enumerate(settings):
        if 0 < setting.top_k < logits.shape[-1]:
            best = logits[row].topk(setting.top_k)
            logits[row] = torch.full_like(logits[row], _NEVER).scatter(0, best.indices, best.values)
    candidates = list(_candidates(logits.softmax(-1), [setting.top_p for setting in settings]))
    # Random numbers are drawn last, so a step that ran out of memory draws the same numbers when it is repeated.
    draws = torch.tensor([torch.rand((), generator=s.generator).item() for s in sequences], device=logits.device)
    tokens = torch.empty(len(sequences), dtype=torch.int64)
    for rows, weights, ids in candidates:
        places = _places(weights, draws[rows])
        tokens[rows] = (places if ids is None else ids.gather(-1, places)).squeeze(-1).cpu()
    chosen: list[int] = tokens.tolist()
    return chosen


def _candidates(
    probabilities: torch.Tensor, top_p: Ordered[float]
) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor | None]]:
    """Groups of rows, each with the weights of the tokens that its rows may draw, and the ids of these tokens (None:
    all ids in order)."""
    whole = [row for row, limit in enumerate(top_p) if limit == 1]
    if whole:
        yield whole, probabilities[whole], None
    limited = [row for row, limit in enumerate(top_p) if limit < 1]
    if not limited:
        return
    # A sort of the whole vocabulary takes ten times as long as finding its most probable tokens.
    values, ids = probabilities[limited].topk(min(_LIKELY, probabilities.shape[-1]))
    limits = torch.tensor([top_p[row] for row in limited], device=probabilities.device)[:, None]
    enough = (values.sum(-1, keepdim=True) >= limits).squeeze(-1).tolist()
    few = [place for place, reached in enumerate(enough) if reached]
    many = [place for place, reached in enumerate(enough) if not reached]
    if few:
        yield [limited[place] for place in few], _kept(values[few], limits[few]), ids[few]
    if many:
        rows = [limited[place] for place in many]
        values, ids = probabilities[rows].sort(-1, descending=True)
        yield rows, _kept(values, limits[many]), ids


def _kept(values: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    """Sorted probabilities, set to 0 after the first probability with which the sum reaches the limit."""
    kept = (values.cumsum(-1) - values) < limits
    kept[:, 0] = True  # also if a limit is 0 in float32
    return values * kept


def _places(weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """`[n, 1]`: the column that each row's random number in [0, 1[ selects. The chance of a column is in proportion to
    its weight."""
    sums = weights.cumsum(-1)
    whole = sums[:, -1:].contiguous()
    places = torch.searchsorted(sums, draws[:, None] * whole, right=True)
    return torch.minimum(places, torch.searchsorted(sums, whole))  # rounding must not lead past the last weight
