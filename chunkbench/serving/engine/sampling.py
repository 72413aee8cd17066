"""The next token of every sequence, from its logits."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch

from chunkbench.serving.engine.request import Sequence


def next_tokens(logits: torch.Tensor, sequences: Ordered[Sequence]) -> list[int]:
    """One token for each row of logits `[n, vocabulary]`, chosen as its sequence's request says.

    Rows are independent: which other sequences a step holds changes no token of a seeded request.
    """
    tokens: list[int] = logits.argmax(-1).tolist()
    drawn = [row for row, sequence in enumerate(sequences) if sequence.request.sampling.temperature > 0]
    if drawn:
        chosen = _draw(logits[drawn].float(), [sequences[row] for row in drawn])
        for row, token in zip(drawn, chosen, strict=True):
            tokens[row] = token
    return tokens


def _draw(logits: torch.Tensor, sequences: Ordered[Sequence]) -> list[int]:
    """Draw tokens by probability among the most probable ones whose probabilities reach top_p."""
    settings = [sequence.request.sampling for sequence in sequences]
    heat = torch.tensor([setting.temperature for setting in settings], device=logits.device)
    top_p = torch.tensor([setting.top_p for setting in settings], device=logits.device)
    probabilities, order = (logits / heat[:, None]).softmax(-1).sort(-1, descending=True)
    sums = probabilities.cumsum(-1)
    # The first token whose sum reaches top_p is the last one kept.
    kept = (sums - probabilities) < top_p[:, None]
    mass = (probabilities * kept).sum(-1)
    draws = torch.tensor([torch.rand((), generator=_generator(s)).item() for s in sequences], device=logits.device)
    places = torch.searchsorted(sums, (draws * mass)[:, None], right=True)
    places = torch.minimum(places, kept.sum(-1, keepdim=True) - 1)
    chosen: list[int] = order.gather(-1, places).squeeze(-1).tolist()
    return chosen


def _generator(sequence: Sequence) -> torch.Generator:
    if sequence.random is None:
        sequence.random = torch.Generator()
        if sequence.request.sampling.seed is None:
            sequence.random.seed()
        else:
            sequence.random.manual_seed(sequence.request.sampling.seed)
    return sequence.random
