"""Requests that no client should send to `chunkbench serve`, while one good request runs."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any

import click

from chunkbench.cli.serve import command
from chunkbench.server.engine import EngineOptions
from chunkbench.server.protocol import ChatBody, CompletionBody, DetokenizeBody, Fields, TokenizeBody
from tests.server.processes import Served, resident_bytes, serve_small
from tests.torture.drawn import value
from tests.torture.judged import choice, odd_value, regex, schema
from tests.torture.trials import Harm, Trial

MOST_SENT = 24 << 20
BODIES: dict[str, type[Fields]] = {
    "/v1/completions": CompletionBody, "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody, "/detokenize": DetokenizeBody,
}  # fmt: skip
WORDS = ("text", "", "user", '{"type": "object"}', "[a-c]+")
FIELDS = sorted({name for kind in BODIES.values() for name in (*kind.model_fields, *kind._neutral)} - {"model"})


@dataclass(frozen=True)
class Attack:
    """Bytes for one connection, and how they are sent."""

    name: str
    sent: bytes
    refused: bool = True
    """Whether the answer must be a 4xx, or none. Else it may be a 200, too."""
    good: bool = False
    """Whether the answer must be a 200."""
    size: int = 1 << 16
    pause_s: float = 0.0
    """Bytes of a piece, and the pause after each."""
    cut: bool = False
    """The client goes away when all is sent, and reads nothing."""
    reset: bool = False
    """It goes away by a reset of the connection."""
    ends: bool = False
    """The client says that it sends nothing more."""


def post(body: bytes, route: str = "completions", length: bytes | None = None) -> bytes:
    """A request, which ends the connection."""
    size = str(len(body)).encode() if length is None else length
    first = b"POST %s HTTP/1.1" % (route if route[0] == "/" else f"/v1/{route}").encode()
    return b"\r\n".join([first, b"Host: x", b"Connection: close", b"Content-Length: " + size, b"", body])


def good_body(chance: random.Random, route: str) -> dict[str, Any]:
    """A short request with most fields. Some ask for several prompts, answers or beams."""
    prompts = ["some text", [1, 2, 3], [[4, 5]], ["some text", "more"], [[4, 5], [4, 5, 6]]]
    asked: dict[str, Any] = {"prompt": chance.choice(prompts), "logprobs": 2, "echo": False}
    if route != "completions":
        messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
        asked = {"messages": messages, "max_completion_tokens": 3, "logprobs": True}
    fields = {"max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "stream": False, "stop": ["xx"]}
    fields |= {"stop_token_ids": [7], "stream_options": {"include_usage": True}, "user": "me", "ignore_eos": False}
    fields |= {"n": chance.choice([1, 2, 3]), "prompt_logprobs": 1, "cache_salt": "mine", "min_tokens": 1}
    if chance.random() < 0.2:
        del asked["logprobs"], fields["prompt_logprobs"]
        fields |= {"use_beam_search": True, "length_penalty": 0.5, "early_stopping": True}
    always = ("max_tokens", "use_beam_search")
    kept = {name: value for name, value in fields.items() if name in always or chance.random() < 0.6}
    return {"model": "sharp", **asked, **kept}


def drawn_body(chance: random.Random) -> Attack:
    """Fields of a body, each with a value of its type, whatever the others are."""
    route, kind = chance.choice(list(BODIES.items()))
    made = kind.model_json_schema()
    drawn = {name: value(part, chance, WORDS, made.get("$defs", {})) for name, part in made["properties"].items()}
    needed = ("max_tokens", *made.get("required", ()))
    body = {name: one for name, one in drawn.items() if name in needed or chance.random() < 0.4} | {"model": "sharp"}
    return Attack("drawn", post(json.dumps(body).encode(), route), refused=False)


def noise(chance: random.Random) -> Attack:
    starts = [b"", b"GET ", b"POST /v1/completions ", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n" * 3]
    return Attack("noise", chance.choice(starts) + chance.randbytes(chance.randrange(1, 3000)), ends=True)


def head(chance: random.Random) -> Attack:
    """Broken lines above a good body."""
    good = post(json.dumps(good_body(chance, "completions")).encode())
    long, many = chance.choice([1 << 12, 1 << 18, 1 << 23]), chance.choice([100, 20_000])
    more = [b"no colon", b" folded: 1", b"Odd\x00Name: 1", b"Value: \x00\x01\x7f", b"Long: " + b"b" * long]
    more += [b"A: b\r\n" * many + b"A: b", b"Content-Encoding: gzip\r\nContent-Type: text/html; charset=odd"]
    more += [b"Transfer-Encoding: " + kind for kind in (b"chunked", b"gzip, chunked", b"identity")]
    more += [b"Expect: 100-continue", b"Expect: 200-ok"]
    more += [b"Upgrade: " + protocol + b"\r\nConnection: Upgrade" for protocol in (b"websocket", b"h2c")]
    changes: list[tuple[bytes, bytes]] = [
        (b"HTTP/1.1", b"HTTP/" + chance.choice([b"9.9", b"1", b"", b"2.0", b"1.1 "])),
        (b"POST", chance.choice([b"DELETE", b"P\x00ST", b"post", b"CONNECT", b"OPTIONS", b"A" * long])),
        (b"/v1/completions", chance.choice([b"/v1//completions", b"/%00", b"/v1/models/%ff%ff", b"*", b"/../x"])),
        (b"/v1/completions", chance.choice([b"/" + b"a" * long, b"http://other/v1/embeddings?" + b"%" * 99])),
        (b"Content-Length: ", b"Content-Length: " + chance.choice([b"-", b"0x", b"1", b"7\r\nContent-Length: "])),
        (b"Host: x\r\n", chance.choice([b"", b"Host: x\r\nHost: y\r\n", b"Host: \xff\xfe\r\n"])),
        *[(b"Host: x", b"Host: x\r\n" + chance.choice(more)) for _ in range(8)],
        (b"\r\n", chance.choice([b"\n", b"\r"])),
    ]
    old, new = chance.choice(changes)
    return Attack("head", good.replace(old, new), refused=False, ends=True)


def chunked(chance: random.Random) -> Attack:
    """A body in chunks whose sizes are wrong, or that has too many of them."""
    lines = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = b"400;extension=%s\r\n%s\r\n" % (b"e" * chance.choice([0, 9, 2000]), b"[" * 1024)
    broken = [b"zz", b"-1\r\n", b"f" * 30, b"9\r\nabc", b"0" * 5000, b"1\r\nab", b"\x00"]
    broken += [piece * 9 + b"0\r\nTrailer: " + b"t" * (1 << 20) + b"\r\n", piece * chance.choice([9, 9000]) + b"0\r\n"]
    return Attack("chunked", lines + chance.choice(broken) + b"\r\n", ends=True)


def cut_off(chance: random.Random) -> Attack:
    """A good request that ends in its middle, or whose client goes away before the answer."""
    route = chance.choice(["completions", "chat/completions"])
    body = good_body(chance, route) | {"max_tokens": 300, "stream": chance.random() < 0.5, "ignore_eos": True}
    sent = post(json.dumps(body).encode(), route)
    end = chance.choice([chance.randrange(1, len(sent)), len(sent)])
    pause_s = chance.choice([0.0, 0.02, 0.2])
    return Attack("cut off", sent[:end], pause_s=pause_s, cut=True, reset=chance.random() < 0.5)


def slow(chance: random.Random) -> Attack:
    """A good request in small pieces, or one that waits for the rest for a while."""
    route = chance.choice(["completions", "chat/completions"])
    sent = post(json.dumps(good_body(chance, route)).encode(), route)
    return Attack("slow", sent, refused=False, good=True, size=chance.choice([1, 5, 40]), pause_s=0.4 / len(sent))


def large(chance: random.Random) -> Attack:
    """More bytes than the server takes, told or not."""
    body = chance.choice([b"[" * MOST_SENT, b'{"prompt": "' + b"a" * MOST_SENT, b"\x00" * (2 << 20), b" " * (3 << 20)])
    return Attack("large", post(body), size=1 << 20)


def promised(chance: random.Random) -> Attack:
    """Many bytes are promised, few come."""
    length = chance.choice([b"99999", b"%d" % 10**12, b"%d" % 2**63, b"9" * 30])
    return Attack("promised", post(b'{"prompt": "', length=length), ends=True)


def changed(chance: random.Random) -> Attack:
    """A good body with a value, a field or bytes changed."""
    route = chance.choice(["completions", "chat/completions"])
    body = good_body(chance, route)
    if chance.random() < 0.6:
        inside = [body, *body.get("messages", []), *body.get("messages", [{}])[0].get("content", [])]
        changed_in = chance.choice(inside)
        more = [*FIELDS, "metadata", "odd", ""]
        changed_in[chance.choice([*changed_in, *more])] = odd_value(chance)
        data = json.dumps(body).encode()
    else:
        text = bytearray(json.dumps(body).encode())
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(text))
            text[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        data = bytes(text)
    return Attack("changed", post(data, route), refused=False)


def nested(chance: random.Random) -> Attack:
    """Objects and lists thousands deep, also inside of text that is read once more."""
    depth = chance.choice([50, 190, 900, 5000, 100_000])
    begin, end = chance.choice([("[", "]"), ('{"a":', "}"), ('{"allOf":[', "]}"), ('{"items":', "}")])
    deep = begin * depth + chance.choice(["1", "{}", ""]) + end * depth
    text = json.dumps(deep)
    bodies = [
        deep,
        f'{{"model": "sharp", "prompt": {deep}}}',
        f'{{"model": "sharp", "prompt": "a", "metadata": {deep}}}',
        f'{{"model": "sharp", "prompt": "a", "logit_bias": {deep}}}',
        f'{{"model": "sharp", "prompt": "a", "max_tokens": 2, "structured_outputs": {{"json": {deep}}}}}',
        f'{{"model": "sharp", "prompt": "a", "max_tokens": 2, "structured_outputs": {{"json": {text}}}}}',
        f'{{"model": "sharp", "prompt": "a", "max_tokens": 2, "response_format": {deep}}}',
    ]
    return Attack("nested", post(chance.choice(bodies).encode()), refused=False)


def constraint(chance: random.Random) -> Attack:
    """Regular expressions, schemas and choices that are broken, huge, or explode."""
    outputs = chance.choice([regex, schema, choice])(chance)
    body = {"model": "sharp", "prompt": "a", "max_tokens": chance.choice([1, 4, 30]), "structured_outputs": outputs}
    if isinstance(outputs.get("json"), dict) and chance.random() < 0.4:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": outputs["json"]}}
        body = {name: value for name, value in body.items() if name != "structured_outputs"} | {"response_format": form}
    return Attack("constraint", post(json.dumps(body).encode()), refused=False)


KINDS: list[Callable[[random.Random], Attack]] = [noise, head, chunked, cut_off, slow, large, promised]
KINDS += [changed, changed, nested, constraint, constraint, drawn_body, drawn_body]


ATTACKS = 6
"""At once."""
ANSWER_S, PATIENCE_S = 30.0, 0.5
MORE_BYTES = 160 << 20
"""By which the server may have grown, whatever came: 48 MiB of constraints that are kept, what one takes while it is
compiled, and what bodies of 3 MB leave. Seen: 124 MiB."""
GOOD = {"model": "sharp", "prompt": list(range(40, 120)), "max_tokens": 60, "temperature": 0, "ignore_eos": True}
GOOD |= {"return_token_ids": True}


EACH = 40
"""Trials with one server; the next ones have a server with other options."""
FIXED = ("engine", "dtype", "compress")
"""Options with a choice that are not drawn: others' engines, a dtype in which company may change an answer, and what
needs a file of heads."""


def options(chance: random.Random) -> list[str]:
    """A value of each option of `chunkbench serve` that has a choice, such as drafts or how answers are constrained.
    The engine takes them together."""
    of_engine = {field.name for field in fields(EngineOptions)}
    while True:
        drawn = [
            (option, chance.choice([*option.type.choices]))
            for option in command.params
            if isinstance(option.type, click.Choice) and option.name not in FIXED
        ]
        with suppress(ValueError):
            EngineOptions(**{str(option.name): one for option, one in drawn if option.name in of_engine})
            return [word for option, one in drawn for word in (option.opts[0], one)]


@contextmanager
def attacked() -> Iterator[Harm]:
    with ExitStack() as opened:
        fuzz: dict[int, Fuzz] = {}

        def harm(trial: Trial) -> int:
            number = trial.number // EACH
            if number not in fuzz:
                fuzz.clear()
                opened.close()
                words = options(random.Random(number))
                fuzz[number] = Fuzz(opened.enter_context(serve_small("--kv-memory", "4MiB", *words)))
            return fuzz[number](trial)

        yield harm


class Fuzz:
    """The server of all trials, and what it said before the first one."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.errors = server.log.with_name(f"{server.log.name}.err")
        self.answer = self.good()
        self.most_bytes = resident_bytes(server.process.pid) + MORE_BYTES
        self.read = len(self.errors.read_text(errors="replace"))

    def good(self) -> list[int]:
        """The tokens of the good request."""
        status, answer = self.server.post("/v1/completions", GOOD)
        assert status == 200, f"the good request: {status} {answer}"
        tokens: list[int] = answer["choices"][0]["token_ids"]
        return tokens

    def __call__(self, trial: Trial) -> int:
        attacks = [trial.chance.choice(KINDS)(trial.chance) for _ in range(ATTACKS)]
        for number, attack in enumerate(attacks):
            (trial.folder / f"{number}-{attack.name}").write_bytes(attack.sent)
        asyncio.run(self.attacked(attacks))
        assert self.server.process.poll() is None, f"the server ended with {self.server.process.returncode}"
        self.server.wait_until_idle()
        grown = resident_bytes(self.server.process.pid) - self.most_bytes
        assert grown <= 0, f"the server has {grown >> 20} MiB more than it may"
        text = self.errors.read_text(errors="replace")
        new, self.read = text[self.read :], len(text)
        assert "Traceback" not in new, f"the server wrote a traceback:\n{new[-4000:]}"
        return len(attacks)

    async def attacked(self, attacks: list[Attack]) -> None:
        """The good request and the attacks at the same time. Raises AssertionError."""
        good = asyncio.create_task(asyncio.to_thread(self.good))
        host, port = self.server.url.removeprefix("http://").split(":")
        answers = await asyncio.gather(*(send(host, int(port), attack) for attack in attacks))
        tokens = await good
        for attack, answer in zip(attacks, answers, strict=True):
            wrong = why_wrong(attack, answer)
            assert not wrong, f"{attack.name}: {wrong}\nsent: {attack.sent[:1500]!r}\nanswered: {answer[:1500]!r}"
        assert tokens == self.answer, f"the good request got another answer beside {[a.name for a in attacks]}"


