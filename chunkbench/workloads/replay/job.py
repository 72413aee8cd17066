"""Computes one replay in a process, and the numbers that a result keeps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import cast

import numpy as np

from chunkbench.attention.manager import ReplayedManager
from chunkbench.attention.tokens import alike
from chunkbench.server.scheduling import Rules
from chunkbench.traffic.generated import GENERATED, Demand
from chunkbench.traffic.replayed import ReplayRequest, read_replayed, truncated
from chunkbench.workloads.replay.groups import AnswerGroups
from chunkbench.workloads.replay.methods import KINDS, ManagerKind, Memory
from chunkbench.workloads.replay.result import MemoryMoment, ReplayPoint, ReplaySeed
from chunkbench.workloads.replay.simulate import Replay, Replayed, replay
from chunkbench.workloads.replay.step_time import StepTime


@dataclass(frozen=True)
class ReplayJob:
    """The input of one replay."""

    manager: str
    point: ReplayPoint
    named: str
    """Random seed of the requests, as text."""
    seed: int
    """Number of the arrival seed."""
    requests: int
    longest: int | None
    prompt_budget: int
    truncate: int | None
    """Number of a prompt's last tokens to keep. None keeps all."""
    step_time: StepTime


@dataclass(frozen=True)
class Answered:
    """The output of one replay."""

    normalized_s: float | None
    """Mean over requests of (seconds from due time to last token) / (answer tokens). None if no request was answered.
    """
    requests_per_s: float | None
    capacity: int
    block_tokens: int
    replay: ReplaySeed | None
    reason: str = ""
    """Why the point is impossible, or why its first refused request never fits. Otherwise empty."""


def compute(job: ReplayJob) -> Answered:
    """Run a job. Raises ValueError or `TraceError` for a bad trace, OSError if a file cannot be read."""
    point, kind = job.point, KINDS[job.manager]
    if reason := _impossible(kind, point):
        return Answered(None, None, 0, 0, None, reason)
    requests = requests_of(point, job.named, job.requests, job.longest, job.truncate)
    own = kind.make(memory_of(point, requests, job.longest))
    answers = point.samples or point.beams or 1
    manager = AnswerGroups(own, answers, point.samples is None, job.seed) if answers > 1 else own
    rules = Rules(point.batch_size, job.prompt_budget, order=point.schedule or "fcfs", swap=kind.swaps)
    done = replay(requests, manager, rules, job.step_time, answers)
    answered = [replayed for replayed in done.requests if replayed.last is not None]
    latencies = [(cast(float, replayed.last) - replayed.request.due) / replayed.request.answer for replayed in answered]
    refused = [replayed for replayed in done.requests if replayed.refused]
    return Answered(
        normalized_s=fmean(latencies) if latencies else None,
        requests_per_s=_rate(requests),
        capacity=manager.capacity,
        block_tokens=manager.block_tokens,
        replay=_seed(job, done, answered, len(refused), manager),
        reason=refused[0].refused if refused else "",
    )


def _impossible(kind: ManagerKind, point: ReplayPoint) -> str:
    """Why a manager cannot replay a point; empty if it can."""
    if kind.swaps and (point.samples or point.beams):
        return "swapping is known only for requests with one answer; leave out samples and beams"
    return _not_one_at_a_time(point) if kind.one_at_a_time else ""


def _not_one_at_a_time(point: ReplayPoint) -> str:
    """Why the requests of a point do not run one after the other in order of arrival; empty if they do."""
    if point.samples or point.beams:
        return "an optimum is known only for requests with one answer; leave out samples and beams"
    if point.batch_size != 1:
        return f"an optimum is known only for requests that run one at a time: batch_size 1, not {point.batch_size}"
    if point.schedule not in (None, "fcfs"):
        return f"an optimum is known only for requests in order of arrival: schedule fcfs, not {point.schedule}"
    return ""


_read_once = lru_cache(maxsize=2)(read_replayed)
"""Read a trace. The result is cached, because all managers of a point replay the same requests."""


