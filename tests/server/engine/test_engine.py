"""The engine's promises: every request gets its tokens, once, in order; memory returns; limits hold. Also with heads
that keep a window only."""

from __future__ import annotations

import random
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from chunkbench.attention import RaggedChunkAttention
from chunkbench.attention.windows import HeadPolicy
from chunkbench.server.engine import Engine, EngineOptions, Model, ModelError, Request, Sampling
from chunkbench.server.engine.llama import fits
from chunkbench.server.engine.model import INTERFACE, random_module, refuse_other_attention
from tests.pairs import pairs
from tests.server.engine.models import (
    CHUNK_BYTES,
    SIZES,
    VOCABULARY,
    answers_of,
    sharp_module,
    small_engine,
    small_model,
)

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def test_only_what_is_not_cached_is_computed() -> None:
    served = small_engine()
    served.add(Request("a", list(range(130)), 9))
    assert served.step().prompt_tokens == 130
    served.add(Request("b", [*range(128), 7, 7], 2))
    report = served.step()
    assert report.prompt_tokens == 2
    assert [token.cached_tokens for token in report.generated] == [0, 128]


def test_the_time_of_the_tree_is_a_part_of_the_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan takes 50 ms more here, and is no work of the tree."""
    served = small_engine(chunks=4, cache="radix")
    plan = served._cache.plan
    monkeypatch.setattr(served._cache, "plan", lambda: (sleep(0.05), plan()))
    for first in (0, 100):  # the second prompt takes the chunks that the first one left
        served.add(Request("a", list(range(first, first + 130)), 3))
        begun, decoded, ended = (served.step() for _ in range(3))
        assert all(0 < report.tree_s < report.schedule_s - 0.05 for report in (begun, decoded))
        assert 0 < ended.tree_s < ended.overhead_s - 0.05


def test_one_call_for_all_layers_gives_the_answers_of_calls_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside rows whose K and V are in the cache already, for which there are calls for each layer."""
    calls, answers = list[bool](), list[dict[str, list[int]]]()
    run = RaggedChunkAttention.run_layers

    def counted(*given: Any) -> list[float]:
        seconds = run(*given)
        calls.append(bool(seconds))
        return seconds

    for chosen in (counted, lambda *_: []):
        monkeypatch.setattr(RaggedChunkAttention, "run_layers", chosen)
        served = small_engine(cache="radix")
        shared = list(range(128))
        first = answers_of(served, Request("a", shared, 5), Request("b", [*shared, 9, 8], 7))
        answers.append(first | answers_of(served, Request("c", shared, 6), Request("d", [7], 6)))
    assert answers[0] == answers[1]
    assert {True, False} == set(calls)


@pytest.mark.parametrize("budget", [7, 50])
def test_log_probabilities_of_a_cached_prompt_in_pieces(budget: int) -> None:
    """The pieces end inside sixteen tokens, whose K is stored in another order when they are full."""
    prompt, told = [(7 * n * n + 3) % VOCABULARY for n in range(150)], []
    for first in (Request("other", [1], 1), Request("same", prompt, 1)):
        served = small_engine(prompt_budget=budget, cache="radix")
        answers_of(served, first)
        served.add(Request("b", prompt, 2, prompt_logprobs=1))
        while not served.idle:
            told += [one.prompt_logprobs for one in served.step().generated if one.prompt_logprobs]
    values = [[one.chosen.logprob for one in each if one is not None] for each in told]
    assert values[1] == pytest.approx(values[0], abs=1e-4)


def test_one_call_for_all_layers_checks_what_it_gets() -> None:
    served = small_engine()
    served.add(Request("a", [1, 2, 3], 2))
    served.step()
    kernel, model = served._attention._kernel, served.model._llama
    assert model is not None
    step = model._native.make_buffers(2, *[0] * 10)
    with pytest.raises(ValueError, match="have an entry for each row"):
        kernel.run_layers(model._layers, step, np.zeros(2, np.int64), np.zeros(2, np.int64))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("count", "longest"), [(12, 130), pytest.param(5000, 90, marks=pytest.mark.slow)])
