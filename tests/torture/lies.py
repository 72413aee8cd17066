"""What a server that lies answers a request of `chunkbench load`, and what an honest one does."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator
from functools import cache

from tests.torture.fuzz import damage_bytes, damage_json, dumped

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


def statuses(prompt: int, chance: random.Random) -> Pieces:
    """An error, whose text nobody can read."""
    kind = chance.choice(("text/plain", "text/plain; charset=x-unknown", "a; charset=hex", "a; charset=idna", ""))
    status = chance.choice(("500 Oops", "503 \x1b[31mred", "404 Not Found", "429 Slow down", "204 No Content", "599 "))
    body = chance.choice((b"\xff\xfe\x1b[31m", b'{"error": {"message": "\x1b[31m"}}', b"[" * 100_000, b"", b"\0" * 99))
    yield head(status, *([f"Content-Type: {kind}"] if kind else ()), f"Content-Length: {len(body)}") + body


def redirects(prompt: int, chance: random.Random) -> Pieces:
    """To nowhere, in a circle, or to what is no address."""
    places = (
        "/v1/completions",
        "http://127.0.0.1:9/",
        "ftp://x/",
        "\x1b[31m",
        "//",
        "http://[::",
        "\xe9\xff",
        "http://a b",
    )
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


LIES: tuple[Callable[[int, random.Random], Pieces], ...] = (
    *(cut, ends, wrong_counts, statuses, redirects, endless, packed, garbage, silent, mutated),
)
PAGE_LIES = (statuses, redirects, endless, packed, garbage, mutated, odd_page, odd_page, odd_page)
"""What /v1/models and /metrics answer."""