async def send(host: str, port: int, attack: Attack) -> bytes:
    """Send an attack in its pieces. Returns all that comes back."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        with suppress(ConnectionError):  # the server may answer and close before it has read everything
            for begin in range(0, len(attack.sent), attack.size):
                writer.write(attack.sent[begin : begin + attack.size])
                await writer.drain()
                await asyncio.sleep(attack.pause_s)
        if attack.cut:
            if attack.reset:
                writer.transport.abort()
            return b""
        reading = asyncio.create_task(read(reader))
        if attack.ends:
            await asyncio.wait([reading], timeout=PATIENCE_S)
            if not reading.done():
                with suppress(OSError):
                    writer.write_eof()
        return await asyncio.wait_for(reading, ANSWER_S)
    except TimeoutError:
        return b"nothing came in time"
    finally:
        writer.close()


async def read(reader: asyncio.StreamReader) -> bytes:
    """A whole answer, or all until the connection closes. Leaves out "100 Continue"."""
    answer = b""
    with suppress(ConnectionError):
        while not whole(answer) and (part := await reader.read(1 << 16)):
            answer = (answer + part).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    return answer


def why_wrong(attack: Attack, answer: bytes) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if attack.cut or (attack.ends and not answer):
        return ""  # the connection was closed
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    if not found:
        return "the answer is not HTTP"
    status = int(found[1])
    if status == 200 and not attack.refused:
        return ""
    if attack.good or not 400 <= status < 500:
        return f"the status is {status}"
    return "" if answer.partition(b"\r\n\r\n")[2] else "no message says why"


def whole(answer: bytes) -> bool:
    """Whether an answer has its whole body. One without its length ends with the connection."""
    lines, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length: (\d+)", lines)
    return length is not None and len(body) >= int(length[1])
