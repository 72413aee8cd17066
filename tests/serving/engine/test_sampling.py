"""Sampling against its definition."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from chunkbench.serving.engine.request import Request, Sampling, Sequence
from chunkbench.serving.engine.sampling import next_tokens


def sequence(**settings: float | int | None) -> Sequence:
    return Sequence(Request("r", [1], 1, Sampling(**settings)), 0, [1])  # type: ignore[arg-type]


PROBABILITIES = torch.tensor([0.5, 0.3, 0.15, 0.05])


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.9, 3), (1.0, 4)])
def test_top_p_keeps_the_most_probable_tokens_in_proportion(top_p: float, kept: int) -> None:
    order = torch.tensor([2, 0, 3, 1])  # the sampler must not rely on sorted logits
    logits = PROBABILITIES[order].log()[None]
    drawing = sequence(temperature=1.0, top_p=top_p, seed=0)
    drawn = Counter(int(order[next_tokens(logits, [drawing])[0]]) for _ in range(2000))
    assert set(drawn) == set(range(kept))
    expected = PROBABILITIES[:kept] / PROBABILITIES[:kept].sum()
    for token in range(kept):
        assert abs(drawn[token] / 2000 - float(expected[token])) < 0.05


def test_temperature_sharpens() -> None:
    logits = PROBABILITIES.log()[None]
    cold = sequence(temperature=0.1, seed=0)
    assert Counter(next_tokens(logits, [cold])[0] for _ in range(200))[0] > 190


def test_greedy_and_drawn_rows_side_by_side() -> None:
    logits = PROBABILITIES.log().repeat(3, 1)
    tokens = next_tokens(logits, [sequence(), sequence(temperature=1.0, top_p=0.1), sequence()])
    assert tokens == [0, 0, 0]


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"temperature": float("nan")}])
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)
