"""Contexts with needles, and what a model says behind a compressed one."""

from __future__ import annotations

import torch

from chunkbench.attention.windows import HeadPolicy
from chunkbench.server.engine import Engine, EngineOptions, Request
from chunkbench.workloads.answers.haystack import NEEDLES, haystack
from chunkbench.workloads.answers.recall import CompressedContext, deviation, read
from tests.server.engine.models import VOCABULARY, answers_of, small_model


def words(text: str) -> list[int]:
    """A token for each character."""
    return list(text.encode())


def test_needles_lie_at_equal_distances_in_real_text() -> None:
    text = haystack(words, 6000, 50, seed=3)
    context = bytes(text.context).decode()
    assert (len(text.context), len(text.held)) == (6000, 50)
    for place, (question, value) in enumerate(zip(text.questions, text.values, strict=True)):
        needle = f"{bytes(question).decode().strip()} {value}."
        assert abs(context.index(needle) - (2 * place + 1) / (2 * NEEDLES) * 6000) < 300
    assert haystack(words, 6000, 50, seed=3) == text != haystack(words, 6000, 50, seed=4)


def test_answers_are_those_of_the_engine() -> None:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCABULARY, (300,), generator=generator).tolist()
    model, questions = small_model(), [[1, 2, 3], [7]]
    context = read(model, tokens)
    asked = [Request(str(n), tokens + question, 5) for n, question in enumerate(questions)]
    expected = answers_of(Engine(model, EngineOptions(kv_bytes=1 << 24)), *asked)
    full = HeadPolicy(((True, True),) * 2, 64, compress="all")
    wide = HeadPolicy(((False, False),) * 2, 400, compress="all")
    for policy in (None, full, wide):
        compressed = CompressedContext(model, context, policy)
        assert compressed.answers(questions, 5) == list(expected.values())
        held = tokens[:20]
        one_by_one = [compressed.next_tokens(held[: n + 1])[-1] for n in range(len(held))]
        assert compressed.next_tokens(held) == one_by_one
    assert deviation(context, full) < 1e-12
    narrow = HeadPolicy(((False, True), (True, False)), 64, compress="all")
    small = CompressedContext(model, context, narrow)
    assert small.kv_bytes < CompressedContext(model, context, None).kv_bytes
    assert small.answers(questions, 5) != list(expected.values())
    assert deviation(context, narrow) > 0.01
