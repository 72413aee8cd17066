"""Sends requests at their due times, and records when their tokens come."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from chunkbench.limits import most_files
from chunkbench.pins import SERVING_INSTALL
from chunkbench.text_file import from_json
from chunkbench.traffic import Chat, PlannedRequest, Prompt
from chunkbench.traffic.load.answer import (
    Models,
    Tokens,
    at_most,
    events,
    explain,
    failure,
    message,
    one_line,
    text_of,
    whole,
)
from chunkbench.traffic.load.timing import at_due_times, punctual
from chunkbench.traffic.request_result import RequestResult, RequestStatus

try:
    import aiohttp
    from yarl import URL
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"the load needs aiohttp: {SERVING_INSTALL}", name="aiohttp") from error

LEAD_S = 0.2
"""A request opens its connection this number of seconds before its due time. The first request is due this long
after the start."""
_FAILURES = (aiohttp.ClientError, OSError, ValueError, RecursionError, asyncio.IncompleteReadError)
_MOST_REDIRECTS = 5
_ANSWER_BYTES, _TOKEN_BYTES = 1 << 20, 1 << 12
"""Maximum size of an answer in bytes: a fixed part, and a part for each token of the request. Servers send much
less. An endless answer would use up the memory and delay other requests."""
_CLIENT_LIMITS = {
    errno.EMFILE: "it may not open more files, and each connection is one: raise the hard limit (ulimit -Hn)",
    errno.ENFILE: "the system may not open more files: raise fs.file-max",
    errno.EADDRNOTAVAIL: "it has no free port for another connection: widen net.ipv4.ip_local_port_range",
}
"""Error number when a connection is opened -> which limit of this machine was reached, and how to raise it."""


class LoadError(RuntimeError):
    """The server cannot be measured; the message says why."""


@dataclass(frozen=True)
class ServerTarget:
    """A server and the model that it serves."""

    url: str
    """Address of the server, up to and including /v1."""
    model: str
    max_length: int | None = None
    """Maximum number of tokens of prompt and answer together; None if the server does not say."""
    said: dict[str, Any] = field(default_factory=dict)
    """The model's entry in the answer of /v1/models."""
    key: str = field(default="", repr=False)
    """The key for the header Authorization. It is never printed or stored."""


@dataclass(frozen=True)
class LoadOptions:
    """How requests are sent."""

    clients: int | None = None
    """Number of clients of a closed loop. A client sends its next request when it has the answer to its last one. It
    finishes a conversation, with its pauses, before it begins another conversation. None: an open loop, in which every
    request is sent when it is due."""
    timeout_s: float = 600.0
    """Maximum time for a request, in seconds, including the connection."""
    ignore_eos: bool = True
    """Whether to send `ignore_eos`, which asks for answers of full length."""
    token_ids: bool = False
    """Whether to ask for the token ids of answers. Some servers do not know this field."""
    gaps: bool = False
    """Whether results contain the gaps between tokens."""


@dataclass(frozen=True)
class LoadResult:
    """The results of a measurement, and the CPU time of the client."""

    started: float
    """Start of the measurement, in seconds of `time.perf_counter`."""
    requests: tuple[RequestResult, ...]
    """One result for each planned request, in order of the plan."""
    client_cpu: float
    """CPU time of the client divided by the time of the measurement. 1 is one full CPU."""


