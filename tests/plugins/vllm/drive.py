"""Drives vLLM's engine step by step; run by the Python of an environment with vLLM.

Reads JSON from standard input: `engine` (arguments of the engine) and `requests` (id, prompt, max_tokens; `at`: the
step at which it joins; `abort_after`: tokens after which it is cancelled, or null); `triton`: whether the backend for
GPUs takes part, see `triton_on_cpu`. Prints JSON: of each request its tokens, the gap between the two largest
log-probabilities of each, the largest log-probabilities of the first, and its cached prompt tokens; how many requests
were preempted; the classes that compute attention.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm import EngineArgs, LLMEngine, SamplingParams


def main() -> None:
    told = json.load(sys.stdin)
    if told["triton"]:
        from tests.plugins.vllm import triton_on_cpu

        triton_on_cpu.register()
    engine = LLMEngine.from_engine_args(EngineArgs(**told["engine"]))
    answers: dict[str, dict[str, Any]] = {}
    waiting = sorted(told["requests"], key=lambda request: request["at"])
    aborts = {request["id"]: request["abort_after"] for request in waiting}
    step = 0
    while waiting or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            step = max(step, waiting[0]["at"])
        while waiting and waiting[0]["at"] <= step:
            request = waiting.pop(0)
            answers[request["id"]] = {"tokens": [], "gaps": []}
            sampling = SamplingParams(
                temperature=0, max_tokens=request["max_tokens"], ignore_eos=True, detokenize=False, logprobs=20
            )
            engine.add_request(request["id"], {"prompt_token_ids": request["prompt"]}, sampling)
        for output in engine.step():
            made = output.outputs[0]
            answer = answers[output.request_id]
            answer["cached"] = output.num_cached_tokens
            answer["tokens"] = list(made.token_ids)
            ranked = [sorted((entry.logprob for entry in step.values()), reverse=True) for step in made.logprobs or []]
            answer["gaps"] = [most[0] - most[1] for most in ranked]
            answer["first"] = {token: entry.logprob for token, entry in (made.logprobs or [{}])[0].items()}
            limit = aborts[output.request_id]
            if limit is not None and len(answer["tokens"]) >= limit and not output.finished:
                engine.abort_request([output.request_id])
        step += 1
    preempted = sum(metric.value for metric in engine.get_metrics() if metric.name == "vllm:num_preemptions")
    json.dump({"answers": answers, "preempted": preempted, "attention": attention(engine)}, sys.stdout)


def attention(engine: LLMEngine) -> list[str]:
    """Names of the classes that compute attention."""
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    return sorted({type(layer.impl).__name__ for layer in runner.compilation_config.static_forward_context.values()})


main()
