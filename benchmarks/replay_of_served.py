"""A served run of `chunkbench serve`, and the replay of its own log: cached tokens, K/V memory, normalized latency.

The server writes down its steps, and how many requests had arrived before each. A replay with these arrivals must give
the same cached tokens, batch and K/V memory. A second replay runs on the clock: requests at their due times, step times
fitted to the same steps. Run it with `python benchmarks/replay_of_served.py [--rate 2] [--requests 60]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from chunkbench.experiment.llama import SHAPES
from chunkbench.kvcache.managers import PrefixManager
from chunkbench.kvcache.text import TokenText
from chunkbench.replay.measured import Measured
from chunkbench.replay.served_steps import ServedRequest, served_steps
from chunkbench.replay.simulate import Replay, replay
from chunkbench.replay.step_time import Constant, StepTime
from chunkbench.scheduling import Rules
from chunkbench.serving.load import LoadOptions, send
from chunkbench.serving.servers.process import start_server
from chunkbench.serving.servers.registry import SYSTEMS
from chunkbench.serving.servers.system import Setting, System
from chunkbench.traces import Arrivals, PlannedRequest, Prompts, draw_prompts, due_times
from chunkbench.traces.replayed import ReplayRequest

CHUNK, BUDGET, BATCH, VOCABULARY = 64, 512, 32, 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=2.0, help="requests per second")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--n-p", type=int, default=512)
    parser.add_argument("--n-s", type=int, default=256)
    parser.add_argument("--n-c", type=int, default=48)
    parser.add_argument("--chunks", type=int, default=150, help="chunks of K/V memory")
    parser.add_argument("--dtype", default="float32")
    told = parser.parse_args()
    for name, retain in (("chunk_llama", False), ("chunk_llama_radix", True)):
        compare(name, retain, told)


def compare(name: str, retain: bool, told: Any) -> None:
    """Serve, replay, print."""
    system = cast(System, SYSTEMS.load(name))
    shape = SHAPES["small-llama"]
    token_bytes = 2 * shape.num_key_value_heads * shape.head_dim * (4 if told.dtype == "float32" else 2)
    kv_bytes, threads = told.chunks * CHUNK * token_bytes, os.cpu_count() or 1
    setting = Setting(shape, 1, VOCABULARY, told.n_p + told.n_c, told.dtype, "cpu", BATCH, kv_bytes, threads)
    prompts = draw_prompts(Prompts(told.n_p, told.n_s), told.requests, VOCABULARY, name)
    dues = due_times(Arrivals(), told.rate, told.requests, name)
    plan = [PlannedRequest(due, prompt, told.n_c) for due, prompt in zip(dues, prompts, strict=True)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        server = start_server(system, setting, folder)
        try:
            warm_up = draw_prompts(Prompts(told.n_p), 4, VOCABULARY, "warm-up")
            asyncio.run(send(server.target, [PlannedRequest(0.0, one, 2) for one in warm_up], LoadOptions(4)))
            measured = asyncio.run(send(server.target, plan, LoadOptions()))
        finally:
            server.stop()
        lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    steps = [step for step in lines if step["arrived"] > 4]
    cached = [request.cached_tokens for request in measured.requests]
    latency = fmean(((one.last or 0.0) - one.due) / one.tokens for one in measured.requests)

    exact = run(plan, [first_step(steps, number) for number in range(len(plan))], Constant(1.0), told.chunks, retain)
    print(f"{name}: {len(plan)} requests, {len(steps)} steps, {sum(s['preempted'] for s in steps)} preemptions")
    same = sum(one.cached_tokens == tokens for one, tokens in zip(exact.requests, cached, strict=True))
    peak = max(step["kv_bytes"] for step in steps)
    print(f"  arrivals by step: cached tokens of {same} of {len(plan)} requests equal, steps {exact.steps}, ", end="")
    print(
        f"preemptions {exact.preemptions}, peak batch {exact.peak_batch} (served {max(s['batch'] for s in steps)}), ",
        end="",
    )
    print(f"peak K/V {exact.peak_slots * token_bytes / 1e6:.1f} MB (served {peak / 1e6:.1f} MB)")

    rows = [(step["ended"], step["batch"], step["prompt_tokens"], step["s"]) for step in steps]
    served = [
        ServedRequest(one.sent or 0.0, one.prompt_tokens, one.cached_tokens or 0, one.tokens)
        for one in measured.requests
    ]
    fit = Measured.fit(served_steps(rows, served, told.n_s))
    clocked = run(plan, dues, fit, told.chunks, retain)
    replayed = fmean(((one.last or 0.0) - one.request.due) / one.request.answer for one in clocked.requests)
    print(f"  on the clock: {replayed * 1e3:.2f} ms/token replayed, {latency * 1e3:.2f} measured: ", end="")
    print(f"{replayed / latency - 1:+.1%}; {fit.words}")


def first_step(steps: Sequence[Any], number: int) -> int:
    """The first step that a request could take part in; the server counts the four of the warm-up, too."""
    return next(place for place, step in enumerate(steps) if step["arrived"] > number + 4)


def run(plan: Sequence[PlannedRequest], due: Sequence[float], time: StepTime, chunks: int, retain: bool) -> Replay:
    """The replay of these requests at these times."""
    unused, made = VOCABULARY, []
    for request, at in zip(plan, due, strict=True):
        ids = (*request.prompt, *range(unused, unused + request.max_tokens))
        unused += request.max_tokens
        made.append(ReplayRequest(at, TokenText(ids, len(request.prompt), len(ids)), request.max_tokens))
    return replay(made, PrefixManager(chunks, CHUNK, retain), Rules(BATCH, BUDGET), time)


if __name__ == "__main__":
    main()
