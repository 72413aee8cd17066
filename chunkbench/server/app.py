"""The web application: serves OpenAI's completions with an engine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from chunkbench.server.backend import Backend, BackendFailed, Load
from chunkbench.server.constrained import Constraint, ConstraintRefused, Grammars, Matcher, Method
from chunkbench.server.constrained.grammars import MISSING, MOST_COMPILED
from chunkbench.server.engine import Generated, Request, RequestFailed, RequestRefused, StepReport
from chunkbench.server.protocol import (
    ApiError,
    ChatBody,
    CompletionBody,
    RequestBody,
    StreamOptions,
    parse,
    usage,
)
from chunkbench.server.records import Log, Metrics
from chunkbench.server.text import CheckpointTokenizer, StopSearch, TextStream
from chunkbench.version import __version__

T = TypeVar("T")

DEFAULT_MAX_TOKENS = 16
"""Tokens of a completion if the client gives no number, as in OpenAI's API."""
SMALL_BODY = 32 << 10
"""Largest body, in bytes, that is read on the event loop. Reading takes about a millisecond."""


@dataclass(frozen=True)
class ServerOptions:
    """Settings of the server that the engine does not need."""

    model: str
    """The model's name in requests."""
    max_length: int
    """Maximum number of tokens of prompt and answer together."""
    max_waiting: int = 1024
    """New requests get status 429 while this number of requests wait in the queue."""
    constrained: Method = "mask"
    """Method by which answers follow a constraint: see `constrained.matchers`."""
    compiled: int = MOST_COMPILED
    """Number of compiled constraints that are kept for later requests."""

    @property
    def max_body(self) -> int:
        """Maximum bytes of a request's body: twice the size of the longest prompt as text or token ids."""
        return (1 << 20) + 32 * self.max_length


