"""Beam search: the answers of transformers' `generate(num_beams=...)`, also beside all other kinds of requests."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from chunkbench.server.engine import Request, RequestRefused, Sampling
from chunkbench.server.engine.beams import BeamOptions
from tests.server.engine.models import CHUNK_BYTES, VOCABULARY, run_groups, sharp_module, small_engine

USUAL = BeamOptions()
ENDS = frozenset(range(40, 60))
"""So many that some beams end early."""


def beams(name: str, prompt: list[int], tokens: int, width: int, options: BeamOptions = USUAL) -> list[Request]:
    request = Request(name, prompt, tokens, stop_ids=ENDS, beams=options)
    return [replace(request, id=f"{name}.{n}") for n in range(width)]


@pytest.mark.parametrize(("penalty", "early"), [(1.0, False), (1.0, True), (0.0, False), (-1.0, True), (2.5, False)])
def test_beams_are_those_of_transformers(penalty: float, early: bool) -> None:
    reference, chance = sharp_module("llama-grouped", "eager"), random.Random(f"{penalty} {early}")
    lengths = set()
    for width, length in [(2, 1), (3, 50), (4, 63), (5, 70), (1, 9)]:
        prompt = [chance.randrange(VOCABULARY) for _ in range(length)]
        expected = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, length, dtype=torch.long),
            max_new_tokens=12,
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            length_penalty=penalty,
            early_stopping=early,
            eos_token_id=sorted(ENDS),
            pad_token_id=VOCABULARY - 1,
        )[:, length:].tolist()
        answers, _ = run_groups(small_engine(), [beams("a", prompt, 12, width, BeamOptions(penalty, early))])
        for answer, padded in zip(answers.values(), expected, strict=True):
            assert answer == padded[: len(answer)]
            assert set(padded[len(answer) :]) <= {VOCABULARY - 1}
            lengths.add(len(answer))
    assert len(lengths) > 1


def test_beams_share_all_chunks_but_the_last() -> None:
    served = small_engine()
    served.add(*beams("a", list(range(100)), 20, 4))
    assert served.step().prompt_tokens == 100
    assert served.running == 4
    for _ in range(8):
        assert served.step().kv_bytes <= (1 + 4) * CHUNK_BYTES


@pytest.mark.parametrize(("chunks", "cache"), [(80, "live"), (16, "live"), (16, "radix")])
def test_all_kinds_of_requests_in_one_batch(chunks: int, cache: Any) -> None:
    """Greedy, drawn, several answers, beams, with and without a shared prefix, arrive at random steps: each gives what
    it gives alone."""
    chance, groups = random.Random(4), []
    system = [chance.randrange(VOCABULARY) for _ in range(64)]
    for number in range(40):
        prompt = chance.choice([[], system]) + [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 60))]
        tokens, width = chance.randrange(20, 70), chance.randrange(2, 4)
        kinds = [
            [Request(f"{number}", prompt, tokens)],
            [Request(f"{number}", prompt, tokens, Sampling(2.0, seed=number))],
            [Request(f"{number}.{n}", prompt, tokens, Sampling(2.0, seed=n)) for n in range(width)],
            beams(f"{number}", prompt, tokens, width),
        ]
        groups.append(kinds[number % 4])
    arrivals = [chance.randrange(120) for _ in groups]
    served = small_engine(chunks, max_batch=20, prompt_budget=300, cache=cache)
    answers, preempted = run_groups(served, groups, arrivals=arrivals)
    alone: dict[str, list[int]] = {}
    for group in groups:
        alone |= run_groups(small_engine(), [group])[0]
    assert answers == alone
    assert (preempted > 0) == (chunks < 64)


def test_a_search_that_is_dropped_or_fails_leaves_nothing() -> None:
    served = small_engine()
    served.add(*beams("a", [1, 2, 3], 20, 3))
    served.add(*beams("b", [1, 2, 4], 20, 2))
    for step in range(5):
        if step == 3:
            served.drop(["a.1"])
        served.step()
    assert served.running == 2
    logits = served.model.logits
    try:
        served.model.logits = lambda tokens, positions, rows, attention: torch.full((len(rows), VOCABULARY), torch.nan)  # type: ignore[method-assign]
        failed = served.step().failed
    finally:
        served.model.logits = logits  # type: ignore[method-assign]
    assert [failure.request for failure in failed] == ["b.0", "b.1"]
    assert "NaN or infinite" in str(failed[0])
    assert served.idle
    assert served.kv_bytes == 0


def test_a_search_that_never_fits_is_refused() -> None:
    served = small_engine(chunks=8)
    with pytest.raises(RequestRefused, match="too few for 4 answers to a prompt of 3 tokens"):
        served.add(*beams("a", [1, 2, 3], 62, 4))
    assert len(run_groups(served, [beams("a", [1, 2, 3], 61, 4)])[0]) == 4
