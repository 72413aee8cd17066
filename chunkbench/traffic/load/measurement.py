"""Measures a server once: sends a plan, and collects the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path

from chunkbench.text_file import write_whole
from chunkbench.traffic.cache_hits import CacheHits, Exchange, cache_hits
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
    _file: FileIO | None = None

    async def run(self, url: str, model: str | None, options: LoadOptions) -> None:
        """Send the warm-up, then the plan. Raises LoadError, and OSError if the file cannot be opened."""
        requests, warm_up, _ = self.plan
        target = await describe_server(url, model)
        longest = max((len(r.prompt) + r.max_tokens for r in requests if isinstance(r.prompt, tuple)), default=0)
        if target.max_length is not None and longest > target.max_length:
            raise LoadError(f"requests have up to {longest} tokens, {target.model} takes {target.max_length}")
        self._file = FileIO(self.out, "w") if self.out else None
        if warm_up:
            await send(target, warm_up, replace(options, clients=len(warm_up)))
        before = await cached_so_far(target)
        self.client_cpu = (await send(target, requests, options, self._ended)).client_cpu
        after = await cached_so_far(target)
        self.cached = None if before is None or after is None else after - before

    @property
    def cache_hits(self) -> CacheHits | None:
        return cache_hits(self.exchanges, self.cached)

    def _ended(self, request: RequestResult, prompt: Prompt, answer: Tokens) -> None:
        said = (prompt.text(), prompt.text(answer.text)) if isinstance(prompt, Chat) else (prompt, prompt)
        self.requests.append(request)
        self.exchanges.append(Exchange(request, *said))
        if self._file and not self.problem:
            try:
                write_whole(self._file, request.model_dump_json().encode())
                self.written += 1
            except OSError as error:
                self.problem = error.strerror or str(error)
        self.announce(len(self.requests))