async def describe_server(url: str, model: str | None = None, timeout_s: float = 10.0) -> ServerTarget:
    """Ask a server for its model. `url`: the server's address, with or without `http://`, `/v1` and a route such as
    `/models` after it. The key in `OPENAI_API_KEY`, if any, is sent with every request. Raises LoadError."""
    address = _base(url)
    base, shown = str(address), str(address.with_user(None))
    # A name and a password in the address take the place of the key.
    key = "" if address.user else os.environ.get("OPENAI_API_KEY", "").strip()
    if not key.isprintable():
        raise LoadError("OPENAI_API_KEY holds a line break or another control character")
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        asking = aiohttp.ClientSession(timeout=timeout, headers=_bearer(key))
        async with asking as session, session.get(f"{base}/models") as answer:
            text = await text_of(answer)
            if answer.status != 200:
                sent = "the key in OPENAI_API_KEY was sent" if key else "OPENAI_API_KEY holds no key to send"
                hint = f" ({sent})" if answer.status in (401, 403) else ""
                raise LoadError(f"{shown}/models answers with status {answer.status}: {message(text)}{hint}")
    except (*_FAILURES, TimeoutError) as error:
        _check_client(error)
        if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
            place, reason = f"{error.host}:{error.port}", error.strerror or error.os_error
            if (error.host, error.port) != (address.host, address.port):
                raise LoadError(f"{shown} redirects to {place}, where nothing answers ({reason})") from None
            raise LoadError(
                f"nothing answers at {place} ({reason}); start a server there (chunkbench serve MODEL), or give "
                "another address"
            ) from None
        raise LoadError(f"{shown}: no server of OpenAI's protocol answers: {explain(error)}") from None
    try:
        models = Models.model_validate(from_json(text)).data
    except ValueError as error:
        raise LoadError(f"{shown}: no server of OpenAI's protocol answers: its models: {explain(error)}") from None
    names = dict.fromkeys(entry.id for entry in models)  # a proxy names a model once for each server behind it
    served = ", ".join(map(one_line, names)) or "no model"
    if model is None and len(names) != 1:
        raise LoadError(f"{shown} serves {served}; name one")
    if model is not None and model not in names:
        raise LoadError(f"{shown} serves {served}, not {model}")
    found = next(entry for entry in models if model in (None, entry.id))
    length = found.max_model_len if type(found.max_model_len) is int and found.max_model_len > 0 else None
    return ServerTarget(base, found.id, length, found.model_dump(exclude_unset=True), key)


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


def _check_client(error: BaseException) -> None:
    """Raise LoadError if the error means that this machine could not open a connection, which is not the server's
    fault."""
    limit = _CLIENT_LIMITS.get(error.errno or 0) if isinstance(error, OSError) else None
    if limit is not None:
        raise LoadError(f"the client is at its limit, not the server: {limit}, or use fewer clients or a lower rate")


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def send(
    target: ServerTarget,
    plan: Sequence[PlannedRequest],
    options: LoadOptions,
    progress: Callable[[int, RequestResult, Prompt, Tokens], None] = lambda *ended: None,
) -> LoadResult:
    """Send the requests of a plan and wait for all answers. Raises LoadError if this machine cannot open connections.

    `progress` receives each request when it has ended: its index in the plan, its result, the prompt that was sent, and
    the tokens of the answer.

    Count latency from `due`, not from `sent`, because a request waits from its due time on, also if the client is late.
    """
    bodies = [_body(target.model, request, options) for request in plan]
    chats: dict[int, tuple[Chat, str]] = {}
    """Number of a request -> all its messages, and its answer."""
    facts: list[RequestResult | None] = [None] * len(plan)
    # No limit on connections (the library's own is 100), no name to look up again, and a new connection for each
    # request: a server closes an idle one after some seconds, perhaps just when a request has taken it.
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=None, force_close=True)
    timeout = aiohttp.ClientTimeout(total=options.timeout_s)
    # A server that packs its answers may hold tokens back.
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        with punctual(), most_files():
            cpu = time.process_time()
            started = time.perf_counter() + (LEAD_S if options.clients is None else 0)

            def now() -> float:
                return max(0.0, time.perf_counter() - started)

            async def send_one(number: int, due: float, sending: asyncio.Future[None] | None = None) -> None:
                request, body = plan[number], bodies[number]

                def ended(result: RequestResult, tokens: Tokens) -> None:
                    facts[number] = result
                    if isinstance(request.prompt, Chat) and result.status == "ok":
                        chats[number] = request.prompt, tokens.text
                    progress(number, result, request.prompt, tokens)

                if isinstance(request.prompt, Chat) and request.after is not None:
                    if request.after not in chats:
                        ended(
                            RequestResult(
                                due=due,
                                prompt_tokens=None,
                                asked_tokens=request.max_tokens,
                                status="error",
                                reason="not sent: the turn before it was not answered",
                            ),
                            Tokens(),
                        )
                        return
                    request = replace(request, prompt=request.prompt.after(*chats[request.after]))
                    body = _body(target.model, request, options)
                await _ask(session, target, request, body, due, now, ended, sending, options.gaps)

            async def client(conversations: Iterator[list[int]]) -> None:
                for first, *later in conversations:
                    await send_one(first, now())
                    for number in later:
                        await asyncio.sleep(plan[number].due)
                        await send_one(number, now())

            if options.clients is None:
                await _open_loop(plan, started, send_one)
            else:
                left = iter(_conversations(plan))
                await _all([client(left) for _ in range(options.clients)])
    took = time.perf_counter() - started
    done = tuple(fact for fact in facts if fact is not None)
    return LoadResult(started, done, (time.process_time() - cpu) / max(took, 1e-9))


