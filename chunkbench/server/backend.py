"""Defines what the server needs from an engine, and runs our engine in a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chunkbench.server.engine import Engine, Generated, Request, RequestFailed, StepReport

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


class ChunkBackend:
    """Runs our engine in its own thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: list[Sequence[Request]] = []
        self._gone: list[str] = []
        self._changed = threading.Condition()
        """Guards the inbox, the list of dropped requests, and `_closing`."""
        self._closing = False
        self._failed: BackendFailed | None = None
        self._answers: dict[str, Deliver] = {}
        """Request id -> function that receives its tokens. Used only on the event loop."""
        self._thread = threading.Thread(target=self._run, name="engine")

    def start(self, observer: Observer) -> None:
        self._events = asyncio.get_running_loop()
        self._observer = observer
        self._thread.start()

    def check(self, request: Request, answers: int) -> None:
        self._engine.check(request, answers)

    def tokens(self) -> tuple[int, frozenset[int]]:
        return self._engine.model.vocabulary, frozenset(self._engine.model.eos_ids)

    def submit(self, requests: Sequence[Request], deliver: Deliver) -> None:
        if self._failed:
            raise self._failed
        self._answers |= dict.fromkeys([request.id for request in requests], deliver)
        with self._changed:
            self._inbox.append(requests)
            self._changed.notify()

    def drop(self, id: str) -> None:
        if self._answers.pop(id, None):
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
            "kv_bytes": self._engine.max_tokens * model.token_bytes,
            **model.facts(),
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
                    self._tell(self._deliver, (*report.generated, *report.failed))
        except BaseException as error:  # a panic of a library in Rust is not an Exception
            _LOGGER.exception("the engine broke")
            self._tell(self._fail, BackendFailed(f"the engine broke: {type(error).__name__}: {error}"))

    def _tell(self, function: Callable[[Any], None], what: Any) -> None:
        """Call a function on the event loop, unless the server has ended."""
        if not self._events.is_closed():
            self._events.call_soon_threadsafe(function, what)

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
