"""Plans the requests of `chunkbench load`: drawn at random, or from a trace or a file of texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from chunkbench.traffic.arrivals import Arrivals, due_times
from chunkbench.traffic.formats import read_traffic
from chunkbench.traffic.generated import draw_traffic
from chunkbench.traffic.ladder import Step
from chunkbench.traffic.prompts import Prompts, draw_prompts
from chunkbench.traffic.request import PlannedRequest
from chunkbench.traffic.shared_prefixes import shared_prefixes
from chunkbench.traffic.texts import control, read_texts

_ANSWER_TOKENS = 64
_MOST_WAIT_S = 86_400.0
"""Largest due time of a trace's first request, in seconds. If the first request is due later, the trace is refused: its
times are probably clock times."""


class LoadPlan(NamedTuple):
    """The requests that `chunkbench load` sends."""

    requests: list[PlannedRequest]
    warm_up: list[PlannedRequest]
    """Requests to send before the measurement. They are as long as the measured ones, but begin with other tokens."""
    notes: tuple[str, ...] = ()
    """Facts about the trace that the output should mention."""
    primes: tuple[PlannedRequest, ...] = ()
    """Shared prefixes, to send once before the measurement."""


@dataclass(frozen=True)
class PlanOptions:
    """The options of `chunkbench load` that describe the requests. `--help` explains each."""

    arrivals: Literal["poisson", "gamma", "constant"]
    spread: float
    count: int
    n_p: int
    n_s: int
    prompts: int
    n_c: int | None
    trace: Path | None
    texts: str | None
    control: bool
    longest: int | None
    vocabulary: int
    seed: int
    warm_up: int
    prime: int

    def plan(self, step: Step, steps: int = 1) -> LoadPlan:
        """Make the requests of a step. Raises ValueError, and TraceError for a bad trace or file of texts.

        `steps`: number of steps of the ladder. Each step has other drawn
        tokens and other lines of texts, so that the server's cache does not know them from an earlier step.
        """
        notes: tuple[str, ...] = ()
        seed = f"{self.seed} step {step.place}" if step.place else self.seed
        if self.texts:
            texts = read_texts(self.texts)
            count = min(self.count, len(texts.lines) // steps)
            if not count:
                raise ValueError(f"{self.texts} has {len(texts.lines)} lines, too few for {steps} steps")
            texts = replace(texts, lines=texts.lines[step.place * count :])
            requests = texts.plan(self._dues(count, step), self.n_c)
        elif self.trace:
            requests, notes = self._traced(self.trace, step, seed)
        else:
            prompts = draw_prompts(Prompts(self.n_p, self.n_s, self.prompts), self.count, self.vocabulary, seed)
            n_c = self.n_c or _ANSWER_TOKENS
            dues = self._dues(self.count, step)
            requests = [PlannedRequest(due, prompt, n_c) for due, prompt in zip(dues, prompts, strict=True)]
        if self.control:
            requests = control(requests, self.vocabulary)
        prefixes = shared_prefixes([one.prompt for one in requests], self.prime) if self.prime else []
        primes = tuple(PlannedRequest(0.0, prompt, 1, exact=False) for prompt in prefixes)
        return LoadPlan(requests, self._warm_up(requests, seed), notes, primes)

    def _dues(self, count: int, step: Step) -> list[float]:
        if step.rate is None:
            return [0.0] * count
        return due_times(Arrivals(self.arrivals, self.spread), step.rate, count, self.seed)

    def _traced(self, path: Path, step: Step, seed: int | str) -> tuple[list[PlannedRequest], tuple[str, ...]]:
        """The requests of a trace, and its notes."""
        trace = read_traffic(path)
        if trace.has_token_ids:
            requests = [PlannedRequest(r.due, r.prompt, r.answer_tokens) for r in trace.requests]
        else:
            requests = draw_traffic(trace, self.count, self.vocabulary, seed, self.longest)
        if step.rate is not None:
            dues = self._dues(len(requests), step)
            requests = [replace(one, due=due, after=None) for one, due in zip(requests, dues, strict=True)]
        elif step.clients is None and not trace.timed:
            raise ValueError(f"{path} does not say when requests are due: give --rate or --clients")
        elif step.clients is None and (first := min(request.due for request in requests)) > _MOST_WAIT_S:
            raise ValueError(
                f"{path}: the first request is due {first:,.0f} s after the start, more than a day. `due` counts from "
                f"the start of the load: subtract the first (jq -c '.due -= {first!r}' FILE > NEW), or give --rate"
            )
        return requests, trace.notes

    def _warm_up(self, plan: list[PlannedRequest], seed: int | str) -> list[PlannedRequest]:
        if self.texts:
            first = [replace(request, due=0.0) for request in plan if request.after is None]
            return control(first[: self.warm_up], self.vocabulary)
        length = sorted(len(request.prompt) for request in plan if isinstance(request.prompt, tuple))[len(plan) // 2]
        prompts = draw_prompts(Prompts(length), self.warm_up, self.vocabulary, f"warm-up {seed}")
        return [PlannedRequest(0.0, prompt, plan[0].max_tokens) for prompt in prompts]
