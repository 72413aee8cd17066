"""What happens to the others when one request cannot be computed: nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chunkbench.server.engine import Engine, EngineOptions, Model, Request, Sampling
from tests.pairs import pairs
from tests.server.engine.models import small_model

CHUNK_BYTES = small_model().token_bytes * 64
SHARED = [n % 250 for n in range(190)]
LONGEST = 300
"""Tokens of the failing request's prompt. No other sequence becomes so long."""
AT = {"inside its prompt": 220, "behind its prompt": LONGEST - 1, "in its answer": LONGEST + 3}


def requests(hot: bool) -> list[Request]:
    """Eight that share a part of a prompt. Two join with the failing request, and share chunks that it computes."""
    made = []
    for n in range(8):
        sampling = Sampling(temperature=1.0, top_p=0.9, seed=n) if hot and n % 2 else Sampling()
        shared = (190, 128, 64)[n % 3] if n < 4 else 190
        made.append(Request(f"r{n}", SHARED[:shared] + [n + 1] * (n % 5 + 1), 3 + n % 3, sampling))
    return made


def failing_request(hot: bool) -> Request:
    return Request("failing", [*SHARED, *range(LONGEST - 190)], 9, Sampling(temperature=1.0, seed=1 if hot else None))


def run(engine: Engine, requests: list[Request]) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The tokens of every request, and the reasons of those that failed. Three join at each step."""
    answers: dict[str, list[int]] = {request.id: [] for request in requests}
    failures: dict[str, str] = {}
    queue = list(requests)
    while queue or not engine.idle:
        for request in queue[:3]:
            engine.add(request)
        del queue[:3]
        report = engine.step()
        for made in report.generated:
            assert made.request not in failures
            answers[made.request].append(made.token)
        failures |= {failure.request: str(failure) for failure in report.failed}
    assert engine.kv_bytes == 0
    return answers, failures


def spoil(monkeypatch: pytest.MonkeyPatch, at: int, how: str) -> None:
    """A model that cannot compute tokens from this position on."""
    logits = Model.logits

    def spoiled(model: Model, tokens: list[int], positions: list[int], rows: list[int], attention: Any) -> torch.Tensor:
        bad = [place >= at for place in positions]
        if how == "raises" and any(bad):
            logits(model, [0] * len(tokens), positions, rows, attention)  # K and V of this step are wrong
            raise RuntimeError("no such token")
        computed = logits(model, tokens, positions, rows, attention).clone()
        for place, row in enumerate(rows):
            if bad[row]:
                computed[place, 7] = float(how)
        return computed

    monkeypatch.setattr(Model, "logits", spoiled)


@pytest.mark.parametrize(
    ("options", "where", "how"),
    pairs(
        [{}, {"cache": "radix", "schedule": "prefix"}, {"attention": "no-sharing"}, {"prompt_budget": 70}],
        list(AT),
        ["raises", "nan", "inf"],
    ),
    ids=str,
)
def test_a_request_that_cannot_be_computed_fails_alone(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], where: str, how: str
) -> None:
    hot = "attention" in options
    limits = EngineOptions(kv_bytes=CHUNK_BYTES * 40, max_batch=8, **options)
    others = requests(hot)
    expected, _ = run(Engine(small_model(), limits), others)
    spoil(monkeypatch, AT[where], how)
    engine = Engine(small_model(), limits)
    answers, failures = run(engine, [*others[:3], failing_request(hot), *others[3:]])
    assert list(failures) == ["failing"]
    assert ("RuntimeError: no such token" if how == "raises" else "logits") in failures["failing"]
    assert len(answers.pop("failing")) == max(0, AT[where] - LONGEST + 1)
    assert answers == expected
    # What the failed request left in the cache must not reach those that come later.
    assert run(engine, others)[0] == expected


def test_nothing_of_a_failed_request_is_kept_for_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(small_model(), EngineOptions(kv_bytes=CHUNK_BYTES * 8, cache="radix"))
    spoil(monkeypatch, AT["in its answer"], "nan")
    assert list(run(engine, [failing_request(False)])[1]) == ["failing"]
    assert engine.idle_kv_bytes == 0
    run(engine, requests(False)[:1])
    assert engine.idle_kv_bytes == 3 * CHUNK_BYTES


def test_a_batch_that_is_too_large_for_the_memory_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = EngineOptions(kv_bytes=CHUNK_BYTES * 40)
    expected, _ = run(Engine(small_model(), limits), requests(True))
    logits, most = Model.logits, 200

    def small(model: Model, tokens: list[int], *arguments: Any) -> torch.Tensor:
        if len(tokens) > most:
            raise MemoryError
        return logits(model, tokens, *arguments)

    monkeypatch.setattr(Model, "logits", small)
    assert run(Engine(small_model(), limits), requests(True)) == (expected, {})


def test_a_lost_gpu_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Model, "logits", lost)
    engine = Engine(small_model(), EngineOptions(kv_bytes=CHUNK_BYTES * 4))
    engine.add(Request("a", [1, 2], 2))
    with pytest.raises(torch.AcceleratorError):
        engine.step()
