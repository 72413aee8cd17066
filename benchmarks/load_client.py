"""Measures the load client itself: many open streams from a server that only waits and writes.

The server sends an event to each stream 20 times a second. A client without cost sees gaps of 50 ms and sends each
request when it is due. Usage: python benchmarks/load_client.py [--streams 1000] [--tokens 100]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
from multiprocessing.connection import Connection

from aiohttp import web

from chunkbench.traffic import PlannedRequest
from chunkbench.traffic.load import LoadOptions, LoadResult, describe_server, send
from chunkbench.traffic.request_result import load_numbers

GAP_S = 0.05
START_S = 5.0
"""All requests are due within this time."""


async def answer(request: web.Request) -> web.StreamResponse:
    tokens = (await request.json())["max_tokens"]
    response = web.StreamResponse()
    await response.prepare(request)
    clock = asyncio.get_running_loop()
    begun = clock.time()
    for number in range(tokens):
        await asyncio.sleep(begun + (number + 1) * GAP_S - clock.time())
        end = "length" if number == tokens - 1 else None
        choice = {"index": 0, "text": "a", "finish_reason": end}
        await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


async def models(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "m"}]})


def serve(told: Connection) -> None:
    async def run() -> None:
        app = web.Application()
        app.add_routes([web.post("/v1/completions", answer), web.get("/v1/models", models)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        told.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


async def load(port: int, streams: int, tokens: int) -> LoadResult:
    plan = [PlannedRequest(START_S * number / streams, (1, 2, 3, 4), tokens) for number in range(streams)]
    return await send(await describe_server(f"127.0.0.1:{port}"), plan, LoadOptions(gaps=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000, help="number of open streams")
    parser.add_argument("--tokens", type=int, default=100, help="events of each stream")
    chosen = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    result = asyncio.run(load(ours.recv(), chosen.streams, chosen.tokens))
    server.kill()
    numbers = load_numbers(result.requests)
    assert numbers.sending_delay is not None
    assert numbers.gap is not None
    assert numbers.latency is not None
    late = numbers.sending_delay.mean / numbers.latency.mean
    print(f"{numbers.answered} of {chosen.streams} streams answered, client's CPU {result.client_cpu:.0%}")
    print(
        f"sending delay: mean {numbers.sending_delay.mean * 1e3:.2f} ms, p99 {numbers.sending_delay.p99 * 1e3:.2f} ms"
    )
    print(f"mean sending delay / mean latency: {late:.2%}")
    print(f"gaps (50 ms without cost): p50 {numbers.gap.p50 * 1e3:.1f} ms, p99 {numbers.gap.p99 * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
