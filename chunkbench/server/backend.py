"""Defines what the server needs from an engine, and runs our engine in a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chunkbench.server.engine import Engine, Generated, Request, RequestFailed, RequestRefused, StepReport

_LOGGER = logging.getLogger(__name__)


class BackendFailed(Exception):
    """The engine broke and answers no more requests."""


Deliver = Callable[[Generated | RequestFailed | BackendFailed], None]
"""A function that receives the tokens of one answer in order. An error instead of a token ends the answer. The
function runs on the event loop."""


@dataclass(frozen=True)
class Load:
    running: int
    waiting: int
    kv_bytes: int
    """Bytes of the K and V that running requests use."""
    idle_kv_bytes: int = 0
    """Bytes of the K and V that no running request uses, kept for later requests."""


class Backend(Protocol):
    """The engine behind a server. All methods except `close` are called on the event loop."""

    def start(self, observer: Observer) -> None:
        """Start the engine. It reports every step to the observer."""

    def check(self, request: Request, answers: int) -> None:
        """Raise RequestRefused if the engine can never give this number of answers to the request."""

    def tokens(self) -> tuple[int, frozenset[int]]:
        """Size of the vocabulary, and the token ids that end an answer."""

    def submit(self, requests: Sequence[Request], deliver: Deliver) -> None:
        """Put requests with the same prompt into the queue. `check` must have accepted them. Raises BackendFailed."""

    def drop(self, id: str) -> None: ...

    def load(self) -> Load: ...

    def facts(self) -> dict[str, Any]:
        """Settings that identify the engine in stored results."""

    def close(self) -> None:
        """Stop the engine. Requests that still run get no answer."""


class Observer(Protocol):
    """Receives the engine's reports."""

    def step(self, ended: float, report: StepReport, load: Load) -> None:
        """A step ended at the time `ended`, in seconds of `time.perf_counter`."""

    def failed(self, error: BackendFailed) -> None: ...


def refuse_beyond_greedy(engine: str, request: Request, ends: Collection[int]) -> None:
    """Raise RequestRefused for what only our engine can do. `ends`: token ids that end the answer."""
    if not request.sampling.greedy:
        raise RequestRefused(f"the engine {engine} is greedy here: send temperature = 0", "temperature")
    for field in ("logprobs", "prompt_logprobs", "beams"):
        if getattr(request, field) is not None:
            name = "use_beam_search" if field == "beams" else field
            raise RequestRefused(f"the engine {engine} has no {name} here; leave it out", name)
    if request.matcher is not None:
        raise RequestRefused(f"the engine {engine} follows no constraints; leave them out", "response_format")
    if request.min_tokens and ends:
        raise RequestRefused(f"the engine {engine} has no min_tokens; leave it out", "min_tokens")


class Deliveries:
    """The answers that have not ended, of an engine in another thread. Its outcomes reach them on the event loop."""

    def __init__(self, observer: Observer) -> None:
        """To be made on the event loop."""
        self._events = asyncio.get_running_loop()
        self._observer = observer
        self._failed: BackendFailed | None = None
        self._answers: dict[str, Deliver] = {}
        """Request id -> function that receives its tokens. Used only on the event loop."""

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, requests: Iterable[Request], deliver: Deliver) -> None:
        """Raises BackendFailed if the engine has failed."""
        if self._failed:
            raise self._failed
        self._answers |= dict.fromkeys([request.id for request in requests], deliver)

    def drop(self, id: str) -> bool:
        """Forget an answer. Returns whether there was one."""
        return self._answers.pop(id, None) is not None

    def tell(self, outcomes: Sequence[Generated | RequestFailed]) -> None:
        """Deliver outcomes, from any thread."""
        self._call(self._deliver, outcomes)

    def fail(self, error: BackendFailed) -> None:
        """End all answers, and refuse further ones, from any thread."""
        self._call(self._fail, error)

    def _call(self, function: Callable[[Any], None], what: Any) -> None:
        """Call a function on the event loop, unless the server has ended."""
        if not self._events.is_closed():
            self._events.call_soon_threadsafe(function, what)

    def _deliver(self, outcomes: tuple[Generated | RequestFailed, ...]) -> None:
        for outcome in outcomes:
            answer = self._answers.get(outcome.request)
            if answer is None:  # its client has just disconnected
                continue
            if isinstance(outcome, RequestFailed) or outcome.finish is not None:
                del self._answers[outcome.request]
            answer(outcome)

    def _fail(self, error: BackendFailed) -> None:
        self._failed = error
        answers, self._answers = list(self._answers.values()), {}
        for answer in answers:
            answer(error)
        self._observer.failed(error)


class ChunkBackend:
    """Runs our engine in its own thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: list[Sequence[Request]] = []
        self._gone: list[str] = []
        self._changed = threading.Condition()
        """Guards the inbox, the list of dropped requests, and `_closing`."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine")

    def start(self, observer: Observer) -> None:
        self._observer = observer
        self._deliveries = Deliveries(observer)
        self._thread.start()

    def check(self, request: Request, answers: int) -> None:
        self._engine.check(request, answers)

    def tokens(self) -> tuple[int, frozenset[int]]:
        return self._engine.model.vocabulary, frozenset(self._engine.model.eos_ids)

    def submit(self, requests: Sequence[Request], deliver: Deliver) -> None:
        self._deliveries.add(requests, deliver)
        with self._changed:
            self._inbox.append(requests)
            self._changed.notify()

    def drop(self, id: str) -> None:
        if self._deliveries.drop(id):
            with self._changed:
                self._gone.append(id)
                self._changed.notify()

    def load(self) -> Load:
        engine = self._engine
        return Load(engine.running, engine.waiting + len(self._inbox), engine.kv_bytes, engine.idle_kv_bytes)

    def facts(self) -> dict[str, Any]:
        options, model = self._engine.options, self._engine.model
        return {
            "engine": "chunk",
            "attention": options.attention,
            "kernel": self._engine.kernel,
            "max_batch": options.max_batch,
            "prompt_budget": options.prompt_budget,
            "chunk_size": options.chunk_size,
            **({"draft_tokens": options.draft_tokens} if options.draft_tokens else {}),
            "kv_bytes": self._engine.max_tokens * self._engine.token_bytes,
            **model.facts(),
            "kv_dtype": model.facts()["dtype"] if options.kv_dtype == "same" else options.kv_dtype,
            "kv_bytes_per_token": self._engine.token_bytes,
        }

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_in():
                report = self._engine.step()
                self._observer.step(time.perf_counter(), report, self.load())
                for failure in report.failed:
                    _LOGGER.error("request %s failed: %s", failure.request, failure, exc_info=failure.__cause__)
                if report.generated or report.failed:
                    self._deliveries.tell((*report.generated, *report.failed))
        except BaseException as error:  # a panic of a library in Rust is not an Exception
            _LOGGER.exception("the engine broke")
            self._deliveries.fail(BackendFailed(f"the engine broke: {type(error).__name__}: {error}"))

    def _take_in(self) -> bool:
        """Pass new and dropped requests to the engine, and wait while there is nothing to do. False if the thread
        should stop."""
        with self._changed:
            while not (self._closing or self._inbox or self._gone) and self._engine.idle:
                self._changed.wait()
            inbox, self._inbox = self._inbox, []
            gone, self._gone = self._gone, []
        for requests in inbox:
            self._engine.add(*requests)
        if gone:
            self._engine.drop(gone)
        return not self._closing