def test_a_soak_on_memory_that_forces_preemption(count: int, longest: int) -> None:
    """Random sizes, a third of the clients go away: every kept answer equals that of an undisturbed engine.

    Among thousands of answers a few may meet two tokens of nearly equal logits, which another batch can exchange.
    """
    chance = random.Random(11)
    systems = [[chance.randrange(VOCABULARY) for _ in range(70)] for _ in range(1)]
    requests = []
    for n in range(count):
        prompt = chance.choice([[], *systems]) + [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 30))]
        requests.append(Request(f"r{n}", prompt, chance.randrange(longest // 2, longest)))
    gone = {request.id: chance.randrange(longest // 2) for request in requests if chance.random() < 1 / 3}
    served = small_engine(chunks=6, max_batch=8, prompt_budget=64)
    answers: dict[str, list[int]] = {request.id: [] for request in requests}
    queue, preempted = list(requests), 0
    while queue or not served.idle:
        for request in queue[:2]:
            served.add(request)
        del queue[:2]
        served.drop([name for name, after in gone.items() if len(answers[name]) >= after])
        report = served.step()
        preempted += report.preempted
        assert report.kv_bytes <= 6 * CHUNK_BYTES
        for made in report.generated:
            answers[made.request].append(made.token)
    assert preempted > 0
    assert served.kv_bytes == 0
    assert served.peak_kv_bytes > 4 * CHUNK_BYTES
    undisturbed = answers_of(small_engine(chunks=64, prompt_budget=1000), *requests)
    others = 0
    for request in requests:
        alone, answer = undisturbed[request.id], answers[request.id]
        assert len(alone) == request.max_tokens
        others += answer != alone[: len(answer)]
        assert len(answer) == len(alone) or request.id in gone
    assert others <= count // 200


def test_callers_that_compute_full_attention_only_refuse_other() -> None:
    window = transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=64)
    with pytest.raises(ModelError, match="sliding window of 64 tokens"):
        refuse_other_attention(window)
    capped = transformers.Gemma2Config(**SIZES, num_key_value_heads=2)
    with pytest.raises(ModelError, match="layers of the kind sliding_attention"):
        refuse_other_attention(capped)
    capped.layer_types = ["full_attention"] * 2
    capped.sliding_window = None
    with pytest.raises(ModelError, match="soft-capping"):
        refuse_other_attention(capped)


def test_a_model_is_served_as_far_as_its_positions_depend_on_itself_alone() -> None:
    """Beyond the original length longrope takes other angles, for all sequences of a step; partial ones have few."""

    scaled = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    factors = {"short_factor": [1.0] * 16, "long_factor": [4.0] * 16}
    longrope = transformers.LlamaConfig(**SIZES, rope_parameters={"rope_type": "longrope", **scaled, **factors})
    assert Model(random_module(longrope, torch.float32)).max_length == 64
    for part, native in ((1.0, True), (0.25, False)):
        rope = {"rope_type": "yarn", **scaled, "partial_rotary_factor": part}
        config = transformers.LlamaConfig(**SIZES, rope_parameters=rope)
        assert fits(random_module(config, torch.float32)) == native


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


class SpoiledModel(Model):
    """The small model, which cannot compute tokens from a position on, or more than some tokens at once."""

    def __init__(self, at: int = 10**9, how: str = "", most: int = 10**9) -> None:
        super().__init__(sharp_module("llama-grouped", INTERFACE))
        self._at, self._how, self._most = at, how, most

    def logits(self, tokens: list[int], positions: list[int], rows: list[int], attention: Any) -> torch.Tensor:
        if self._how == "lost":
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        if len(tokens) > self._most:
            raise MemoryError
        bad = [place >= self._at for place in positions]
        if self._how == "raises" and any(bad):
            super().logits([0] * len(tokens), positions, rows, attention)  # K and V of this step are wrong
            raise RuntimeError("no such token")
        computed = super().logits(tokens, positions, rows, attention).clone()
        for place, row in enumerate(rows):
            if bad[row]:
                computed[place, 7] = float(self._how)
        return computed


@pytest.mark.parametrize(
    ("options", "where", "how"),
    pairs(
        [{}, {"cache": "radix", "schedule": "prefix"}, {"attention": "no-sharing"}, {"prompt_budget": 70}],
        list(AT),
        ["raises", "nan", "inf"],
    ),
    ids=str,
)
def test_a_request_that_cannot_be_computed_fails_alone(options: dict[str, Any], where: str, how: str) -> None:
    hot = "attention" in options
    limits = EngineOptions(kv_bytes=CHUNK_BYTES * 40, max_batch=8, **options)
    others = requests(hot)
    expected, _ = run(Engine(small_model(), limits), others)
    engine = Engine(SpoiledModel(AT[where], how), limits)
    answers, failures = run(engine, [*others[:3], failing_request(hot), *others[3:]])
    assert list(failures) == ["failing"]
    assert ("RuntimeError: no such token" if how == "raises" else "logits") in failures["failing"]
    assert len(answers.pop("failing")) == max(0, AT[where] - LONGEST + 1)
    assert answers == expected
    # What the failed request left in the cache must not reach those that come later.
    assert run(engine, others)[0] == expected


def test_nothing_of_a_failed_request_is_kept_for_later_ones() -> None:
    model = SpoiledModel(AT["in its answer"], "nan")
    engine = Engine(model, EngineOptions(kv_bytes=CHUNK_BYTES * 8, cache="radix"))
    assert list(run(engine, [failing_request(False)])[1]) == ["failing"]
    assert engine.idle_kv_bytes == 0
    run(engine, requests(False)[:1])
    assert engine.idle_kv_bytes == 3 * CHUNK_BYTES


def test_a_batch_that_is_too_large_for_the_memory_is_computed_in_parts() -> None:
    limits = EngineOptions(kv_bytes=CHUNK_BYTES * 40)
    expected, _ = run(Engine(small_model(), limits), requests(True))
    assert run(Engine(SpoiledModel(most=200), limits), requests(True)) == (expected, {})


def test_a_lost_gpu_ends_the_engine() -> None:
    engine = Engine(SpoiledModel(how="lost"), EngineOptions(kv_bytes=CHUNK_BYTES * 4))
    engine.add(Request("a", [1, 2], 2))
    with pytest.raises(torch.AcceleratorError):
        engine.step()


SMALL_CHUNK_BYTES = small_model().token_bytes() * 16
ALL, SOME, NONE = ((True, True),) * 2, ((True, False), (False, False)), ((False, False),) * 2


def windowed(full: tuple[tuple[bool, ...], ...] | None, chunks: int = 200, window: int = 32, **options: Any) -> Engine:
    compress = options.pop("compress", "own")
    policy = None if full is None else HeadPolicy(full, window, compress=compress)
    chosen = EngineOptions(kv_bytes=SMALL_CHUNK_BYTES * chunks, chunk_size=16, policy=policy, **options)
    return Engine(small_model(), chosen)


def long_requests(count: int = 4, prompt: int = 120, tokens: int = 60) -> list[Request]:
    rng = random.Random(5)
    return [Request(str(n), [rng.randrange(VOCABULARY) for _ in range(prompt)], tokens) for n in range(count)]


def test_nothing_changes_while_nothing_is_lost() -> None:
    expected = answers_of(windowed(None), *long_requests())
    assert answers_of(windowed(ALL), *long_requests()) == expected
    assert answers_of(windowed(NONE, window=400), *long_requests()) == expected


@pytest.mark.parametrize("cache", ["live", "radix"])
@pytest.mark.parametrize("compress", ["own", "all"])
def test_windows_hold_fewer_bytes_and_lose_no_request(cache: str, compress: str) -> None:
    whole, windows = windowed(None, cache=cache), windowed(SOME, cache=cache, compress=compress)
    expected, answers = answers_of(whole, *long_requests()), answers_of(windows, *long_requests())
    assert [len(answer) for answer in answers.values()] == [60] * 4
    assert [answer[0] for answer in answers.values()] == [answer[0] for answer in expected.values()]
    assert answers != expected
    assert windows.kv_bytes == 0
    busy = windowed(SOME, cache=cache, compress=compress)
    for request in long_requests():
        busy.add(request)
    while busy.step().prompt_tokens:
        pass
    lost = 4 * (120 // 16 - 1 - 2)  # of each prompt all chunks but the sinks and the window
    sums = 3 * 2 * 32 * 4
    assert busy.kv_bytes == 4 * 8 * SMALL_CHUNK_BYTES - lost * (SMALL_CHUNK_BYTES * 3 // 4 - sums)


def test_later_prompts_are_computed_exactly_behind_what_others_lost() -> None:
    """`own` shares no chunk that window heads lost, so an answer begins as it would alone."""
    served = windowed(NONE, cache="radix")
    first, again = (answers_of(served, *long_requests(1))["0"] for _ in range(2))
    assert first == again
    shared = windowed(NONE, cache="radix", compress="all")
    answers_of(shared, *long_requests(1))
    shared.add(long_requests(1)[0])
    report = shared.step()
    assert report.prompt_tokens < 120 - 5 * 16  # here the prefix is shared, with what is left of it
