"""The web application: answers HTTP requests in OpenAI's protocol with an engine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from chunkbench.server.answers import CHAT, COMPLETION, Choice, Form, Writer, usage_of
from chunkbench.server.backend import Backend, BackendFailed, Load
from chunkbench.server.constrained import Constraint, ConstraintRefused, Grammars, Matcher, Method
from chunkbench.server.constrained.grammars import MISSING, MOST_COMPILED
from chunkbench.server.engine import Generated, RequestFailed, RequestRefused, StepReport
from chunkbench.server.protocol import (
    ApiError,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    RequestBody,
    StreamOptions,
    TokenizeBody,
    parse,
)
from chunkbench.server.records import Log, Metrics
from chunkbench.server.text import CheckpointTokenizer, StopSearch, TextStream
from chunkbench.version import __version__

T = TypeVar("T")

DEFAULT_MAX_TOKENS = 16
"""Maximum number of tokens of a completion if the client sends no `max_tokens`, as in OpenAI's API."""
ANYTHING: Any = {"allow_methods": ["*"], "allow_headers": ["*"]}
SMALL_BODY = 32 << 10
"""Maximum size, in bytes, of a body that is parsed on the event loop. Parsing takes up to about a millisecond. A
larger body is parsed in a thread, so that other clients do not wait."""


@dataclass(frozen=True)
class ServerOptions:
    """Settings of the web application."""

    model: str
    """Name of the model in clients' requests."""
    max_length: int
    """Maximum number of tokens of prompt and answer together."""
    max_waiting: int = 1024
    """Maximum number of requests in the queue. Further requests get status 429."""
    constrained: Method = "mask"
    """Method that makes answers follow a constraint; `constrained.matchers` has a class for each."""
    origins: tuple[str, ...] = ()
    """Web pages from these origins may send requests, such as http://localhost:3000; `*`: all."""
    compiled: int = MOST_COMPILED
    """Maximum number of compiled constraints that are kept for later requests."""

    @property
    def max_body(self) -> int:
        """Maximum size of a request's body in bytes: about twice the size of the longest prompt."""
        return (1 << 20) + 32 * self.max_length


