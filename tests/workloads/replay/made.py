"""Facts about replays, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chunkbench.attention.text import SegmentText
from chunkbench.llama import SHAPES
from chunkbench.traffic.replayed import ReplayRequest
from chunkbench.workloads.replay.paper_a100 import Opt13bA100
from chunkbench.workloads.replay.result import MemoryMoment, ReplayResult, ReplaySeed


def replay_seed(
    number: int = 0,
    *,
    shares: Sequence[int] = (1000, 0, 0, 0),
    saved: int = 0,
    **facts: Any,
) -> ReplaySeed:
    """A replay whose memory is used, reserved and lost inside and outside by these slots of 1000 all the time; sharing
    saves `saved` more tokens."""
    used, reserved, inside, outside = shares
    timeline = [MemoryMoment(at, 1, 0, used, reserved, inside, outside, 0, 0, used + saved) for at in (0.0, 1.0)]
    counted = dict.fromkeys(
        ("requests", "refused", "prompt_tokens", "cached_tokens", "distinct_tokens", "computed_tokens", "preemptions",
         "evicted_blocks", "steps", "peak_slots", "peak_batch"), 0,
    )  # fmt: skip
    return ReplaySeed(**{**counted, "arrival_seed": number, "end_s": 1.0, "timeline": tuple(timeline), **facts})


def replay_facts(
    manager: str, experiment: str, seconds: float = 0.05, seeds: Sequence[ReplaySeed] = (), **axes: Any
) -> ReplayResult:
    """A line of `cases.jsonl` of `kind: replay` in the PagedAttention paper's setup, changed by `axes`; each seed has
    this normalized latency, seconds per token."""
    replays = tuple(seeds) or (replay_seed(),)
    values: dict[str, Any] = {
        "model": SHAPES["llama2-13b"],
        "memory": 15_728,
        "dtype": "float16",
        "device": "cpu",
        "batch_size": 256,
        "block_size": 16,
        "chunk_size": 16,
        "n_s": 0,
        **axes,
    }
    return ReplayResult(
        key=f"{manager} {experiment} {sorted(axes.items(), key=repr)}",
        experiment=experiment,
        implementation=manager,
        label=manager,
        status="ok",
        us_per_token=(seconds * 1e6,) * len(replays),
        replays=replays,
        step_time=Opt13bA100().words,
        **values,
    )


def sustained(manager: str, rate: int, experiment: str, rates: int = 2, **axes: Any) -> list[ReplayResult]:
    """Rows at several rates (requests per minute), of which exactly this one is sustained at 100 ms per token."""
    above = [replay_facts(manager, experiment, 1.0 + more, rate=(more + 2) * rate, **axes) for more in range(rates - 1)]
    return [replay_facts(manager, experiment, 0.1, rate=rate, **axes), *above]


def request(due: float, *prompt: tuple[int, int], answer: int, number: int) -> ReplayRequest:
    """A request whose prompt has these segments (ids and tokens); its answer is nobody else's."""
    text = SegmentText((*prompt, (1000 + number, answer)), sum(tokens for _, tokens in prompt))
    return ReplayRequest(due, text)
