"""`chunkbench load` against a server that lies: what a lie does to its request, and to the others."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from tests.command import Done
from tests.torture.fuzz import check_json, check_text, command, damage_bytes, damage_json, dumped
from tests.torture.trials import Harm, Trial, Unavailable

TOKENS = 3
MODELS = b'{"data": [{"id": "m", "max_model_len": 99}]}'
TIMEOUT_S = 4.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"
Pieces = Iterator[bytes | float]
"""What is written, piece by piece; a number is a wait in seconds."""


def event(**fields: object) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def stream(
    prompt: int, tokens: int = TOKENS, told: object = None, end: bytes = DONE, finish: str | None = "length"
) -> bytes:
    """The events of a whole answer."""
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens if told is None else told}
    usage["prompt_tokens_details"] = {"cached_tokens": 1}
    choices = [{"index": 0, "text": f"t{number} ", "finish_reason": None} for number in range(tokens)]
    if choices:
        choices[-1]["finish_reason"] = finish
    texts = b"".join(event(choices=[choice]) for choice in choices)
    return texts + event(choices=[], usage=usage) + end


def head(status: str = "200 OK", *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *lines, "", ""]).encode("latin-1")


def honest(prompt: int, chance: random.Random) -> Pieces:
    """The same answer as ever, cut and joined as a network and a server may."""
    body = chance.choice((stream(prompt), b"\xef\xbb\xbf" + stream(prompt).replace(b"\n", b"\r\n")))
    body = chance.choice((body, b": a comment\n\nevent: message\nid: 1\n" + body))
    size = chance.choice((1, 7, 100, len(body)))
    yield chance.choice((HEAD, head("200 OK", "Content-Type: text/event-stream; charset=x-unknown")))
    for begin in range(0, len(body), size):
        yield body[begin : begin + size]
        if chance.random() < 0.1:
            yield 0.001


def cut(prompt: int, chance: random.Random) -> Pieces:
    """The connection ends within the answer."""
    body = stream(prompt, end=b"")
    last = body.rindex(b"data: ")
    size = len(body) + 20
    yield head("200 OK", "Content-Type: text/event-stream", f"Content-Length: {size}")
    yield body[: chance.randrange(last)]


def ends(prompt: int, chance: random.Random) -> Pieces:
    """A stream that just ends, or whose server breaks the answer off, maybe behind all tokens."""
    finish = chance.choice((None, None, "", "abort", "error", "content_filter"))
    body = stream(prompt, chance.randint(1, TOKENS), end=chance.choice((b"", DONE)), finish=finish)
    usage = body.index(b'data: {"choices": []')
    yield HEAD + (body if chance.random() < 0.5 else body[:usage])


def wrong_counts(prompt: int, chance: random.Random) -> Pieces:
    """Other numbers of tokens than were asked for, or none that is a number."""
    counts = (0, TOKENS - 1, TOKENS + 1, -1, 10**30, 1.5, "3", True, [3])
    body = stream(prompt, told=chance.choice(counts))
    yield HEAD + chance.choice((body, stream(prompt + 1), stream(10**400), stream(prompt, 0), stream(prompt, 1)))


def other_answers(prompt: int, chance: random.Random) -> Pieces:
    """Answers that nobody asked for: one more, or in place of the one that was."""
    index = chance.choice((1, 2, 7, 2**31, 2**63, -1, "0", None))
    more = event(choices=[{"index": index, "text": "x", "finish_reason": "length"}])
    body = stream(prompt)
    if chance.random() < 0.5 and index is not None:
        body = body.replace(b'"index": 0', f'"index": {json.dumps(index)}'.encode())
    else:
        body = more + body
    yield HEAD + body


def statuses(prompt: int, chance: random.Random) -> Pieces:
    """An error, whose text nobody can read."""
    kind = chance.choice(("text/plain", "text/plain; charset=x-unknown", "a; charset=hex", "a; charset=idna", ""))
    status = chance.choice(("500 Oops", "503 \x1b[31mred", "404 Not Found", "429 Slow down", "204 No Content", "599 "))
    body = chance.choice((b"\xff\xfe\x1b[31m", b'{"error": {"message": "\x1b[31m"}}', b"[" * 100_000, b"", b"\0" * 99))
    yield head(status, *([f"Content-Type: {kind}"] if kind else ()), f"Content-Length: {len(body)}") + body


def redirects(prompt: int, chance: random.Random) -> Pieces:
    """To nowhere, in a circle, or to what is no address."""
    places = ["/v1/completions", "http://127.0.0.1:9/", "ftp://x/", "\x1b[31m", "//", "http://[::", "\xe9\xff"]
    places += ["http://a b"]
    yield head(chance.choice(("301 A", "302 B", "307 C", "308 D", "300 E")), f"Location: {chance.choice(places)}")


def endless(prompt: int, chance: random.Random) -> Pieces:
    """An answer, an event, headers or an error without an end."""
    start, piece = chance.choice(
        (
            (HEAD, event(choices=[{"index": 0, "text": "x" * 1000}])),
            (HEAD, b"data: " + b"x" * 50_000),
            (HEAD, b"data:\n" * 10_000),
            (HEAD, b": still here\n\n"),
            (b"HTTP/1.1 200 OK\r\n", b"X-Header: " + b"x" * 1000 + b"\r\n"),
            (b"HTTP/1.1 200 OK\r\nX-Header: ", b"x" * 10_000),
            (head("500 Oops"), b"x" * 50_000),
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        )
    )
    yield start
    while True:
        yield piece * 20


def packed(prompt: int, chance: random.Random) -> Pieces:
    """A small answer that unpacks to a large one, or does not unpack."""
    body = chance.choice((bomb(b"\n"), bomb(b"x"), b"no gzip", b""))
    yield head(chance.choice(("200 OK", "500 Oops")), "Content-Encoding: gzip", f"Content-Length: {len(body)}") + body


@cache
def bomb(byte: bytes) -> bytes:
    """200 MB of a byte, packed."""
    packer, piece = zlib.compressobj(level=1, wbits=31), byte * 1_000_000
    return b"".join([*(packer.compress(piece) for _ in range(200)), packer.flush()])


def garbage(prompt: int, chance: random.Random) -> Pieces:
    """What is no HTTP, no event, or no JSON."""
    bodies = [
        *(b"\xff" * 99, b"data: {\n\n", b"data: [1]\n\n", b"data: " + b"[" * 100_000 + b"\n\n", b"<html>", b""),
        *(b'data: {"choices": [{"text": 5}]}\n\n', b'data: {"choices": {}}\n\n', b"data: NaN\n\n"),
        *(b'data: {"error": {"message": "\x1b[31m"}}\n\n', b"data: " + b"9" * 9999 + b"\n\n"),
    ]
    heads = [
        *(b"\x16\x03\x01\x02", b"SSH-2.0-x\r\n", b"HTTP/9.9 abc\r\n\r\n", b"\0" * 9),
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n:\r\n\r\n",
    ]
    yield chance.choice(heads) if chance.random() < 0.4 else HEAD + chance.choice(bodies)


def silent(prompt: int, chance: random.Random) -> Pieces:
    """Nothing more for a long time."""
    yield chance.choice((b"", b"HTTP/1.1 200", HEAD, HEAD + event(choices=[{"index": 0, "text": "x"}])))
    yield 2 * TIMEOUT_S


def mutated(prompt: int, chance: random.Random) -> Pieces:
    """An honest answer with some other bytes: the only lie that may end well."""
    yield damage_bytes(HEAD + stream(prompt), chance)


def odd_page(prompt: int, chance: random.Random) -> Pieces:
    """What /v1/models says, with other values or bytes."""
    said = json.loads(MODELS)
    damage_json(said, chance)
    page = dumped(said).encode() if chance.random() < 0.8 else damage_bytes(MODELS, chance)
    yield head("200 OK", "Content-Type: application/json", f"Content-Length: {len(page)}") + page


def honest_page(prompt: int, chance: random.Random) -> Pieces:
    yield head("200 OK", "Content-Type: application/json", f"Content-Length: {len(MODELS)}") + MODELS


Lie = Callable[[int, random.Random], Pieces]
LIES: list[Lie] = [
    cut,
    ends,
    wrong_counts,
    other_answers,
    statuses,
    redirects,
    endless,
    packed,
    garbage,
    silent,
    mutated,
]
PAGE_LIES = (statuses, redirects, endless, packed, garbage, mutated, odd_page, odd_page, odd_page)
"""What /v1/models and /metrics answer."""


class Liar:
    """A server in a thread of its own. The first token id of a prompt says what it answers."""

    def __init__(self) -> None:
        self.seed, self.plan = 0, list[Lie]()
        self.about_itself: Lie = honest_page
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        begun = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._answer, sock=self._socket), self._loop)
        self._server = begun.result()

    def close(self) -> None:
        """End the answers that are still written, and the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for piece in await self._lie(reader):
                if isinstance(piece, float):
                    await asyncio.sleep(piece)
                else:
                    writer.write(piece)
                    await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _lie(self, reader: asyncio.StreamReader) -> Pieces:
        asked = await reader.readuntil(b"\r\n\r\n")
        if not asked.startswith(b"POST"):
            return self.about_itself(1, random.Random(f"{self.seed} {asked.split()[1].decode()}"))
        size = next(int(line[15:]) for line in asked.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        prompt: list[int] = json.loads(await reader.readexactly(size))["prompt"]
        return self.plan[prompt[0]](len(prompt), random.Random(f"{self.seed} {prompt[0]}"))


@contextmanager
def lied_to() -> Iterator[Harm]:
    """Each trial sends twelve requests, about half of which are answered with a lie."""
    try:
        import aiohttp  # noqa: F401
    except ModuleNotFoundError:
        raise Unavailable("aiohttp is missing: make .venv/.ready-serving") from None
    for byte in (b"\n", b"x"):
        bomb(byte)  # not while others wait for the server
    liar = Liar()
    try:
        yield lambda trial: sent(liar, trial)
    finally:
        liar.close()


def load(liar: Liar, trial: Trial, lines: list[dict[str, Any]], *options: str) -> Done:
    """Send these requests. The results are in `out.jsonl`."""
    trace, out = trial.folder / "trace.jsonl", trial.folder / "out.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--trace", str(trace), "--out", str(out), "--warm-up", "0", "--timeout", str(TIMEOUT_S), *options)
    return command("load", liar.url, *options)