class Server:
    """A running server: its state, and a method for each route."""

    def __init__(
        self, backend: Backend, options: ServerOptions, text: CheckpointTokenizer, log: Log, ended: Callable[[], None]
    ) -> None:
        """`ended` is called once if the engine breaks. It should end the process."""
        self.backend = backend
        self.options = options
        self._text = text
        self._log = log
        self._ended = ended
        self._metrics = Metrics(backend.load, backend.facts()["kv_bytes"], options.model)
        self._numbers = itertools.count()
        self._created = int(time.time())
        self.failure: BackendFailed | None = None
        self._grammars: Grammars | None = None
        # One constraint is compiled at a time, because the growth of the heap is measured. Requests with other new
        # constraints wait; all other requests do not.
        self._compiling = asyncio.Lock()

    # Methods that the engine calls.

    def step(self, ended: float, report: StepReport, load: Load) -> None:
        """Record a finished step of the engine. The engine's thread calls this method."""
        self._log.step(ended, report, load)
        self._metrics.steps.observe(report.seconds)
        self._metrics.preemptions.inc(report.preempted)
        self._metrics.drafted_tokens.inc(report.drafted)
        self._metrics.accepted_tokens.inc(report.accepted)

    def failed(self, error: BackendFailed) -> None:
        """Record that the engine broke. The event loop calls this method."""
        self.failure = error
        self._ended()

    # The routes.

    async def completions(self, http: HttpRequest) -> Response:
        """Answer /v1/completions."""
        received = time.perf_counter()
        body, prompts = await self._read(http, self._completion)
        return await self._answer(http, body, prompts, body.max_tokens or DEFAULT_MAX_TOKENS, COMPLETION, received)

    def _completion(self, data: bytes) -> tuple[RequestBody, list[list[int]]]:
        body = parse(CompletionBody, data)
        return body, [self._text.encode(one) if isinstance(one, str) else one for one in body.prompts()]

    async def chat(self, http: HttpRequest) -> Response:
        """Answer /v1/chat/completions."""
        received = time.perf_counter()
        body, ids = await self._read(http, self._chat)
        limit = body.max_completion_tokens or body.max_tokens or max(1, self.options.max_length - len(ids))
        return await self._answer(http, body, [ids], limit, CHAT, received)

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
        page, kind = self._metrics.page(http.headers.get("accept", ""))
        return Response(page, headers={"content-type": kind})

    async def version(self, http: HttpRequest) -> Response:
        """Answer /version."""
        return JSONResponse({"version": __version__})

    async def tokenize(self, http: HttpRequest) -> Response:
        """Answer /tokenize: the token ids of a text or of a chat."""
        return JSONResponse(await self._read(http, self._tokenized))

    def _tokenized(self, data: bytes) -> dict[str, Any]:
        body = parse(TokenizeBody, data)
        self._check_name(body.model or self.options.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError("give one of prompt and messages", param="prompt")
        if body.prompt is not None:
            ids = self._text.encode(body.prompt, body.add_special_tokens)
        else:
            ids = self._text.encode_chat([message.plain() for message in body.messages or ()])
        texts = [self._text.token_text(token) for token in ids] if body.return_token_strs else None
        return {"count": len(ids), "max_model_len": self.options.max_length, "tokens": ids, "token_strs": texts}

    async def detokenize(self, http: HttpRequest) -> Response:
        """Answer /detokenize: the text of token ids."""
        return JSONResponse(await self._read(http, self._detokenized))

    def _detokenized(self, data: bytes) -> dict[str, Any]:
        body = parse(DetokenizeBody, data)
        self._check_name(body.model or self.options.model)
        return {"prompt": self._text.decode(body.tokens)}

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
        self,
        http: HttpRequest,
        body: RequestBody,
        prompts: Sequence[list[int]],
        max_tokens: int,
        form: Form,
        received: float,
    ) -> Response:
        self._check_name(body.model)
        self._text.check(body.stop)
        body.beams()
        count, most = len(prompts) * body.n, self.options.max_waiting
        if count > max(most, body.n):
            message = f"{len(prompts)} prompts with n = {body.n} ask for {count} answers"
            raise ApiError(f"{message}: this server takes at most {most} (--max-waiting)", param="prompt")
        asked, told = body.constraint(), (body.logprobs_of_answer, body.logprobs_of_prompt) != (None, None)
        began = time.perf_counter()
        matchers = [None if asked is None else await self._matcher(http, *asked, told) for _ in range(count)]
        compile_s = time.perf_counter() - began
        id, choices = f"{form.prefix}-{next(self._numbers)}", list[Choice]()
        for matcher in matchers:
            prompt, answer = divmod(len(choices), body.n)
            own_id = id if count == 1 else f"{id}.{len(choices)}"
            request = body.request(own_id, prompts[prompt], max_tokens, matcher, answer)
            stream, search = self._stream(matcher), StopSearch(body.stop)
            echo = stream.begin(request.prompt) if body.echoes else None
            choices.append(Choice(len(choices), answer == 0, request, matcher, stream, search, echo))
        if self.failure:
            raise ApiError(str(self.failure), 503)
        groups = [choices[first : first + body.n] for first in range(0, count, body.n)]
        for number, (first, *_) in enumerate(groups):
            try:
                self.backend.check(first.request, body.n)
            except RequestRefused as error:
                where = f"prompt {number}: " if len(groups) > 1 else ""
                raise ApiError(f"{where}{error}", param=error.field) from None
        waiting = self.backend.load().waiting
        if waiting >= most:
            self._metrics.requests.labels("refused").inc()
            raise ApiError(f"{waiting} requests wait already; try again later", 429, code="queue_full")
        created = int(time.time())
        writer = Writer(form, id, self.options.model, body.return_token_ids, created, self._text.token_text)
        tokens = self._tokens(http, groups, received, compile_s)
        if body.stream:
            rewritten = any(matcher is not None and matcher.rewrites for matcher in matchers)
            events = self._events(tokens, writer, choices, body.stream_options, rewritten)
            return StreamingResponse(events, media_type="text/event-stream")
        async for choice, token, piece in tokens:
            choice.keep(token, piece)
        if not all(choice.finished for choice in choices):
            return Response(status_code=499)  # the client has disconnected and will not read this
        return JSONResponse(writer.whole(choices))

    async def _matcher(self, http: HttpRequest, field: str, constraint: Constraint, masks: bool = False) -> Matcher:
        """The matcher of a new answer that follows the constraint of a field; `masks`: with masks alone, because a
        token that no logits chose has no log-probability. Raises ApiError, ClientDisconnect."""
        known = self._grammars.known(constraint, masks) if self._grammars is not None else None
        if known is not None:
            return known
        async with self._compiling:
            if await http.is_disconnected():  # while other constraints were compiled
                raise ClientDisconnect
            return await asyncio.to_thread(self._compiled, field, constraint, masks)

    def _compiled(self, field: str, constraint: Constraint, masks: bool) -> Matcher:
        """Compile a new constraint, one at a time, and return a matcher. The first call reads the tokenizer. Raises
        ApiError."""
        try:
            if self._grammars is None:
                vocabulary, ends = self.backend.tokens()
                options = self.options.constrained, self.options.compiled
                self._grammars = Grammars(self._text.tokenizer_json(), vocabulary, ends, *options)
            return self._grammars.matcher(constraint, masks)
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
        self, http: HttpRequest, groups: Sequence[Sequence[Choice]], received: float, compile_s: float
    ) -> AsyncGenerator[tuple[Choice, Generated, str], None]:
        """The tokens of all answers of a request, each with the text that can be sent with it. Ends early if the client
        disconnects. Raises ApiError if the engine breaks. `groups`: the answers to each prompt."""
        arrived: asyncio.Queue[Generated | RequestFailed | BackendFailed | None] = asyncio.Queue()
        disconnected = asyncio.create_task(_disconnected(http))
        disconnected.add_done_callback(lambda _: arrived.put_nowait(None))
        choices = {choice.request.id: choice for group in groups for choice in group}
        outcome, left = "dropped", len(choices)
        try:
            for group in groups:
                self.backend.submit([choice.request for choice in group], arrived.put_nowait)
            while left:
                token = await arrived.get()
                if isinstance(token, RequestFailed | BackendFailed):
                    raise token
                if token is None:
                    return
                choice = choices[token.request]
                if choice.finished:  # by a stop string; the engine did not know it yet
                    continue
                now, before = time.perf_counter(), choice.last
                if before is None:
                    self._metrics.first_tokens.observe(now - received)
                else:
                    self._metrics.gaps.observe(now - before)
                token, piece = choice.take(token, now)
                if token.finish is not None:
                    left -= 1
                    self.backend.drop(token.request)
                yield choice, token, piece
        except (RequestFailed, BackendFailed) as error:
            outcome = "failed"
            status = 503 if isinstance(error, BackendFailed) else 400 if error.asked else 500
            raise ApiError(str(error), status) from None
        finally:
            disconnected.cancel()
            for choice in choices.values():
                self._record(choice, outcome, received, compile_s)

    def _record(self, choice: Choice, outcome: str, received: float, compile_s: float) -> None:
        """Count and log an answer that ended. `outcome`: how it ended if it is not complete."""
        request, outcome = choice.request, "finished" if choice.finished else outcome
        self.backend.drop(request.id)
        self._metrics.requests.labels(outcome).inc()
        if choice.finish is not None:
            self._metrics.answers.labels(choice.finish).inc()
            self._metrics.times.observe(time.perf_counter() - received)
        if choice.first_of_prompt:
            self._metrics.prompt_tokens.inc(len(request.prompt))
            self._metrics.cached_tokens.inc(choice.cached or 0)
        self._metrics.generated_tokens.inc(choice.count)
        self._log.request(
            id=request.id,
            received=received,
            first=choice.first,
            last=time.perf_counter(),
            outcome=outcome,
            prompt_tokens=len(request.prompt),
            cached_tokens=choice.cached,
            generated=choice.count,
            **({} if choice.matcher is None else {"constrained": choice.matcher.work.facts(compile_s, choice.spans)}),
        )

    async def _events(
        self,
        tokens: AsyncGenerator[tuple[Choice, Generated, str], None],
        writer: Writer,
        choices: Sequence[Choice],
        options: StreamOptions,
        rewritten: bool,
    ) -> AsyncIterator[str]:
        """Server-sent events of a stream. `rewritten`: token ids may change, so only an answer's last event holds
        them."""
        try:
            async with contextlib.aclosing(tokens):
                async for choice, token, piece in tokens:
                    text = choice.keep(token, piece)
                    with_ids = not rewritten or token.finish is not None
                    event = writer.event(choice, text, with_ids)
                    if with_ids:
                        choice.sent()
                    yield _event(event | {"usage": usage_of(choices)} if options.continuous_usage_stats else event)
        except ApiError as error:  # the status has been sent already, so the error is an event
            yield _event(error.body())
            return
        if options.include_usage:
            yield _event({**writer.head(writer.form.event), "choices": [], "usage": usage_of(choices)})
        yield "data: [DONE]\n\n"


def application(server: Server) -> Starlette:
    """Make the web application with all routes. The engine starts and stops with the application."""

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
            Route("/ping", server.health, methods=["GET", "POST"]),
            Route("/version", server.version),
            Route("/metrics", server.metrics),
            Route("/tokenize", server.tokenize, methods=["POST"]),
            Route("/detokenize", server.detokenize, methods=["POST"]),
        ],
        exception_handlers={ApiError: _refuse, HTTPException: _no_route, ClientDisconnect: _gone, Exception: _broken},
        lifespan=lifespan,
        middleware=[Middleware(CORSMiddleware, allow_origins=server.options.origins, **ANYTHING)],
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
