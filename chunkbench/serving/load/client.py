"""Send requests when they are due, and take the time of their tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from chunkbench.serving.load.timing import at_due_times, punctual
from chunkbench.store.request_result import RequestResult, RequestStatus
from chunkbench.traces import PlannedRequest

try:
    import aiohttp
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the load needs aiohttp: pip install 'chunkbench[serving]'", name="aiohttp") from error

LEAD_S = 0.2
"""How long before its due time a request gets its connection. The first is due so long after the start."""
_FAILURES = (aiohttp.ClientError, OSError, ValueError, asyncio.IncompleteReadError)


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
    """Ask a server for its model. `url` with or without /v1. Raises LoadError."""
    base = url.rstrip("/").removesuffix("/v1") + "/v1"
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{base}/models") as answer:
            if answer.status != 200:
                raise LoadError(f"{base}/models answers with status {answer.status}")
            listed = (await answer.json(content_type=None))["data"]
    except (*_FAILURES, TimeoutError, KeyError, TypeError) as error:
        raise LoadError(f"{base}: no server of OpenAI's protocol answers: {_said(error)}") from None
    names = [entry["id"] for entry in listed]
    if model is None and len(names) != 1:
        raise LoadError(f"{base} serves {', '.join(names) or 'no model'}; name one")
    if model is not None and model not in names:
        raise LoadError(f"{base} serves {', '.join(names)}, not {model}")
    said = next(entry for entry in listed if model in (None, entry["id"]))
    length = said.get("max_model_len")
    return Target(base, said["id"], length if isinstance(length, int) else None, said)


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
                ended = await _ask(session, target, plan[number], bodies[number], due, now, sending)
                facts[number] = ended
                progress(ended)

            async def client(numbers: Iterator[int]) -> None:
                for number in numbers:
                    await one(number, now())

            if options.clients is None:
                await _open_loop([request.due for request in plan], started, one)
            else:
                left = iter(range(len(plan)))
                await asyncio.gather(*(client(left) for _ in range(options.clients)))
    took = time.perf_counter() - started
    done = tuple(fact for fact in facts if fact is not None)
    return Measured(started, done, (time.process_time() - cpu) / max(took, 1e-9))


async def _open_loop(dues: Sequence[float], started: float, one: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Send every request at its due time. Its connection is opened a little earlier."""
    events = asyncio.get_running_loop()
    sendings = [events.create_future() for _ in dues]
    tasks: list[asyncio.Task[None]] = []

    def prepare(number: int) -> None:
        tasks.append(events.create_task(one(number, dues[number], sendings[number])))

    for number, due in enumerate(dues):
        events.call_later(started + due - LEAD_S - time.perf_counter(), prepare, number)

    def begin(number: int) -> None:
        if not sendings[number].done():  # a request without a connection has ended before it was due
            sendings[number].set_result(None)

    await at_due_times([started + due for due in dues], begin)
    await asyncio.gather(*tasks)


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
    sending: asyncio.Future[None] | None,
) -> RequestResult:
    """Send one request and read its stream. Without `sending` it is sent at once, else when that is done.

    `now`: seconds since the start.
    """
    sent = first = last = None
    tokens = 0
    usage: dict[str, Any] = {}
    status: RequestStatus = "ok"
    reason = ""

    async def payload() -> AsyncIterator[bytes]:
        nonlocal sent
        if sending is not None:
            await sending
        sent = now()
        yield body

    length = {"Content-Length": str(len(body))}
    try:
        async with session.post(f"{target.url}/completions", data=payload(), headers=length) as answer:
            if answer.status != 200:
                status = "refused" if 400 <= answer.status < 500 else "error"
                reason = f"status {answer.status}: {_message(await answer.text())}"
            else:
                async for event in _events(answer):
                    if event.get("choices"):
                        last = now()
                        first = last if first is None else first
                        tokens += 1
                    if event.get("error"):
                        status, reason = "error", _message(json.dumps(event))
                    usage = event.get("usage") or usage
    except TimeoutError:
        status, reason = "timeout", f"no whole answer within {session.timeout.total:g} s"
    except _FAILURES as error:
        status, reason = "error", _said(error)
    if status == "ok":
        tokens = usage.get("completion_tokens", tokens)
        reason = _wrong(request, tokens, usage, last)
        status = "wrong" if reason else "ok"
    return RequestResult(
        due=due,
        sent=sent,
        first=first,
        last=last,
        prompt_tokens=len(request.prompt),
        asked_tokens=request.max_tokens,
        tokens=tokens,
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        status=status,
        reason=reason,
    )


def _wrong(request: PlannedRequest, tokens: int, usage: dict[str, Any], last: float | None) -> str:
    """Why an answer is not what was asked for; empty if it is."""
    if last is None or tokens == 0:
        return "the stream ended without a token"
    if tokens != request.max_tokens:
        return f"{tokens} tokens generated, {request.max_tokens} asked for"
    counted = usage.get("prompt_tokens")
    if counted is not None and counted != len(request.prompt):
        return f"the server counts {counted} prompt tokens, {len(request.prompt)} were sent"
    return ""


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON of server-sent events up to [DONE]."""
    rest = b""
    async for piece in answer.content.iter_any():  # a wait for each piece instead of each line
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if isinstance(event, dict):
                    yield event


def _message(text: str) -> str:
    """The message of an error in OpenAI's form, or the text as it is, shortened."""
    try:
        return str(json.loads(text)["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return text.strip()[:300]


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
