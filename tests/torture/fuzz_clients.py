"""`chunkbench load` against a server that lies: what a lie does to its request, and to the others."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.torture.fuzz import check_json, check_text, command
from tests.torture.lies import LIES, MODELS, PAGE_LIES, TIMEOUT_S, TOKENS, Pieces, bomb, ends, head, honest, mutated
from tests.torture.trials import Harm, Part, Trial, Unavailable


class Liar:
    """A server in a thread of its own. The first token id of a prompt says what it answers."""

    def __init__(self) -> None:
        self.seed = 0
        self.plan: list[Callable[[int, random.Random], Pieces]] = []
        self.page_lie: Callable[[int, random.Random], Pieces] | None = None
        """How it lies about itself."""
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
            async for piece in self._pieces(reader):
                if isinstance(piece, float):
                    await asyncio.sleep(piece)
                else:
                    writer.write(piece)
                    await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _pieces(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes | float]:
        asked = await reader.readuntil(b"\r\n\r\n")
        if not asked.startswith(b"POST"):
            if self.page_lie is not None:
                for piece in self.page_lie(1, random.Random(f"{self.seed} {asked.split()[1].decode()}")):
                    yield piece
            else:
                yield head("200 OK", "Content-Type: application/json", f"Content-Length: {len(MODELS)}") + MODELS
            return
        size = next(int(line[15:]) for line in asked.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        prompt = json.loads(await reader.readexactly(size))["prompt"]
        number = prompt[0]
        for piece in self.plan[number](len(prompt), random.Random(f"{self.seed} {number}")):
            yield piece


@contextmanager
def trials() -> Iterator[Harm]:
    """Each trial sends twelve requests, about half of which are answered with a lie."""
    try:
        import aiohttp  # noqa: F401
    except ModuleNotFoundError:
        raise Unavailable("aiohttp is missing: make .venv/.ready-serving") from None
    for byte in (b"\n", b"x"):
        bomb(byte)  # not while others wait for the server
    liar = Liar()
    try:
        yield lambda trial: lied_to(liar, trial)
    finally:
        liar.close()


def lied_to(liar: Liar, trial: Trial) -> int:
    """Send requests, and check what became of each; or ask a server that lies about itself."""
    chance, count = trial.chance, 12
    liar.seed = trial.number
    if chance.random() < 0.2:
        return lied_to_about_itself(liar, trial)
    liar.plan = [honest if chance.random() < 0.5 else chance.choice(LIES) for _ in range(count)]
    trace, out = trial.folder / "trace.jsonl", trial.folder / "out.jsonl"
    lengths = chance.sample(range(2, 60), count)  # so many tokens has one prompt alone
    lines = [{"prompt": [n, *range(lengths[n] - 1)], "max_tokens": TOKENS, "due": n / 50} for n in range(count)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    form = chance.choice(("json", "table"))
    clients = ["--clients", "4"] if chance.random() < 0.3 else ()
    options = ["--trace", trace, "--out", out, "--format", form, "--warm-up", "0", "--timeout", TIMEOUT_S, *clients]
    ended = command("load", liar.url, *map(str, options))
    (check_json if form == "json" else check_text)(ended.stdout, "what load prints")
    results = [json.loads(line) for line in out.read_text().splitlines()]
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
    trace = trial.folder / "trace.jsonl"
    trace.write_text(json.dumps({"prompt": [0, 1], "max_tokens": TOKENS, "due": 0}) + "\n")
    liar.plan, liar.page_lie = [honest], trial.chance.choice(PAGE_LIES)
    options = ["--trace", trace, "--out", trial.folder / "out.jsonl", "--warm-up", "0", "--timeout", TIMEOUT_S]
    try:
        ended = command("load", liar.url, *map(str, options))
    finally:
        liar.page_lie = None
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


PART = Part(
    "fuzz clients",
    "`chunkbench load` against a server that lies: cut, joined, endless and packed answers, wrong counts, garbage, "
    "also about itself",
    "the request is a failure with its reason, the run goes on, honest answers are counted right",
    trials,
)
