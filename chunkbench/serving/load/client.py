"""Send requests when they are due, and take the time of their tokens."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from chunkbench.serving.load.event_stream import EventStream
from chunkbench.serving.load.timing import at_due_times, punctual
from chunkbench.store.request_result import RequestResult, RequestStatus
from chunkbench.text_file import from_json
from chunkbench.traces import PlannedRequest

try:
    import aiohttp
    from yarl import URL
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the load needs aiohttp: pip install 'chunkbench[serving]'", name="aiohttp") from error

LEAD_S = 0.2
"""How long before its due time a request gets its connection. The first is due so long after the start."""
_FAILURES = (aiohttp.ClientError, OSError, ValueError, RecursionError, asyncio.IncompleteReadError)
_MOST_REDIRECTS = 5
M = TypeVar("M", bound=BaseModel)


class LoadError(RuntimeError):
    """The server cannot be measured; the message says why."""


@dataclass(frozen=True)
class Target:
    """A server and the model that it serves."""

    url: str
    """Up to and including /v1."""
    model: str
    max_length: int | None = None
    """Most tokens of prompt and answer together; None if the server does not say."""
    said: dict[str, Any] = field(default_factory=dict)
    """What /v1/models says of the model."""
    key: str = field(default="", repr=False)
    """Sent as bearer token; never printed or stored."""


class _Answer(BaseModel):
    """What is read of an answer; the rest is not looked at."""

    model_config = ConfigDict(strict=True)


class _Details(_Answer):
    cached_tokens: NonNegativeInt | None = None


class _Usage(_Answer):
    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None
    prompt_tokens_details: _Details | None = None


class _Choice(_Answer):
    text: str | None = None
    token_ids: list[int] | None = None


class _Chunk(_Answer):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


class _Model(_Answer):
    model_config = ConfigDict(extra="allow")

    id: str
    max_model_len: Any = None

    @property
    def length(self) -> int | None:
        """Most tokens of prompt and answer; None if the server does not say."""
        return self.max_model_len if type(self.max_model_len) is int and self.max_model_len > 0 else None


class _Models(_Answer):
    data: list[_Model]


@dataclass(frozen=True)
class LoadOptions:
    """How requests are sent."""

    clients: int | None = None
    """Closed loop: so many clients send their next request as soon as they have an answer. None: open loop, every
    request is sent when it is due."""
    timeout_s: float = 600.0
    """Longest time for one answer, its connection included."""
    ignore_eos: bool = True
    """Ask for answers of full length."""


@dataclass(frozen=True)
class Measured:
    """The requests of one measurement, and how the client fared."""

    started: float
    """When the measurement started, on the clock of `time.perf_counter`."""
    requests: tuple[RequestResult, ...]
    """In order of the plan."""
    client_cpu: float
    """Share of one CPU that the client took."""


async def describe_server(url: str, model: str | None = None, timeout_s: float = 10.0) -> Target:
    """Ask a server for its model. `url`: its address, with or without `http://`, `/v1` and what stands behind it. The
    key in `OPENAI_API_KEY`, if any, is sent with every request. Raises LoadError."""
    address = _base(url)
    base, shown = str(address), str(address.with_user(None))
    # An address with a name and a password has the place of a key.
    key = "" if address.user else os.environ.get("OPENAI_API_KEY", "").strip()
    if not key.isprintable():
        raise LoadError("OPENAI_API_KEY holds a line break or another control character")
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        asking = aiohttp.ClientSession(timeout=timeout, headers=_bearer(key))
        async with asking as session, session.get(f"{base}/models") as answer:
            text = await answer.text(errors="replace")
            if answer.status != 200:
                sent = "the key in OPENAI_API_KEY was sent" if key else "OPENAI_API_KEY holds no key to send"
                hint = f" ({sent})" if answer.status in (401, 403) else ""
                raise LoadError(f"{shown}/models answers with status {answer.status}: {_message(text)}{hint}")
    except (*_FAILURES, TimeoutError) as error:
        raise LoadError(f"{shown}: no server of OpenAI's protocol answers: {_said(error)}") from None
    try:
        models = _Models.model_validate(from_json(text)).data
    except ValueError as error:
        raise LoadError(f"{shown}: no server of OpenAI's protocol answers: its models: {_invalid(error)}") from None
    names = [entry.id for entry in models]
    if model is None and len(names) != 1:
        raise LoadError(f"{shown} serves {', '.join(names) or 'no model'}; name one")
    if model is not None and model not in names:
        raise LoadError(f"{shown} serves {', '.join(names) or 'no model'}, not {model}")
    found = next(entry for entry in models if model in (None, entry.id))
    return Target(base, found.id, found.length, found.model_dump(exclude_unset=True), key)


def _base(url: str) -> URL:
    """The address of a server up to and including /v1. Raises LoadError."""
    try:
        address = URL(url if "://" in url else f"http://{url}")
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError("http or https, and a host, are needed")
    except ValueError as error:
        raise LoadError(f"{url}: not the address of a server, such as http://127.0.0.1:8000: {error}") from None
    path = address.path.rstrip("/")
    for end in ("/models", "/completions", "/chat"):
        path = path.removesuffix(end)
    return address.with_path(path.removesuffix("/v1") + "/v1")


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def send(
    target: Target,
    plan: Sequence[PlannedRequest],
    options: LoadOptions,
    progress: Callable[[RequestResult], None] = lambda facts: None,
) -> Measured:
    """Send the requests of a plan and wait for all answers. `progress` receives each one when it has ended.

    Latency is to be counted from `due`, not from `sent`: a request that the client or the server holds up has waited.
    """
    bodies = [_body(target.model, request, options.ignore_eos) for request in plan]
    facts: list[RequestResult | None] = [None] * len(plan)
    # No limit on connections (the library's own is 100), no name to look up again, and a new connection for each
    # request: a server closes an idle one after some seconds, perhaps just when a request has taken it.
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=None, force_close=True)
    timeout = aiohttp.ClientTimeout(total=options.timeout_s)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        with punctual():
            cpu = time.process_time()
            started = time.perf_counter() + (LEAD_S if options.clients is None else 0)

            def now() -> float:
                return max(0.0, time.perf_counter() - started)

            async def one(number: int, due: float, sending: asyncio.Future[None] | None = None) -> None:
                def ended(request: RequestResult) -> None:
                    facts[number] = request
                    progress(request)

                await _ask(session, target, plan[number], bodies[number], due, now, ended, sending)

            async def client(numbers: Iterator[int]) -> None:
                for number in numbers:
                    async with turns.turn(number):
                        await one(number, now())

            turns = _Turns(plan)
            if options.clients is None:
                await _open_loop(plan, turns, started, one)
            else:
                left = iter(range(len(plan)))
                await _all([client(left) for _ in range(options.clients)])
    took = time.perf_counter() - started
    done = tuple(fact for fact in facts if fact is not None)
    return Measured(started, done, (time.process_time() - cpu) / max(took, 1e-9))


class _Turns:
    """Requests that wait for the end of others."""

    def __init__(self, plan: Sequence[PlannedRequest]) -> None:
        self._after = [request.after for request in plan]
        self._ended = {number: asyncio.Event() for number in self._after if number is not None}

    @asynccontextmanager
    async def turn(self, number: int) -> AsyncIterator[None]:
        """The time of a request, from the end of the one before it."""
        after = self._after[number]
        if after is not None:
            await self._ended[after].wait()
        try:
            yield
        finally:
            if number in self._ended:
                self._ended[number].set()


async def _open_loop(
    plan: Sequence[PlannedRequest], turns: _Turns, started: float, one: Callable[..., Coroutine[Any, Any, None]]
) -> None:
    """Send every request at its due time. Its connection is opened a little earlier."""
    loop = asyncio.get_running_loop()
    sendings = [loop.create_future() for _ in plan]
    fixed = [number for number, request in enumerate(plan) if request.after is None]

    def begin(number: int) -> None:
        if not sendings[number].done():  # a request without a connection has ended before it was due
            sendings[number].set_result(None)

    async def prepared(number: int) -> None:
        async with turns.turn(number):
            due = plan[number].due
            if plan[number].after is not None:
                loop.call_later(due, begin, number)
                due += time.perf_counter() - started
            await asyncio.sleep(started + due - LEAD_S - time.perf_counter())
            await one(number, due, sendings[number])

    dues = [started + plan[number].due for number in fixed]
    sending = at_due_times(dues, lambda place: begin(fixed[place]))
    await _all([*(prepared(number) for number in range(len(plan))), sending])


async def _all(parts: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all parts at once. If the client is interrupted, or one fails, the others end before the session does."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _body(model: str, request: PlannedRequest, ignore_eos: bool) -> bytes:
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(request.prompt),
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ignore_eos:
        body["ignore_eos"] = True
    return json.dumps(body).encode()


async def _ask(
    session: aiohttp.ClientSession,
    target: Target,
    request: PlannedRequest,
    body: bytes,
    due: float,
    now: Callable[[], float],
    ended: Callable[[RequestResult], None],
    sending: asyncio.Future[None] | None,
) -> None:
    """Send one request, read its stream, and tell `ended` what came. Without `sending` it is sent at once, else when
    that is done.

    `now`: seconds since the start. If it is cancelled after it was sent, `ended` hears that, too.
    """
    sent: float | None = None
    tokens = _Tokens()
    status: RequestStatus = "ok"
    reason = ""
    cut: asyncio.CancelledError | None = None

    async def payload() -> AsyncIterator[bytes]:
        nonlocal sent
        if sending is not None:
            await sending
        sent = now() if sent is None else sent
        yield body

    try:
        async with _post(session, target, payload, len(body)) as answer:
            if answer.status != 200:
                status = "refused" if 400 <= answer.status < 500 else "error"
                reason = f"status {answer.status}: {_message(await answer.text(errors='replace'))}"
                if "Location" in answer.headers:
                    reason = f"status {answer.status}: redirected to {answer.headers['Location']}; give that address"
            else:
                async for event in _events(answer):
                    tokens.add(event, now())
                    if event.get("error"):
                        status, reason = "error", _message(json.dumps(event))
    except TimeoutError:
        status, reason = "timeout", f"no whole answer within {session.timeout.total:g} s"
    except asyncio.CancelledError as error:
        status, reason, cut = "cancelled", "the client was interrupted", error
    except _FAILURES as error:
        status, reason = "error", _said(error)
    if status == "ok":
        reason = tokens.wrong(request)
        status = "wrong" if reason else "ok"
    if cut is None or sent is not None:
        ended(
            RequestResult(
                due=due,
                sent=sent,
                first=tokens.first,
                last=tokens.last,
                prompt_tokens=len(request.prompt),
                asked_tokens=request.max_tokens,
                tokens=tokens.count,
                cached_tokens=tokens.cached,
                status=status,
                reason=reason,
            )
        )
    if cut is not None:
        raise cut


@asynccontextmanager
async def _post(
    session: aiohttp.ClientSession, target: Target, payload: Callable[[], AsyncIterator[bytes]], length: int
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer to a request for a completion. Redirects that keep the method are followed; another host gets no
    key."""
    url = URL(f"{target.url}/completions")
    headers = {"Content-Length": str(length)}
    for redirects in range(_MOST_REDIRECTS + 1):
        key = _bearer(target.key) if url.origin() == URL(target.url).origin() else {}
        async with session.post(url, data=payload(), headers=headers | key, allow_redirects=False) as answer:
            if answer.status not in (307, 308) or "Location" not in answer.headers or redirects == _MOST_REDIRECTS:
                yield answer
                return
            url = url.join(URL(answer.headers["Location"]))


