"""Requests that no client should send, while one good request runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.server.processes import Served, resident_bytes, serve_small
from tests.torture.attacks import Attack, draw
from tests.torture.trials import Harm, Part, Trial

ATTACKS = 6
"""At once."""
ANSWER_S, PATIENCE_S = 30.0, 0.5
MORE_BYTES = 160 << 20
"""By which the server may have grown, whatever came: 48 MiB of constraints that are kept, what one takes while it is
compiled, and what bodies of 3 MB leave. Seen: 124 MiB."""
GOOD = {"model": "sharp", "prompt": list(range(40, 120)), "max_tokens": 60, "temperature": 0, "ignore_eos": True}
GOOD |= {"return_token_ids": True}


@contextmanager
def trials() -> Iterator[Harm]:
    with serve_small("--kv-memory", "4MiB") as server:
        yield Fuzz(server)


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
        attacks = [draw(trial.chance) for _ in range(ATTACKS)]
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
            for piece in attack.pieces():
                writer.write(piece)
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
    status, (_, _, text) = int(found[1]), answer.partition(b"\r\n\r\n")
    if status == 200 and not attack.refused:
        return ""
    if attack.good:
        return f"a good request got {status}"
    if not 400 <= status < 500:
        return f"the status is {status}"
    if not text and b"HEAD " not in attack.sent[:5]:
        return "no message says why"
    return ""


def whole(answer: bytes) -> bool:
    """Whether an answer has its whole body. One without its length ends with the connection."""
    lines, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length: (\d+)", lines)
    return length is not None and len(body) >= int(length[1])


PART = Part(
    "fuzz HTTP",
    "malformed, slow, oversized and cut-off requests to `chunkbench serve`, constraints included",
    "status 4xx, bounded memory, the others' answers unchanged",
    trials,
    minutes=8,
)
