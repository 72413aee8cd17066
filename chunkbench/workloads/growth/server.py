"""Operations of our server, and of the load client."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from time import perf_counter
from typing import TYPE_CHECKING

from chunkbench.lifetime import end_with_parent
from chunkbench.llama import LlamaShape
from chunkbench.workloads.growth.methods import Sample
from chunkbench.workloads.growth.result import GrowthPoint

if TYPE_CHECKING:
    from aiohttp import web

_SHAPE = LlamaShape(
    name="tiny",
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=32,
)
_SHARED, _OWN, _TOKENS = 128, 8, 512
_START_S = 60.0


@contextmanager
def engine_step(point: GrowthPoint) -> Iterator[Sample]:
    """A step in which all sequences decode, without the time of the model."""
    import torch

    from chunkbench.server.engine import Engine, EngineOptions, Model, Request
    from chunkbench.server.engine.model import llama_config, random_module

    model = Model(random_module(llama_config(_SHAPE, vocabulary=1000), torch.float32))
    chunks = (_SHARED + (_OWN + _TOKENS + 64) * point.size) * model.token_bytes()
    engine = Engine(model, EngineOptions(max_batch=point.size, kv_bytes=2 * chunks))
    chance = random.Random(0)
    shared = [chance.randrange(1000) for _ in range(_SHARED)]
    number = iter(range(1 << 30))

    def sample() -> float:
        while True:
            while engine.running + engine.waiting < point.size:  # an answer has ended
                own = [chance.randrange(1000) for _ in range(_OWN)]
                engine.add(Request(str(next(number)), shared + own, _TOKENS, ignore_eos=True))
            report = engine.step()
            if report.batch == point.size and not report.prompt_tokens:
                return report.overhead_s

    yield sample


@contextmanager
def load(point: GrowthPoint) -> Iterator[Sample]:
    from chunkbench.traffic import PlannedRequest
    from chunkbench.traffic.load import LoadOptions, describe_server, send

    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
    server.start()
    if not ours.poll(_START_S):
        raise RuntimeError(f"the server of one line did not start within {_START_S:.0f} s")
    port = ours.recv()
    plan = [PlannedRequest(0.0, (1, 2, 3, 4), 1)] * point.size

    async def round_trip() -> None:
        answers = await send(await describe_server(f"127.0.0.1:{port}"), plan, LoadOptions(clients=point.size))
        failed = next((one.reason for one in answers.requests if one.status != "ok"), None)
        if failed is not None:
            raise RuntimeError(f"a request to the server of one line failed: {failed}")

    def sample() -> float:
        begun = perf_counter()
        asyncio.run(round_trip())
        return perf_counter() - begun

    try:
        yield sample
    finally:
        server.kill()
        server.join()


def _serve(told: Connection, parent: int) -> None:
    """A server that answers every request with one token at once."""
    from aiohttp import web

    end_with_parent(parent)

    line = b"data: " + json.dumps({"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}).encode()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=line + b"\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "one-line"}]})

    async def run() -> None:
        app = web.Application()
        app.add_routes([web.post("/v1/completions", answer), web.get("/v1/models", models)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        told.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())