def requests_of(
    point: ReplayPoint, named: str, count: int, longest: int | None = None, truncate: int | None = None
) -> Sequence[ReplayRequest]:
    """The requests of a point, the same for all managers. Raises ValueError, `TraceError` or FileNotFoundError."""
    traffic = point.traffic or "fixed"
    rate = point.rate / 60 if point.rate is not None else None
    if traffic in GENERATED:
        fixed = traffic == "fixed"
        demand = Demand(
            cast(float, rate),
            count,
            named,
            n_p=cast(int, point.n_p) if fixed else None,
            n_s=point.n_s,
            n_c=point.n_c if fixed else None,
            prompts=point.prompts if point.tree is None else None,
            tree=point.tree,
        )
        requests = GENERATED[traffic](demand)
    elif os.path.isfile(traffic):
        requests = _read_once(Path(traffic), count, None if truncate else longest, rate, named)
    else:
        raise FileNotFoundError(f"{traffic}: no such trace")
    if truncate:
        requests = truncated(requests, truncate)
    kept = [request for request in requests if longest is None or request.text.total <= longest]
    if not kept:
        raise ValueError(f"{traffic}: all requests have more than {longest} tokens")
    return kept


def memory_of(point: ReplayPoint, requests: Sequence[ReplayRequest], longest: int | None) -> Memory:
    """The memory of a point. A point that names no size gets room for all requests at once."""
    most = longest or max(request.text.total for request in requests)
    answers = point.samples or point.beams or 1
    return Memory(
        point.memory or answers * slots_of(requests, max(point.block_size, point.chunk_size), most),
        point.block_size,
        point.chunk_size,
        most,
        [request.text for request in requests],
    )


def slots_of(requests: Sequence[ReplayRequest], block: int, longest: int) -> int:
    """Number of slots for all requests at once, in whole blocks. It is at least the size of eight contiguous pieces for
    the longest sequence.
    """
    blocks = sum(-(-request.text.total // block) * block for request in requests)
    return max(blocks, 8 << longest.bit_length())


def _seed(
    job: ReplayJob, outcome: Replay, answered: Sequence[Replayed], refused: int, manager: ReplayedManager
) -> ReplaySeed:
    first = [cast(float, replayed.first) - replayed.request.due for replayed in answered]
    return ReplaySeed(
        arrival_seed=job.seed,
        requests=len(outcome.requests),
        refused=refused,
        prompt_tokens=sum(replayed.text.prompt for replayed in answered),
        cached_tokens=sum(replayed.cached_tokens or 0 for replayed in answered),
        distinct_tokens=_distinct(answered, manager.block_tokens),
        computed_tokens=outcome.computed_tokens,
        preemptions=outcome.preemptions,
        evicted_blocks=manager.evictions,
        steps=outcome.steps,
        end_s=outcome.end,
        peak_slots=outcome.peak_slots,
        peak_batch=outcome.peak_batch,
        mean_batch=round(outcome.mean_batch, 4),
        prompt_share=manager.prompt_share if isinstance(manager, AnswerGroups) else None,
        first_token_s=tuple(np.percentile(first, [50, 90, 99]).tolist()) if first else (),
        timeline=tuple(
            MemoryMoment(round(moment.at, 3), moment.batch, moment.waiting, **vars(moment.accounts))
            for moment in outcome.moments
        ),
    )


def _distinct(answered: Sequence[Replayed], block: int) -> int:
    """Distinct tokens of all prompts: equal whole blocks count once, and blocks that answers wrote do not count."""
    prompts: list[bytes] = []
    answers: set[int] = set()
    tails = 0
    for replayed in answered:
        full = replayed.text.prompt // block
        keys = replayed.text.keys(block)
        prompts.append(keys[:full].tobytes())
        answers.update(keys[full:].tolist())
        tails += replayed.text.prompt - full * block
    # A key stands for its block and all blocks before it. So in sorted order the prompt before has all known blocks.
    blocks, before = 0, b""
    for prompt in sorted(prompts):
        new = np.frombuffer(prompt, np.int64)[alike(prompt, before) // 8 :].tolist()
        blocks += len(new) - len(answers.intersection(new))
        before = prompt
    return blocks * block + tails


def _rate(requests: Sequence[ReplayRequest]) -> float | None:
    seconds = requests[-1].due - requests[0].due
    return (len(requests) - 1) / seconds if seconds > 0 else None