def sent(liar: Liar, trial: Trial) -> int:
    """Send requests, and check what became of each; or ask a server that lies about itself."""
    chance, count = trial.chance, 12
    liar.seed, liar.about_itself = trial.number, honest_page
    if chance.random() < 0.2:
        return lied_to_about_itself(liar, trial)
    liar.plan = [honest if chance.random() < 0.5 else chance.choice(LIES) for _ in range(count)]
    lengths = chance.sample(range(2, 60), count)  # so many tokens has one prompt alone
    lines = [{"prompt": [n, *range(lengths[n] - 1)], "max_tokens": TOKENS, "due": n / 50} for n in range(count)]
    form = chance.choice(("json", "table"))
    clients = ("--clients", "4") if chance.random() < 0.3 else ()
    ended = load(liar, trial, lines, "--format", form, *clients)
    (check_json if form == "json" else check_text)(ended.stdout, "what load prints")
    results = [json.loads(line) for line in (trial.folder / "out.jsonl").read_text().splitlines()]
    assert len(results) == count, f"{len(results)} of {count} requests ended"
    check_results(liar, results, lengths)
    failed = sum(result["status"] != "ok" for result in results)
    assert ended.code == (3 if failed else 0), f"exit code {ended.code} with {failed} failures: {ended.stderr}"
    if form == "json" and failed < count:
        numbers = json.loads(ended.stdout)
        assert (numbers["answered"], numbers["failed"]) == (count - failed, failed), f"counted wrong: {ended.stdout}"
    return count