class _Tokens:
    """When the tokens of one answer came, and how many."""

    def __init__(self) -> None:
        self._times: dict[bool, tuple[float, float, int]] = {}
        """Of chunks with and without text: the first, the last, and their number."""
        self._usage = _Usage()

    def add(self, event: dict[str, Any], at: float) -> None:
        """An event of the stream. Raises ValueError."""
        chunk = _validated(_Chunk, event)
        self._usage = chunk.usage or self._usage
        if chunk.choices:
            text = any(choice.text or choice.token_ids for choice in chunk.choices)
            first, _, count = self._times.get(text, (at, at, 0))
            self._times[text] = first, at, count + 1

    @property
    def _told(self) -> tuple[float | None, float | None, int]:
        """A chunk without text is no token, except where no chunk has text: some servers have no tokenizer."""
        return self._times.get(True) or self._times.get(False) or (None, None, 0)

    @property
    def first(self) -> float | None:
        """When the first token came."""
        return self._told[0]

    @property
    def last(self) -> float | None:
        """When the last token came."""
        return self._told[1]

    @property
    def count(self) -> int:
        """Tokens of the answer: as the server counts, else chunks."""
        counted = self._usage.completion_tokens
        return self._told[2] if counted is None else counted

    @property
    def cached(self) -> int | None:
        """Prompt tokens that were not computed; None if the server does not say."""
        details = self._usage.prompt_tokens_details
        return details.cached_tokens if details else None

    def wrong(self, request: PlannedRequest) -> str:
        """Why the answer is not what was asked for; empty if it is."""
        if self.last is None or self.count == 0:
            return "the stream ended without a token"
        if self.count != request.max_tokens:
            return f"{self.count} tokens generated, {request.max_tokens} asked for"
        counted, prompt = self._usage.prompt_tokens, len(request.prompt)
        if counted is not None and counted != prompt:
            return f"the server counts {counted} prompt tokens, {prompt} were sent"
        if (self.cached or 0) > prompt:
            return f"the server counts {self.cached} cached tokens in a prompt of {prompt}"
        return ""


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON of server-sent events up to [DONE]. Raises ValueError."""
    stream = EventStream()
    async for piece in answer.content.iter_any():  # a wait for each piece instead of each line
        for data in stream.feed(piece):
            if data.strip() == "[DONE]":
                return
            if data.strip():
                event = json.loads(data)
                if not isinstance(event, dict):
                    raise ValueError(f"an event is no JSON object: {data[:80]}")
                yield event


def _message(text: str) -> str:
    """The message of an error in OpenAI's form, or the text as it is, shortened and in one line."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        text = str(json.loads(text)["error"]["message"])
    return _line(text)


def _said(error: BaseException) -> str:
    return _line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _line(text: str) -> str:
    """Text of a server as one line that can be printed."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split())[:300])


def _validated(model: type[M], value: Any) -> M:
    try:
        return model.model_validate(value)
    except ValueError as error:
        raise ValueError(_invalid(error)) from None


def _invalid(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return _line(str(error))
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the answer'}: {first['msg']}"
