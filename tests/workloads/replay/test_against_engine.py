"""The replay predicts our engine: cached tokens of every request, steps, batches, preemptions, K/V memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("transformers")

from chunkbench.attention.text import TokenText
from chunkbench.server.engine import Engine, EngineOptions, Request, StepReport
from chunkbench.server.scheduling import Rules
from chunkbench.traffic.replayed import ReplayRequest
from chunkbench.workloads.replay.managers import PrefixManager
from chunkbench.workloads.replay.simulate import Replay, replay
from chunkbench.workloads.replay.step_time import Constant
from tests.pairs import pairs
from tests.server.engine.models import VOCABULARY, small_model

CHUNK = 16


def asked(count: int, seed: int) -> list[tuple[int, Request]]:
    """Step of arrival, and request: system prompts, forks of earlier prompts, private ones."""
    chance = random.Random(seed)
    systems = [[chance.randrange(VOCABULARY) for _ in range(length)] for length in (40, 96)]
    made: list[tuple[int, Request]] = []
    at = 0
    for number in range(count):
        at += chance.choice([0, 0, 1, 4])
        base = chance.choice([[], *systems, list(made[-1][1].prompt) if made else []])[: chance.randrange(20, 120)]
        prompt = base + [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 40))]
        made.append((at, Request(f"r{number}", prompt[:150], chance.randrange(1, 40))))
    return made


def serve(sent: list[tuple[int, Request]], options: EngineOptions) -> tuple[dict[str, Any], list[StepReport]]:
    """Tokens and cached tokens of each request, and the steps."""
    engine = Engine(small_model(), options)
    waiting, step = list(sent), 0
    answers: dict[str, Any] = {request.id: {"tokens": []} for _, request in sent}
    reports = []
    while waiting or not engine.idle:
        if engine.idle:
            step = max(step, waiting[0][0])
        while waiting and waiting[0][0] <= step:
            engine.add(waiting.pop(0)[1])
        report = engine.step()
        reports.append(report)
        for made in report.generated:
            answers[made.request]["tokens"].append(made.token)
            answers[made.request]["cached"] = made.cached_tokens
        step += 1
    return answers, reports


def predict(sent: list[tuple[int, Request]], answers: dict[str, Any], options: EngineOptions, chunks: int) -> Replay:
    made = []
    for at, request in sent:
        ids = [*request.prompt, *answers[request.id]["tokens"]]
        text = TokenText(ids, len(request.prompt), len(ids))
        made.append(ReplayRequest(at, text))
    manager = PrefixManager(chunks, options.chunk_size, options.cache == "radix")
    rules = Rules(options.max_batch, options.prompt_budget, order=options.schedule)
    return replay(made, manager, rules, Constant(1.0))


@pytest.mark.parametrize(("cache", "schedule", "chunks"), pairs(["live", "radix"], ["fcfs", "prefix"], [14, 200]))
def test_every_request_and_every_step(cache: Any, schedule: Any, chunks: int) -> None:
    model = small_model()
    options = EngineOptions(
        max_batch=6, prompt_budget=48, kv_bytes=chunks * CHUNK * model.token_bytes, chunk_size=CHUNK, cache=cache,
        schedule=schedule,
    )  # fmt: skip
    sent = asked(60, seed=chunks)
    answers, reports = serve(sent, options)
    done = predict(sent, answers, options, chunks)
    measured = [answers[request.id]["cached"] for _, request in sent]
    assert [one.cached_tokens for one in done.requests] == measured
    assert sum(measured) > 0
    assert done.steps == len(reports)
    assert done.computed_tokens == sum(report.prompt_tokens for report in reports)
    assert done.preemptions == sum(report.preempted for report in reports)
    assert done.peak_slots * model.token_bytes == max(report.kv_bytes for report in reports)
    assert done.peak_batch == max(report.batch for report in reports)
    if chunks == 14:
        assert done.preemptions > 0


def test_the_caches_differ() -> None:
    """What is equal above is not equal for every cache."""
    model = small_model()
    found = set()
    for cache in ("live", "radix"):
        options = EngineOptions(
            max_batch=6, prompt_budget=48, kv_bytes=60 * CHUNK * model.token_bytes, chunk_size=CHUNK, cache=cache
        )
        answers, _ = serve(asked(60, seed=5), options)
        found.add(tuple(answer["cached"] for answer in answers.values()))
    assert len(found) == 2
