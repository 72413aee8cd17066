"""Sampling against its definition."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from chunkbench.server.engine.request import Request, Sampling, Sequence
from chunkbench.server.engine.sampling import next_tokens


def sequence(**settings: float | int | None) -> Sequence:
    return Sequence(0, Request("r", [1], 1, Sampling(**settings)), [1])  # type: ignore[arg-type]


PROBABILITIES = torch.tensor([0.5, 0.3, 0.15, 0.05])


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        *(({"top_p": top_p}, kept) for top_p, kept in ((0.4, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.9, 3), (1.0, 4))),
        *(({"top_k": top_k}, kept) for top_k, kept in ((3, 3), (9, 4), (-1, 4))),
        # top_p is a share of what top_k keeps.
        *(({"top_k": top_k, "top_p": top_p}, kept) for top_k, top_p, kept in ((3, 0.6, 2), (2, 0.99, 2), (9, 0.9, 3))),
    ],
)
def test_the_most_probable_tokens_are_kept_in_proportion(settings: dict[str, float], kept: int) -> None:
    order = torch.tensor([2, 0, 3, 1])  # the sampler must not rely on sorted logits
    logits = PROBABILITIES[order].log()[None]
    drawing = sequence(temperature=1.0, seed=0, **settings)
    drawn = Counter(int(order[next_tokens(logits, [drawing])[0]]) for _ in range(2000))
    assert set(drawn) == set(range(kept))
    expected = PROBABILITIES[:kept] / PROBABILITIES[:kept].sum()
    for token in range(kept):
        assert abs(drawn[token] / 2000 - float(expected[token])) < 0.05


@pytest.mark.parametrize("top_p", [0.3, 0.9, 1.0])
@pytest.mark.parametrize("slope", [0.0, 0.02, 2.0])
def test_large_vocabularies_keep_the_most_probable_tokens(top_p: float, slope: float) -> None:
    """Flat distributions need most of the vocabulary, steep ones a few tokens."""
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(3))
    probabilities = (-slope * torch.arange(1000)).softmax(-1)
    logits = torch.empty(1000).index_copy(0, order, probabilities.log())[None]
    rank = torch.empty(1000, dtype=torch.int64).index_copy(0, order, torch.arange(1000)).tolist()
    drawing = sequence(temperature=1.0, top_p=top_p, seed=0)
    drawn = [rank[next_tokens(logits, [drawing])[0]] for _ in range(500)]
    kept = int((probabilities.cumsum(-1) - probabilities < top_p - 1e-4).sum())
    # Equal probabilities have no order: then only how many tokens can be drawn is known.
    assert len(set(drawn)) <= kept if slope == 0 else max(drawn) < kept
    mean = float((probabilities[:kept] * torch.arange(kept)).sum() / probabilities[:kept].sum())
    assert slope == 0 or abs(sum(drawn) / 500 - mean) < 0.15 * mean + 0.1


def test_other_rows_of_a_step_change_no_draw() -> None:
    spread = torch.tensor([[0.1], [9.0], [1.0], [3.0]])
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(5)) * spread
    settings = [{"top_p": 0.9}, {"top_p": 0.9}, {"top_p": 1.0}, {"top_p": 0.5}]

    def rows() -> list[Sequence]:
        return [sequence(temperature=1.0, seed=n, **setting) for n, setting in enumerate(settings)]

    together = next_tokens(logits, rows())
    assert together == [next_tokens(logits[n : n + 1], [row])[0] for n, row in enumerate(rows())]


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e-9])
@pytest.mark.parametrize("others", [{}, {"top_p": 0.9}, {"top_p": 1e-320}, {"top_k": 3}])
def test_a_tiny_temperature_is_greedy(temperature: float, others: dict[str, float]) -> None:
    logits = torch.tensor([[-3e38, 1.0, 5.0, 5.0, -torch.inf], [3e38, 3e38, -3e38, 0, 0]])
    assert next_tokens(logits, [sequence(temperature=temperature, seed=1, **others) for _ in logits]) == [2, 0]
    assert next_tokens(logits, [sequence(temperature=1.0, top_k=1, seed=3), sequence()]) == [2, 0]


@pytest.mark.parametrize("settings", [{"temperature": 1e-5}, {"top_p": 1e-320}, {"temperature": 100.0}, {"top_k": 2}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_extreme_logits_lead_to_no_token_that_is_impossible(dtype: torch.dtype, settings: dict[str, float]) -> None:
    largest = torch.finfo(dtype).max
    logits = torch.tensor([[-torch.inf, largest, -largest, -torch.inf], [-largest, -torch.inf, -largest, -largest]])
    drawn = [next_tokens(logits.to(dtype), [sequence(**{"temperature": 1.0, **settings}) for _ in "ab"]) for _ in "abc"]
    assert {tokens[0] for tokens in drawn} <= {1, 2}
    assert {tokens[1] for tokens in drawn} <= {0, 2, 3}


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}])
def test_logits_that_choose_no_token_spoil_their_own_row_alone(settings: dict[str, float]) -> None:
    logits = PROBABILITIES.log().repeat(6, 1)
    logits[1, 2], logits[3, 0], logits[4] = torch.nan, torch.inf, -torch.inf
    alone = [sequence(**settings, seed=n) for n in range(6)]
    expected = [next_tokens(logits[n : n + 1], [row])[0] for n, row in enumerate(alone)]
    together = next_tokens(logits, [sequence(**settings, seed=n) for n in range(6)])
    assert together == expected
    assert [token is None for token in together] == [False, True, False, True, True, False]


def test_no_token_ends_an_answer_before_min_tokens() -> None:
    logits = PROBABILITIES.log()[None]
    request = Request("r", [1], 9, Sampling(), min_tokens=2)
    chosen = [next_tokens(logits, [Sequence(0, request, [1] * length, frozenset([0, 7]))])[0] for length in (1, 2, 3)]
    assert chosen == [1, 1, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"temperature": value} for value in (-1, 101, float("nan"), float("inf"))),
        *({"top_p": value} for value in (0, 1.1, -1, float("nan"))),
        *({"seed": value} for value in (2**64, -(2**63) - 1, 10**400)),
        *({"top_k": value} for value in (-2, 2**31)),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)
