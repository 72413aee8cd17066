"""Times steps of vLLM's engine; `benchmarks/vllm_plugin.py` runs it with the Python of an environment with vLLM.

Reads JSON from standard input: `model` (a folder with a config.json), `dtype`, `block_size`, `points` ([n_p, n_s, b,
n_c]). Prints a line of JSON for each point, times in seconds: `prefill` (from the first step to the last one with
prompt tokens), and medians over steps that only decode: `step`, and of it `attention` (all layers, writing K and V
included) and `build` (metadata).
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from vllm import EngineArgs, LLMEngine, SamplingParams


def main() -> None:
    told = json.load(sys.stdin)
    longest = max(n_p + n_c for n_p, _, _, n_c in told["points"])
    most = max(b for _, _, b, _ in told["points"])
    blocks = max(b * (-(-(n_p + n_c) // told["block_size"]) + 1) for n_p, _, b, n_c in told["points"])
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=told["model"], load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, dtype=told["dtype"],
            block_size=told["block_size"], max_model_len=longest, max_num_seqs=most, num_gpu_blocks_override=blocks,
            enable_prefix_caching=True, disable_log_stats=True,
        )
    )  # fmt: skip
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    clock = Clock()
    for layer in runner.compilation_config.static_forward_context.values():
        layer.impl.forward = clock.timed("attention", layer.impl.forward)
        layer.impl.do_kv_cache_update = clock.timed("attention", layer.impl.do_kv_cache_update)
    for groups in runner.attn_groups:
        for group in groups:
            for builder in group.metadata_builders:
                builder.build = clock.timed("build", builder.build)
    run(engine, clock, [64, 0, most, 8], "warm-up")
    for point in told["points"]:
        print(json.dumps(run(engine, clock, point, "measured")), flush=True)


class Clock:
    """Sums the times of calls by name."""

    def __init__(self) -> None:
        self.sums = {"attention": 0.0, "build": 0.0}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments, **named)
            self.sums[name] += time.perf_counter() - started
            return result

        return call


def run(engine: LLMEngine, clock: Clock, point: list[int], name: str) -> dict[str, float]:
    """Answer b requests of n_p tokens, the first n_s shared, and generate n_c tokens of each."""
    n_p, n_s, b, n_c = point
    chance = random.Random(f"{name} {point}")
    shared = [chance.randrange(2048) for _ in range(n_s)]
    sampling = SamplingParams(temperature=0, max_tokens=n_c, ignore_eos=True, detokenize=False)
    for number in range(b):
        prompt = shared + [chance.randrange(2048) for _ in range(n_p - n_s)]
        engine.add_request(f"{name} {point} {number}", {"prompt_token_ids": prompt}, sampling)
    made = dict.fromkeys(range(b), 0)
    prefill, steps = 0.0, []
    while engine.has_unfinished_requests():
        before = dict(clock.sums)
        started = time.perf_counter()
        outputs = engine.step()
        took = time.perf_counter() - started
        for output in outputs:
            made[int(output.request_id.split()[-1])] = len(output.outputs[0].token_ids)
        if min(made.values()) < 2:  # the step may have computed prompts
            prefill += took
        elif len(outputs) == b:
            steps.append((took, *(clock.sums[key] - before[key] for key in ("attention", "build"))))
    columns = zip(("step", "attention", "build"), zip(*steps, strict=True), strict=True)
    return {"prefill": prefill, **{key: statistics.median(column) for key, column in columns}}


main()
