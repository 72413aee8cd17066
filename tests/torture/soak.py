"""Load on one server that drafts, for a long time: requests that join, are cut off, preempted, have several prompts and
answers, search by beams, or follow a constraint."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import jsonschema

from tests.server.engine.models import VOCABULARY
from tests.server.processes import Served, resident_bytes, serve_small
from tests.torture.trials import Harm, Trial

CLIENTS, MAX_BATCH, CHUNKS = 16, 8, 10
CHUNK_BYTES = 64 << 10
POOL, REQUESTS = 40, 48
"""Different requests; requests of a stretch."""
WARM_UP = 30
"""Stretches after which memory does not grow."""
FLAT = 0.02
COMMON = {"model": "sharp", "temperature": 0, "stream": True, "return_token_ids": True, "ignore_eos": True}
"""Of all requests, unless they say otherwise."""
COMPILED = 16
"""Constraints that the server keeps: few, so that they are full early."""


SEVERAL = 2
"""Prompts in a request that has several, answers of each, and beams. Of `SEVERAL_TOKENS` tokens, so that the memory
holds them."""
SEVERAL_TOKENS = 40


@dataclass
class Request:
    """What a client asks for, and the answers that it gets when nobody else asks."""

    prompt: list[int]
    max_tokens: int
    alone: list[int] = field(default_factory=list)
    beams: list[list[int]] = field(default_factory=list)


@contextmanager
def soaked() -> Iterator[Harm]:
    limits = ["--kv-memory", str(CHUNKS * CHUNK_BYTES), "--max-batch", str(MAX_BATCH), "--prompt-budget", "64"]
    with serve_small(*limits, "--compiled", str(COMPILED), "--draft", "ngram") as server:
        yield Soak(server)
        assert server.metric("preemptions_total") > 0, "no request was preempted"


class Soak:
    """The server, its requests, and its memory after each stretch."""

    def __init__(
        self, server: Served, different: int = POOL, requests: int = REQUESTS, constrained: float = 0.2
    ) -> None:
        """`constrained`: the share of requests that follow a constraint."""
        self.server = server
        self.resident: list[int] = []
        self.pool = draw_pool(random.Random(7), different)
        self.requests = requests
        self.share = constrained
        asyncio.run(self.each_alone())

    async def each_alone(self) -> None:
        async with aiohttp.ClientSession() as session:
            for request in self.pool:
                request.alone = (await self.tokens(session, request, None))[0]
                request.beams = await self.searched(session, request)

    def __call__(self, trial: Trial) -> int:
        asyncio.run(self.stretch(trial.chance))
        self.server.wait_until_idle()
        self.resident.append(resident_bytes(self.server.process.pid))
        (trial.folder / "resident-bytes").write_text("\n".join(map(str, self.resident)))
        if len(self.resident) > WARM_UP:
            base, now = self.resident[WARM_UP - 1], self.resident[-1]
            grown = now / base - 1
            assert abs(grown) <= FLAT, f"memory went from {base} to {now} bytes, {grown:+.1%}, in {len(self.resident)}"
        return self.requests

    async def stretch(self, chance: random.Random) -> None:
        """So many clients at a time, each with its next request as soon as the last one has ended."""
        drawn = iter(
            [(chance.choice(self.pool), chance.random(), random.Random(chance.random())) for _ in range(self.requests)]
        )

        async def work(session: aiohttp.ClientSession) -> None:
            for request, kind, own in drawn:
                if kind < self.share:
                    await self.constrained(session, request, own)
                elif kind < self.share + 0.1:
                    assert await self.searched(session, request) == request.beams, "other beams in company"
                elif kind < self.share + 0.3:
                    await self.several(session, [request, *own.sample(self.pool, SEVERAL - 1)])
                else:
                    await self.plain(session, request, own.randrange(1, 40) if kind < 0.7 else None)

        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
            await asyncio.gather(*(work(session) for _ in range(CLIENTS)))

    async def plain(self, session: aiohttp.ClientSession, request: Request, cut: int | None) -> None:
        """A request whose client stays, or goes away after some tokens. Its tokens are those it gets alone."""
        tokens, _ = await self.tokens(session, request, cut)
        assert tokens == request.alone[:cut], f"{tokens} in company, {request.alone} alone"

    async def several(self, session: aiohttp.ClientSession, requests: list[Request]) -> None:
        """A list of prompts with several answers to each. All are those that their prompts get alone."""
        prompts, fields = [request.prompt for request in requests], {"max_tokens": SEVERAL_TOKENS, "n": SEVERAL}
        found = await self.answers(session, None, prompt=prompts, **fields)
        expected = [request.alone[:SEVERAL_TOKENS] for request in requests for _ in range(SEVERAL)]
        assert [found[index][0] for index in sorted(found)] == expected, f"{found} in company, {expected} alone"

    async def searched(self, session: aiohttp.ClientSession, request: Request) -> list[list[int]]:
        """The beams of a request."""
        body = {"prompt": request.prompt, "max_tokens": SEVERAL_TOKENS, "use_beam_search": True, "n": SEVERAL}
        async with session.post(
            f"{self.server.url}/v1/completions", json={**COMMON, **body, "stream": False}
        ) as answer:
            assert answer.status == 200, await answer.text()
            return [choice["token_ids"] for choice in (await answer.json())["choices"]]

    async def constrained(self, session: aiohttp.ClientSession, request: Request, own: random.Random) -> None:
        """A request that follows one of few constraints, or a new one."""
        number = own.choice([own.randrange(4), own.randrange(1_000_000)])
        expression = f'\\{{"n":{number},"t":"[a-f]{{3,{3 + number % 9}}}"\\}}'
        schema = {
            "type": "object", "properties": {"n": {"const": number}, "t": {"enum": ["low", "high", str(number)]}},
            "required": ["n", "t"], "additionalProperties": False,
        }  # fmt: skip
        form: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
        by_schema = own.random() < 0.5
        asked = form if by_schema else {"structured_outputs": {"regex": expression}}
        _, text = await self.tokens(session, request, None, **asked, temperature=1, ignore_eos=False)
        if by_schema:
            jsonschema.validate(json.loads(text), schema)
        else:
            assert re.fullmatch(expression, text), f"{text!r} does not follow {expression}"

    async def tokens(
        self, session: aiohttp.ClientSession, request: Request, cut: int | None, **fields: Any
    ) -> tuple[list[int], str]:
        """Token ids and text of an answer, or its first tokens."""
        given = {"prompt": request.prompt, "max_tokens": request.max_tokens, **fields}
        return (await self.answers(session, cut, **given))[0]

    async def answers(
        self, session: aiohttp.ClientSession, cut: int | None, **fields: Any
    ) -> dict[int, tuple[list[int], str]]:
        """Index -> token ids and text of an answer. `cut`: the client goes away after so many tokens."""
        found: dict[int, tuple[list[int], str]] = {}
        async with session.post(f"{self.server.url}/v1/completions", json={**COMMON, **fields}) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    assert "choices" in event, event
                    for choice in event["choices"]:
                        tokens, text = found.get(choice["index"], ([], ""))
                        found[choice["index"]] = [*tokens, *choice["token_ids"]][:cut], text + choice["text"]
                if cut is not None and found and len(found[0][0]) >= cut:
                    answer.close()  # the connection, too
                    break
        return found


def draw_pool(chance: random.Random, different: int) -> list[Request]:
    """Short requests of random sizes; half of them begin with the same 70 tokens."""
    system = [chance.randrange(VOCABULARY - 1) for _ in range(70)]
    made = []
    for _ in range(different):
        begin, own, most = chance.choice([[], system]), chance.randrange(1, 30), chance.randrange(60, 130)
        made.append(Request(begin + [chance.randrange(VOCABULARY - 1) for _ in range(own)], most))
    return made