def lied_to_about_itself(liar: Liar, trial: Trial) -> int:
    """A request to a server whose pages lie: it is answered, or the command says why it cannot ask."""
    liar.plan, liar.about_itself = [honest], trial.chance.choice(PAGE_LIES)
    ended = load(liar, trial, [{"prompt": [0, 1], "max_tokens": TOKENS, "due": 0}])
    check_text(ended.stdout, "what load prints")
    assert ended.code in (0, 2), f"exit code {ended.code}: {ended.stderr}"
    assert ended.code == 0 or liar.url in ended.stderr, f"no address: {ended.stderr}"
    return 1


def check_results(liar: Liar, results: list[dict[str, Any]], lengths: list[int]) -> None:
    """An honest answer is counted right; a lie is a failure with its reason."""
    for result in results:
        lie = liar.plan[lengths.index(result["prompt_tokens"])]
        what = f"{lie.__name__}: {result}"
        if lie is honest:
            assert result["status"] == "ok", what
        elif lie is not mutated:
            assert result["status"] != "ok", what
            assert lie is not ends or "finish_reason" in result["reason"], what
        if result["status"] == "ok":
            assert (result["tokens"], result["reason"]) == (TOKENS, ""), what
            assert lie is mutated or result["cached_tokens"] == 1, what
        else:
            assert result["reason"].isprintable(), what
            assert 3 < len(result["reason"]) < 600, what