def _conversations(plan: Sequence[PlannedRequest]) -> list[list[int]]:
    """Indices of requests, grouped by conversation. A group is a request that waits for no other, and then the requests
    that wait for it."""
    groups: dict[int, list[int]] = {}
    for number, request in enumerate(plan):
        groups[number] = [] if request.after is None else groups[request.after]
        groups[number].append(number)
    return [numbers for first, numbers in groups.items() if numbers[0] == first]


class _Turns:
    """Makes requests wait for the end of the requests before them."""

    def __init__(self, plan: Sequence[PlannedRequest]) -> None:
        self._after = [request.after for request in plan]
        self._ended = {number: asyncio.Event() for number in self._after if number is not None}

    @asynccontextmanager
    async def turn(self, number: int) -> AsyncIterator[None]:
        """A context that begins when the request before this one has ended. Its end lets the next request begin."""
        after = self._after[number]
        if after is not None:
            await self._ended[after].wait()
        try:
            yield
        finally:
            if number in self._ended:
                self._ended[number].set()


async def _open_loop(
    plan: Sequence[PlannedRequest], started: float, send_one: Callable[..., Coroutine[Any, Any, None]]
) -> None:
    """Send every request at its due time. Connections are opened a little earlier."""
    turns = _Turns(plan)
    loop = asyncio.get_running_loop()
    sendings = [loop.create_future() for _ in plan]
    fixed = [number for number, request in enumerate(plan) if request.after is None]

    def begin(number: int) -> None:
        if not sendings[number].done():  # a request that got no connection has ended before it was due
            sendings[number].set_result(None)

    async def prepared(number: int) -> None:
        async with turns.turn(number):
            due = plan[number].due
            if plan[number].after is not None:
                loop.call_later(due, begin, number)
                due += time.perf_counter() - started
            await asyncio.sleep(started + due - LEAD_S - time.perf_counter())
            await send_one(number, due, sendings[number])

    dues = [started + plan[number].due for number in fixed]
    sending = at_due_times(dues, lambda place: begin(fixed[place]))
    await _all([*(prepared(number) for number in range(len(plan))), sending])