class Server:
    """A running server: its state, and a method for each route."""

    def __init__(
        self, backend: Backend, options: ServerOptions, text: CheckpointTokenizer, log: Log, ended: Callable[[], None]
    ) -> None:
        """`ended` is called when the engine breaks, and should end the process."""
        self.backend = backend
        self.options = options
        self._text = text
        self._log = log
        self._ended = ended
        self._metrics = Metrics(backend.load)
        self._numbers = itertools.count()
        self._created = int(time.time())
        self.failure: BackendFailed | None = None
        self._grammars: Grammars | None = None
        # One constraint is compiled at a time, because the growth of the heap is measured. Requests with other new
        # constraints wait; all other requests do not.
        self._compiling = asyncio.Lock()

    # Methods that the engine calls.

    def step(self, ended: float, report: StepReport, load: Load) -> None:
        """Record a step of the engine. The engine's thread calls this method."""
        self._log.step(ended, report, load)
        self._metrics.steps.observe(report.seconds)
        self._metrics.preemptions.inc(report.preempted)

    def failed(self, error: BackendFailed) -> None:
        """Record that the engine broke. Called on the event loop."""
        self.failure = error
        self._ended()

    # The routes.

    async def completions(self, http: HttpRequest) -> Response:
        """Answer /v1/completions."""
        received = time.perf_counter()
        body, ids = await self._read(http, self._completion)
        return await self._answer(http, body, ids, body.max_tokens or DEFAULT_MAX_TOKENS, _COMPLETION, received)

    def _completion(self, data: bytes) -> tuple[RequestBody, list[int]]:
        body = parse(CompletionBody, data)
        prompt = body.one_prompt()
        return body, self._text.encode(prompt) if isinstance(prompt, str) else prompt

    async def chat(self, http: HttpRequest) -> Response:
        """Answer /v1/chat/completions."""
        received = time.perf_counter()
        body, ids = await self._read(http, self._chat)
        limit = body.max_completion_tokens or body.max_tokens or max(1, self.options.max_length - len(ids))
        return await self._answer(http, body, ids, limit, _CHAT, received)

    def _chat(self, data: bytes) -> tuple[ChatBody, list[int]]:
        body = parse(ChatBody, data)
        return body, self._text.encode_chat([message.plain() for message in body.messages])

    async def models(self, http: HttpRequest) -> Response:
        """Answer /v1/models."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, http: HttpRequest) -> Response:
        """Answer /v1/models/{id}."""
        self._check_name(http.path_params["id"])
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        """The entry of the model, with the facts that identify this server in a measurement."""
        return {
            "id": self.options.model,
            "object": "model",
            "created": self._created,
            "owned_by": "chunkbench",
            "max_model_len": self.options.max_length,
            "server": {"chunkbench": __version__, **self.backend.facts(), "constrained": self.options.constrained},
        }

    def _check_name(self, model: str) -> None:
        if model != self.options.model:
            message = f"the model {model} does not exist; this server has {self.options.model}"
            raise ApiError(message, 404, "model", "model_not_found")

    async def health(self, http: HttpRequest) -> Response:
        """Answer /health: status 200 while the engine works."""
        if self.failure:
            raise ApiError(str(self.failure), 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, http: HttpRequest) -> Response:
        """Answer /metrics, for Prometheus."""
        return Response(self._metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _read(self, http: HttpRequest, read: Callable[[bytes], T]) -> T:
        """Read the body and return `read(body)`. Raises ApiError."""
        parts, size, most = [], 0, self.options.max_body
        async for part in http.stream():  # read to the end: a client that is still sending does not see the answer
            size += len(part)
            if size <= most:
                parts.append(part)
        if size > most:
            raise ApiError(f"the body has {size} bytes: this server takes at most {most}", 413, code="body_too_large")
        data = b"".join(parts)
        # A large body is read in a thread, so that other clients do not wait.
        return read(data) if size <= SMALL_BODY else await asyncio.to_thread(read, data)

    async def _answer(
        self, http: HttpRequest, body: RequestBody, ids: list[int], max_tokens: int, form: _Form, received: float
    ) -> Response:
        self._check_name(body.model)
        asked = body.constraint()
        began = time.perf_counter()
        matcher = None if asked is None else await self._matcher(http, *asked)
        compile_s = time.perf_counter() - began
        request = body.request(f"{form.prefix}-{next(self._numbers)}", ids, max_tokens, matcher)
        self._text.check(body.stop)
        if self.failure:
            raise ApiError(str(self.failure), 503)
        try:
            self.backend.check(request)
        except RequestRefused as error:
            raise ApiError(str(error), param=error.field) from None
        waiting = self.backend.load().waiting
        if waiting >= self.options.max_waiting:
            self._metrics.requests.labels("refused").inc()
            raise ApiError(f"{waiting} requests wait already; try again later", 429, code="queue_full")
        writer = _Writer(form, request.id, self.options.model, body.return_token_ids, int(time.time()))
        tokens = self._tokens(http, request, body.stop, received, matcher, compile_s)
        if body.stream:
            rewritten = matcher is not None and matcher.rewrites
            events = self._events(tokens, writer, len(ids), body.stream_options, rewritten)
            return StreamingResponse(events, media_type="text/event-stream")
        answered, pieces = list[Generated](), []
        async for token, piece in tokens:
            del answered[len(answered) - token.replaces :]
            answered.append(token)
            pieces.append(piece)
        if not answered or answered[-1].finish is None:
            return Response(status_code=499)  # the client has disconnected and will not read this
        text = "".join(pieces)
        return JSONResponse(writer.whole(answered, text, usage(len(ids), len(answered), answered[-1].cached_tokens)))

    async def _matcher(self, http: HttpRequest, field: str, constraint: Constraint) -> Matcher:
        """The matcher of a new answer that follows the constraint of a field. Raises ApiError, ClientDisconnect."""
        known = self._grammars.known(constraint) if self._grammars is not None else None
        if known is not None:
            return known
        async with self._compiling:
            if await http.is_disconnected():  # while other constraints were compiled
                raise ClientDisconnect
            return await asyncio.to_thread(self._compiled, field, constraint)

    def _compiled(self, field: str, constraint: Constraint) -> Matcher:
        """Compile a new constraint, one at a time, and return a matcher. The first call reads the tokenizer. Raises
        ApiError."""
        try:
            if self._grammars is None:
                vocabulary, ends = self.backend.tokens()
                options = self.options.constrained, self.options.compiled
                self._grammars = Grammars(self._text.tokenizer_json(), vocabulary, ends, *options)
            return self._grammars.matcher(constraint)
        except ModuleNotFoundError:
            raise ApiError(f"this server follows no constraints: {MISSING}", param=field) from None
        except ConstraintRefused as error:
            raise ApiError(f"the constraint cannot be followed: {error}", param=field) from None

    def _stream(self, matcher: Matcher | None) -> TextStream:
        """The text stream of an answer. A constrained answer is decoded without changes, because decoders may drop a
        first space."""
        if matcher is None or self._grammars is None:
            return self._text.stream()
        return TextStream(self._grammars.vocabulary.decode)

    async def _tokens(
        self,
        http: HttpRequest,
        request: Request,
        stops: Sequence[str],
        received: float,
        matcher: Matcher | None,
        compile_s: float,
    ) -> AsyncGenerator[tuple[Generated, str], None]:
        """The tokens of an answer, each with the text that can be sent with it. Ends early if the client disconnects.
        Raises ApiError if the engine breaks."""
        text, search = self._stream(matcher), StopSearch(stops)
        arrived: asyncio.Queue[Generated | RequestFailed | BackendFailed | None] = asyncio.Queue()
        disconnected = asyncio.create_task(_disconnected(http))
        disconnected.add_done_callback(lambda _: arrived.put_nowait(None))
        outcome, count, cached, first = "dropped", 0, None, None
        length, spans = 0, list[tuple[int, int]]()
        try:
            self.backend.submit(request, arrived.put_nowait)
            while True:
                token = await arrived.get()
                if isinstance(token, RequestFailed | BackendFailed):
                    raise token
                if token is None:
                    return
                count += 1 - token.replaces
                cached = token.cached_tokens
                first = first or time.perf_counter()
                last = token.finish is not None
                added = text.add(token.token, last, token.replaces)
                piece, stopped = search.add(added, last, count > request.min_tokens)
                if token.forced and piece:
                    spans.append((length, length + len(piece)))
                length += len(piece)
                if stopped:
                    self.backend.drop(request.id)
                    token = replace(token, finish="stop")
                if token.finish is not None:
                    outcome = "finished"
                yield token, piece
                if token.finish is not None:
                    return
        except (RequestFailed, BackendFailed) as error:
            outcome = "failed"
            status = 503 if isinstance(error, BackendFailed) else 400 if error.asked else 500
            raise ApiError(str(error), status) from None
        finally:
            disconnected.cancel()
            self.backend.drop(request.id)
            self._metrics.requests.labels(outcome).inc()
            self._metrics.prompt_tokens.inc(len(request.prompt))
            self._metrics.cached_tokens.inc(cached or 0)
            self._metrics.generated_tokens.inc(count)
            self._log.request(
                id=request.id,
                received=received,
                first=first,
                last=time.perf_counter(),
                outcome=outcome,
                prompt_tokens=len(request.prompt),
                cached_tokens=cached,
                generated=count,
                **({} if matcher is None else {"constrained": matcher.work.facts(compile_s, spans)}),
            )

    async def _events(
        self,
        tokens: AsyncGenerator[tuple[Generated, str], None],
        writer: _Writer,
        prompt: int,
        options: StreamOptions,
        rewritten: bool,
    ) -> AsyncIterator[str]:
        """Server-sent events of a stream. `rewritten`: token ids may change, so only the last event holds them."""
        count, cached, begun = 0, None, False
        answered: list[Generated] = []
        try:
            async with contextlib.aclosing(tokens):
                async for token, piece in tokens:
                    count += 1 - token.replaces
                    cached = token.cached_tokens
                    del answered[len(answered) - token.replaces :]
                    answered.append(token)
                    event = writer.event(answered, piece, not begun, with_ids=not rewritten or token.finish is not None)
                    begun = True
                    if not rewritten or token.finish is not None:
                        answered = []
                    yield _event(
                        event | {"usage": usage(prompt, count, cached)} if options.continuous_usage_stats else event
                    )
        except ApiError as error:  # the status has been sent already, so the error is an event
            yield _event(error.body())
            return
        if options.include_usage:
            yield _event({**writer.head(writer.form.event), "choices": [], "usage": usage(prompt, count, cached)})
        yield "data: [DONE]\n\n"


@dataclass(frozen=True)
class _Form:
    """The form in which a route sends its answers."""

    prefix: str
    """Prefix of the ids of answers."""
    object: str
    event: str
    """Value of `object` in an event of a stream."""
    text: Callable[[str], dict[str, Any]]
    """Makes the fields that hold the text of a whole answer."""
    piece: Callable[[str, bool], dict[str, Any]]
    """Makes the fields that hold the text of an event. The second argument says whether it is the first event."""


_COMPLETION = _Form(
    "cmpl", "text_completion", "text_completion", lambda text: {"text": text}, lambda text, first: {"text": text}
)
_CHAT = _Form(
    "chatcmpl",
    "chat.completion",
    "chat.completion.chunk",
    lambda text: {"message": {"role": "assistant", "content": text}},
    lambda text, first: {"delta": {"role": "assistant", "content": text} if first else {"content": text}},
)


@dataclass(frozen=True)
class _Writer:
    """Makes the JSON of one answer."""

    form: _Form
    id: str
    model: str
    return_token_ids: bool
    created: int

    def head(self, object: str) -> dict[str, Any]:
        return {"id": self.id, "object": object, "created": self.created, "model": self.model}

    def event(self, tokens: list[Generated], text: str, first: bool, with_ids: bool) -> dict[str, Any]:
        """An event of a stream. `with_ids`: whether the event holds the token ids."""
        return {**self.head(self.form.event), "choices": [self._choice(self.form.piece(text, first), tokens, with_ids)]}

    def whole(self, tokens: list[Generated], text: str, counts: dict[str, Any]) -> dict[str, Any]:
        """The JSON object of a whole answer."""
        choices = [self._choice(self.form.text(text), tokens)]
        return {**self.head(self.form.object), "choices": choices, "usage": counts}

    def _choice(self, text: dict[str, Any], tokens: list[Generated], with_ids: bool = True) -> dict[str, Any]:
        choice = {"index": 0, **text, "logprobs": None, "finish_reason": tokens[-1].finish}
        if self.return_token_ids:
            choice["token_ids"] = [token.token for token in tokens] if with_ids else []
        return choice


def application(server: Server) -> Starlette:
    """The application with all routes. The engine runs while the application runs."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        server.backend.start(server)
        try:
            yield
        finally:
            await asyncio.to_thread(server.backend.close)

    return Starlette(
        routes=[
            Route("/v1/completions", server.completions, methods=["POST"]),
            Route("/v1/chat/completions", server.chat, methods=["POST"]),
            Route("/v1/models", server.models),
            Route("/v1/models/{id:path}", server.model),
            Route("/health", server.health),
            Route("/metrics", server.metrics),
        ],
        exception_handlers={ApiError: _refuse, HTTPException: _no_route, ClientDisconnect: _gone, Exception: _broken},
        lifespan=lifespan,
    )


async def _refuse(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status)


async def _no_route(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{http.method} {http.url.path}: {error.detail}"
    return JSONResponse(ApiError(message, error.status_code).body(), status_code=error.status_code)


async def _gone(_: HttpRequest, error: Exception) -> Response:
    return Response(status_code=499)  # the client will not read this


async def _broken(_: HttpRequest, error: Exception) -> Response:
    """The response to an error of the server itself; uvicorn prints the traceback."""
    return JSONResponse(ApiError(f"{type(error).__name__}: {error}", 500).body(), status_code=500)


async def _disconnected(http: HttpRequest) -> None:
    """Wait until the client has disconnected."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _event(fields: dict[str, Any]) -> str:
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n"
