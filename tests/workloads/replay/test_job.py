"""Single replays, and the numbers that are kept of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from chunkbench.attention.text import SegmentText, Text, TokenText
from chunkbench.traffic.replayed import ReplayRequest
from chunkbench.workloads.replay.job import Answered, ReplayJob, _distinct, compute
from chunkbench.workloads.replay.result import ReplayPoint
from chunkbench.workloads.replay.simulate import Replayed
from chunkbench.workloads.replay.step_time import Constant, StepTime, WithSwaps, copy_rate


def job(
    manager: str,
    requests: int = 20,
    longest: int | None = None,
    truncate: int | None = None,
    step_time: StepTime = Constant(0.02),  # noqa: B008, it is frozen
    **axes: Any,
) -> ReplayJob:
    given = {"rate": 600, "device": "cpu", "dtype": "float16", **axes}
    point = ReplayPoint(**ReplayPoint.completed(given) | given)
    return ReplayJob(manager, point, "0", 0, requests, longest, 512, truncate, step_time)


def test_slow_copies_make_swapping_slow() -> None:
    """In a memory that holds a tenth of all requests."""
    found: dict[str, Answered] = {}
    for name, manager, token_s in (("again", "paged", 0.0), ("fast", "paged_swap", 0.0), ("slow", "paged_swap", 0.01)):
        step_time = WithSwaps(Constant(0.02), token_s, "in a test")
        found[name] = compute(job(manager, traffic="alpaca", memory=384, rate=6000, step_time=step_time))
        replay = found[name].replay
        assert replay is not None
        assert replay.preemptions > 0
        assert (replay.computed_tokens > replay.prompt_tokens) == (name == "again")
    assert found["slow"].normalized_s > 1.1 * found["fast"].normalized_s  # type: ignore[operator]


def test_copies_are_timed_once_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_rate.cache_clear()
    monkeypatch.setattr("chunkbench.workloads.replay.step_time._BYTES", 1 << 22)
    monkeypatch.setattr("chunkbench.workloads.replay.step_time._COPIED", 1 << 20)
    rates = [copy_rate(size) for size in (4096, 1 << 16, 4096, 1 << 30)]  # the last is more than all that is copied
    assert min(rates) > 0
    assert rates[0] == rates[2]
    assert copy_rate.cache_info()[:2] == (1, 3)
    copy_rate.cache_clear()


@pytest.mark.parametrize(("truncate", "cached"), [(None, 19 * 64), (96, 0)])
def test_cut_prompts_are_not_cached(truncate: int | None, cached: int) -> None:
    """The optimum knows the requests as they are after the cut."""
    axes: dict[str, Any] = {"n_p": 128, "n_s": 96, "n_c": 4, "block_size": 32, "batch_size": 1}
    for manager in ("paged_prefix", "belady"):
        replay = compute(job(manager, truncate=truncate, **axes)).replay
        assert replay is not None
        assert (replay.prompt_tokens, replay.refused) == (20 * (truncate or 128), 0)
        assert replay.cached_tokens == (19 * 96 if truncate is None else cached)


def test_requests_are_too_long_only_after_the_cut(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(json.dumps({**line, "timestamp": 500 * n}) for n in range(6)))
    for traffic, answer in ((str(file), 4), ("fixed", 4)):
        axes: dict[str, Any] = {"n_p": 600, "n_s": 0, "n_c": answer} if traffic == "fixed" else {"rate": None}
        made = job("paged", 6, 100, 96, traffic=traffic, samples=2, **axes)
        replay = compute(made).replay
        assert replay is not None
        assert (replay.requests, replay.prompt_tokens, replay.refused) == (6, 6 * 96, 0)
        with pytest.raises(ValueError, match=r"all requests have more than 99 tokens"):
            compute(job("paged", 6, 99, 96, traffic=traffic, **axes))


def test_several_answers_that_never_fit_are_refused_with_the_reason() -> None:
    answered = compute(job("paged", n_p=64, n_s=0, n_c=64, memory=256, block_size=16, samples=6))
    assert answered.normalized_s is None
    assert answered.reason == "6 answers of 128 tokens with prompt need 28 blocks of 16"
    assert answered.replay is not None
    assert (answered.replay.refused, answered.replay.mean_batch, answered.replay.prompt_share) == (20, 0, 0)


def slow_distinct(texts: list[Text], block: int) -> int:
    """Names are all tokens up to the end of a block."""
    prompts, answers, tails = set[tuple[int, ...]](), set[tuple[int, ...]](), 0
    for text in texts:
        names = [tuple(text.tokens(0, end).tolist()) for end in range(block, text.total + 1, block)]
        full = text.prompt // block
        prompts.update(names[:full])
        answers.update(names[full:])
        tails += text.prompt % block
    return len(prompts - answers) * block + tails


@pytest.mark.parametrize("kind", ["tokens", "segments"])
def test_distinct_tokens_are_those_of_sets(kind: str) -> None:
    """Texts begin as others did, often with their answers, and many are equal."""
    told = 0
    for seed in range(150):
        chance = random.Random(f"{kind} {seed}")
        said: list[list[tuple[int, int]]] = [[]]
        texts: list[Text] = []
        for number in range(12):
            before = chance.choice(said)
            before = before[: chance.randrange(len(before) + 1)]
            # Ids of tokens may come again behind other tokens; ids of segments stand for one text.
            more = [
                (chance.randrange(3) if kind == "tokens" else 100 * number + n, chance.randint(1, 5)) for n in (1, 2)
            ]
            said.append([*before, *more])
            total = sum(tokens for _, tokens in said[-1])
            prompt = chance.randint(1, total - 1)
            if kind == "tokens":
                ids = tuple(one for one, tokens in said[-1] for _ in range(tokens))
                texts.append(TokenText(ids, prompt, total))
            else:
                texts.append(SegmentText(said[-1], prompt))
        block = chance.randint(1, 4)
        entries = [Replayed(n, ReplayRequest(0.0, text)) for n, text in enumerate(texts)]
        found = _distinct(entries, block)
        assert found == slow_distinct(texts, block), seed
        told += found < sum(text.prompt for text in texts)
    assert told > 100
    assert _distinct([], 4) == 0