async def _all(parts: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all parts at the same time. If the client is interrupted or a part fails, cancel the others and wait for
    their end."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _body(model: str, request: PlannedRequest, options: LoadOptions) -> bytes:
    prompt = request.prompt
    body: dict[str, Any] = {
        "model": model,
        **({"messages": prompt.sent} if isinstance(prompt, Chat) else {"prompt": prompt}),
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.ignore_eos and request.exact:
        body["ignore_eos"] = True
    if request.regex:
        body["structured_outputs"] = {"regex": request.regex}
    if request.answers > 1:
        body |= {"n": request.answers} | ({} if request.beams else {"temperature": 1})
    if request.beams:  # a search knows its answers only at the end
        del body["stream_options"]
        body |= {"use_beam_search": True, "stream": False}
    if options.token_ids:
        body["return_token_ids"] = True
    return json.dumps(body).encode()


async def _ask(
    session: aiohttp.ClientSession,
    target: ServerTarget,
    request: PlannedRequest,
    body: bytes,
    due: float,
    now: Callable[[], float],
    ended: Callable[[RequestResult, Tokens], None],
    sending: asyncio.Future[None] | None,
    gaps: bool,
) -> None:
    """Send one request, read its stream, and pass the result to `ended`. The request is sent when the future `sending`
    is done, or at once without one. `gaps`: see `LoadOptions`.

    `now()` gives the seconds since the start. `ended` also gets the result of a request that was cancelled after it was
    sent.
    """
    sent: float | None = None
    tokens = Tokens(request.answers)
    status: RequestStatus = "ok"
    reason = ""
    cut: asyncio.CancelledError | None = None
    route = URL(f"{target.url}/{'chat/' if isinstance(request.prompt, Chat) else ''}completions")

    async def payload() -> AsyncIterator[bytes]:
        nonlocal sent
        if sending is not None:
            await sending
        sent = now() if sent is None else sent
        yield body

    try:
        async with _post(session, route, target.key, payload, len(body)) as answer:
            if answer.status != 200:
                status = "refused" if 400 <= answer.status < 500 else "error"
                reason = f"status {answer.status}: {message(await text_of(answer)) or one_line(answer.reason or '')}"
                if 300 <= answer.status < 400 and "Location" in answer.headers:
                    place = one_line(answer.headers["Location"])
                    reason = f"status {answer.status}: redirected to {place}; give that address"
            else:
                most = _ANSWER_BYTES + _TOKEN_BYTES * request.asked_tokens
                # Wait once for each piece, not for each line.
                pieces = at_most(most, answer.content.iter_any())
                async for event in whole(pieces) if request.beams else events(pieces):
                    tokens.add(event, now())
                    if failed := failure(event):
                        status, reason = "error", failed
    except TimeoutError:
        status, reason = "timeout", f"no whole answer within {session.timeout.total:g} s"
    except asyncio.CancelledError as error:
        status, reason, cut = "cancelled", "the client was interrupted", error
    except _FAILURES as error:
        _check_client(error)
        status, reason = "error", explain(error)
    if status == "ok" and (reason := tokens.unfinished):
        status = "error"
    elif status == "ok":
        reason = tokens.wrong(request)
        status = "wrong" if reason else "ok"
    if cut is None or sent is not None:
        ended(
            RequestResult(
                due=due,
                sent=sent,
                first=None if request.beams else tokens.first,
                last=tokens.last,
                prompt_tokens=len(request.prompt) if isinstance(request.prompt, tuple) else tokens.prompt,
                asked_tokens=request.asked_tokens,
                answers=request.answers,
                tokens=tokens.count,
                cached_tokens=tokens.cached,
                gaps=tuple(tokens.gaps) if gaps else (),
                status=status,
                reason=reason,
            ),
            tokens,
        )
    if cut is not None:
        raise cut


@asynccontextmanager
async def _post(
    session: aiohttp.ClientSession, route: URL, key: str, payload: Callable[[], AsyncIterator[bytes]], length: int
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer to a request. Follows redirects that keep the method, and sends the key only to the first host."""
    url = route
    headers = {"Content-Length": str(length)}
    for redirects in range(_MOST_REDIRECTS + 1):
        bearer = _bearer(key) if url.origin() == route.origin() else {}
        async with session.post(url, data=payload(), headers=headers | bearer, allow_redirects=False) as answer:
            if answer.status not in (307, 308) or "Location" not in answer.headers or redirects == _MOST_REDIRECTS:
                yield answer
                return
            url = url.join(URL(answer.headers["Location"]))
