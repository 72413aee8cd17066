"""The next token of every sequence, from its logits."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered

import torch

from chunkbench.serving.engine.request import Sequence

_LIKELY = 128
"""So many tokens reach top_p in most steps of a trained model."""


def next_tokens(logits: torch.Tensor, sequences: Ordered[Sequence]) -> list[int]:
    """One token for each row of logits `[n, vocabulary]`, chosen as its sequence's request says.

    Rows are independent: which other sequences a step holds changes no token of a seeded request.
    """
    tokens: list[int] = logits.max(-1).indices.tolist()  # four times as fast as argmax on a CPU in bfloat16
    drawn = [row for row, sequence in enumerate(sequences) if sequence.request.sampling.temperature > 0]
    if drawn:
        chosen = _draw(logits[drawn].float(), [sequences[row] for row in drawn])
        for row, token in zip(drawn, chosen, strict=True):
            tokens[row] = token
    return tokens


def _draw(logits: torch.Tensor, sequences: Ordered[Sequence]) -> list[int]:
    """Draw tokens by probability, where top_p asks for it among the most probable ones whose probabilities reach it."""
    heat = torch.tensor([sequence.request.sampling.temperature for sequence in sequences], device=logits.device)
    probabilities = (logits / heat[:, None]).softmax(-1)
    draws = torch.tensor([torch.rand((), generator=_generator(s)).item() for s in sequences], device=logits.device)
    tokens = torch.empty(len(sequences), dtype=torch.int64)
    for rows, weights, ids in _candidates(probabilities, [s.request.sampling.top_p for s in sequences]):
        places = _places(weights, draws[rows])
        tokens[rows] = (places if ids is None else ids.gather(-1, places)).squeeze(-1).cpu()
    chosen: list[int] = tokens.tolist()
    return chosen


def _candidates(
    probabilities: torch.Tensor, top_p: Ordered[float]
) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor | None]]:
    """Groups of rows, with the weights of the tokens that each may draw, and these tokens (None: all, in order)."""
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
    """Sorted probabilities, with 0 for those behind the first whose sum reaches the limit."""
    return values * ((values.cumsum(-1) - values) < limits)


def _places(weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The place in each row `[n, 1]` that a number in [0, 1[ falls on, by weight."""
    sums = weights.cumsum(-1)
    whole = sums[:, -1:].contiguous()
    places = torch.searchsorted(sums, draws[:, None] * whole, right=True)
    return torch.minimum(places, torch.searchsorted(sums, whole))  # rounding must not lead behind the last weight


def _generator(sequence: Sequence) -> torch.Generator:
    if sequence.random is None:
        sequence.random = torch.Generator()
        if sequence.request.sampling.seed is None:
            sequence.random.seed()
        else:
            sequence.random.manual_seed(sequence.request.sampling.seed)
    return sequence.random
