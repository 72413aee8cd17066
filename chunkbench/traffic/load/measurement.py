"""Measures a server once: sends a plan, and collects the results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any

from chunkbench.text_file import write_whole
from chunkbench.traffic.cache_hits import CacheHits, Exchange, cache_hits
from chunkbench.traffic.ladder import Step
from chunkbench.traffic.load.answer import Tokens
from chunkbench.traffic.load.client import LoadError, LoadOptions, describe_server, send
from chunkbench.traffic.load.metrics import cached_so_far
from chunkbench.traffic.load_plan import LoadPlan
from chunkbench.traffic.request import Chat, Prompt
from chunkbench.traffic.request_result import RequestResult


@dataclass
class Measurement:
    """A plan, and the results of the requests that have ended."""

    plan: LoadPlan
    out: Path | None = None
    """File for the results, one line per request. If a line cannot be written, the measurement continues."""
    announce: Callable[[int], None] = lambda ended: None
    """Receives the number of ended requests after each of them."""
    step: Step | None = None
    """The step, if the plan is one of a ladder. Lines of the file name it, and a later step continues the file."""
    record: Callable[[int, tuple[int, int], RequestResult, int], dict[str, Any]] | None = None
    """Makes a line of the file in the format of another tool. Arguments: number of the request, its conversation and
    turn, its result, and the start of the measurement as wall-clock time in ns. By default, a line is the result."""
    requests: list[RequestResult] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    client_cpu: float = 0.0
    """CPU time of the client divided by the time of the measurement. 1 is one full CPU."""
    cached: float | None = None
    """Number of prompt tokens that the server found in its cache during the measurement, by its metrics."""
    written: int = 0
    """Number of lines that were written to the file `out`."""
    problem: str = ""
    """Why a line could not be written; empty if all were."""
    model: str = ""
    """The model's name in requests."""
    _file: FileIO | None = None
    _start_ns: int | None = None

    async def run(self, url: str, model: str | None, options: LoadOptions) -> None:
        """Send the warm-up, then the plan. Raises LoadError, and OSError if the file cannot be opened."""
        requests, warm_up, _, primes = self.plan
        target = await describe_server(url, model, min(10.0, options.timeout_s))
        self.model = target.model
        longest = max((len(r.prompt) + r.max_tokens for r in requests if isinstance(r.prompt, tuple)), default=0)
        if target.max_length is not None and longest > target.max_length:
            raise LoadError(f"requests have up to {longest} tokens, {target.model} takes {target.max_length}")
        self._file = FileIO(self.out, "a" if self.step and self.step.place else "w") if self.out else None
        if warm_up:
            await send(target, warm_up, replace(options, clients=len(warm_up)))
        for primed in (await send(target, primes, replace(options, clients=1))).requests if primes else ():
            if primed.status != "ok":
                raise LoadError(f"a shared prefix was not answered before the clock: {primed.reason}")
        before = await cached_so_far(target)
        self.client_cpu = (await send(target, requests, options, self._ended)).client_cpu
        after = await cached_so_far(target)
        self.cached = None if before is None or after is None else after - before

    @property
    def cache_hits(self) -> CacheHits | None:
        return cache_hits(self.exchanges, self.cached, [_said(one.prompt)[0] for one in self.plan.primes])

    @cached_property
    def _turns(self) -> list[tuple[int, int]]:
        """For each request of the plan: (number of the conversation's first request, turn)."""
        turns: list[tuple[int, int]] = []
        for number, request in enumerate(self.plan.requests):
            first, turn = (number, 0) if request.after is None else turns[request.after]
            turns.append((first, turn + 1))
        return turns

    def _ended(self, number: int, request: RequestResult, prompt: Prompt, answer: Tokens) -> None:
        self.requests.append(request)
        self.exchanges.append(Exchange(request, *_said(prompt, answer.text), *self._turns[number]))
        if self._file and not self.problem:
            try:
                line = (self.step.axis if self.step else {}) | self._line(number, request)
                write_whole(self._file, json.dumps(line).encode())
                self.written += 1
            except OSError as error:
                self.problem = error.strerror or str(error)
        self.announce(len(self.requests))

    def _line(self, number: int, request: RequestResult) -> dict[str, Any]:
        if self.record is None:
            return request.model_dump()
        if self._start_ns is None:  # the first request has just ended
            self._start_ns = time.time_ns() - int((request.last or 0.0) * 1e9)
        return self.record(number, self._turns[number], request, self._start_ns)


def _said(prompt: Prompt, answer: str = "") -> tuple[Any, Any]:
    """The prompt, and what a later prompt may repeat of prompt and answer, as sequences that can be compared."""
    return (prompt.text(), prompt.text(answer)) if isinstance(prompt, Chat) else (prompt, prompt)
