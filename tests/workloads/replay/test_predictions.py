"""The replay predicts real servers: cached tokens of every request and preemptions; of our engine every step, too."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chunkbench.attention.manager import AccountedManager
from chunkbench.attention.text import TokenText
from chunkbench.server.scheduling import Rules
from chunkbench.traffic.replayed import ReplayRequest
from chunkbench.workloads.replay.managers import PrefixManager
from chunkbench.workloads.replay.managers.hashed import HashedBlocks
from chunkbench.workloads.replay.simulate import Replay, replay
from chunkbench.workloads.replay.step_time import Constant
from chunkbench.workloads.serving.servers.vllm import VLLM
from tests.pairs import pairs

pytest.importorskip("transformers")

from chunkbench.server.engine import Engine, EngineOptions, Request, StepReport
from tests.plugins.vllm.driving import drive, requests, write_model
from tests.server.engine.models import VOCABULARY, small_model

CHUNK = 16
BLOCK = 32
needs_vllm = pytest.mark.skipif(VLLM.python is None, reason="`make vllm-environment` installs vLLM")


def predict(
    sent: list[tuple[float, str, list[int]]], answers: Mapping[str, Any], manager: AccountedManager, rules: Rules
) -> Replay:
    """The replay of what a server was asked (time, id, prompt), a second a step; its answers tell later keys."""
    made = []
    for at, id, prompt in sent:
        ids = [*prompt, *answers[id]["tokens"]]
        made.append(ReplayRequest(at, TokenText(ids, len(prompt), len(ids))))
    return replay(made, manager, rules, Constant(1.0))


def asked_engine(count: int, seed: int) -> list[tuple[float, Request]]:
    """Step of arrival, and request: system prompts, forks of earlier prompts, private ones."""
    chance = random.Random(seed)
    systems = [[chance.randrange(VOCABULARY) for _ in range(length)] for length in (40, 96)]
    made: list[tuple[float, Request]] = []
    at = 0
    for number in range(count):
        at += chance.choice([0, 0, 1, 4])
        base = chance.choice([[], *systems, list(made[-1][1].prompt) if made else []])[: chance.randrange(20, 120)]
        prompt = base + [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 40))]
        made.append((at, Request(f"r{number}", prompt[:150], chance.randrange(1, 40))))
    return made


def serve(sent: list[tuple[float, Request]], options: EngineOptions) -> tuple[dict[str, Any], list[StepReport]]:
    """Tokens and cached tokens of each request, and the steps."""
    engine = Engine(small_model(), options)
    waiting, step = list(sent), 0.0
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


@pytest.mark.parametrize(("cache", "schedule", "chunks"), pairs(["live", "radix"], ["fcfs", "prefix"], [14, 200]))
def test_every_request_and_every_step_of_our_engine(cache: Any, schedule: Any, chunks: int) -> None:
    token_bytes = small_model().token_bytes()
    options = EngineOptions(
        max_batch=6, prompt_budget=48, kv_bytes=chunks * CHUNK * token_bytes, chunk_size=CHUNK, cache=cache,
        schedule=schedule,
    )  # fmt: skip
    sent = asked_engine(40, seed=chunks)
    answers, reports = serve(sent, options)
    told = [(at, request.id, [*request.prompt]) for at, request in sent]
    rules = Rules(options.max_batch, options.prompt_budget, order=schedule)
    done, other = (
        predict(told, answers, PrefixManager(chunks, CHUNK, kept == "radix"), rules)
        for kept in (cache, "live" if cache == "radix" else "radix")
    )
    measured = [answers[request.id]["cached"] for _, request in sent]
    assert [one.cached_tokens for one in done.requests] == measured
    assert [one.cached_tokens for one in other.requests] != measured, "the prediction can be wrong"
    assert sum(measured) > 0
    assert done.steps == len(reports)
    assert done.computed_tokens == sum(report.prompt_tokens for report in reports)
    assert done.preemptions == sum(report.preempted for report in reports)
    assert done.peak_slots * token_bytes == max(report.kv_bytes for report in reports)
    assert done.peak_batch == max(report.batch for report in reports)
    if chunks == 14:
        assert done.preemptions > 0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_model(folder)
    return folder


def asked_vllm(count: int, seed: int, together: int) -> list[dict[str, Any]]:
    """Random requests, none cancelled; `together` arrive at once, the next ones after these ended (0: as drawn)."""
    sent = requests(count, seed)
    for number, request in enumerate(sent):
        request["abort_after"] = None
        request["prompt"] = request["prompt"][:400]
        if together:
            request["at"] = number // together * 10_000
    return sent


@needs_vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("together", "blocks", "budget"),
    [
        pytest.param(1, 30, 512, id="one at a time", marks=pytest.mark.slow),
        pytest.param(8, 30, 64, id="in batches", marks=pytest.mark.slow),
        pytest.param(0, 30, 100, id="preemption"),
        pytest.param(0, 100, 256, id="roomy", marks=pytest.mark.slow),
    ],
)
def test_cached_tokens_of_every_request_of_vllm(checkpoint: Path, together: int, blocks: int, budget: int) -> None:
    sent = asked_vllm(48, seed=together + blocks, together=together)
    limits = {"block_size": BLOCK, "num_gpu_blocks_override": blocks, "max_num_batched_tokens": budget}
    theirs = drive(checkpoint, sent, "", max_model_len=512, max_num_seqs=8, **limits)
    told = [(request["at"], request["id"], request["prompt"]) for request in sent]
    rules = Rules(8, budget, decode_in_budget=True, spare=False)
    # One block of vLLM's is never used: its id stands for "none".
    replayed = predict(told, theirs["answers"], HashedBlocks(blocks - 1, BLOCK), rules)
    measured = [theirs["answers"][request["id"]]["cached"] for request in sent]
    assert [entry.cached_tokens for entry in replayed.requests] == measured
    assert replayed.preemptions == theirs["preempted"]
    assert sum(measured) > 0
    if blocks == 30 and together != 1:
        assert replayed.preemptions > 0
    if together == 1:
        other = predict(told, theirs["answers"], HashedBlocks(23, BLOCK), rules)
        assert [entry.cached_tokens for entry in other.requests] != measured, "the prediction can be wrong"
