"""Drives vLLM's engine step by step; run by the Python of an environment with vLLM.

Reads JSON from standard input: `engine` (arguments of the engine) and `requests` (id, prompt, max_tokens; `at`: the
step at which it joins; `abort_after`: tokens after which it is cancelled, or null); `triton`: whether the backend for
GPUs takes part. Prints JSON: of each request its tokens, the gap between the two largest
log-probabilities of each, the largest log-probabilities of the first, and its cached prompt tokens; how many requests
were preempted, how many tokens were drafted and accepted; the classes that compute attention.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import torch
from vllm import EngineArgs, LLMEngine, SamplingParams

COUNTERS = {
    "preempted": "vllm:num_preemptions",
    "drafted": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
}


def main() -> None:
    told = json.load(sys.stdin)
    if told["triton"]:
        put_gpu_backend_in()
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
    told = {"answers": answers, "attention": attention(engine)}
    for name, metric in COUNTERS.items():
        told[name] = sum(found.value for found in engine.get_metrics() if found.name == metric)
    json.dump(told, sys.stdout)


def attention(engine: LLMEngine) -> list[str]:
    """Names of the classes that compute attention."""
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    return sorted({type(layer.impl).__name__ for layer in runner.compilation_config.static_forward_context.values()})


def put_gpu_backend_in() -> None:
    """Into a vLLM on a CPU: our kernels in Triton's interpreter, vLLM's own ones replaced.

    vLLM switches its Triton kernels off where there is no GPU. What they would compute (writes to the cache, prompts)
    is computed slowly here, in the layout that the backend gets. So vLLM's scheduler, cache manager, runner and classes
    are real, and the decoded tokens are ours.
    """
    from vllm.v1.attention.backends import triton_attn
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from tests.kernels.triton.interpreter import mend_interpreter

    mend_interpreter()
    triton_attn.unified_attention = _attend
    triton_attn.triton_reshape_and_cache_flash = _write
    register_backend(AttentionBackendEnum.CPU_ATTN, "chunkbench.plugins.vllm.gpu.ChunkTritonBackend")


def _write(key: Any, value: Any, key_cache: Any, value_cache: Any, slots: torch.Tensor, *_: Any) -> None:
    size = key_cache.shape[1]
    kept = slots >= 0
    blocks, places = slots[kept] // size, slots[kept] % size
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache[blocks, places] = new[: len(slots)][kept]


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor, softmax_scale: float, block_table: torch.Tensor, **_: Any,
) -> None:  # fmt: skip
    """q `[rows, heads, d]`, k and v `[blocks, tokens, kv_heads, d]`; the rows of a sequence are its last tokens."""
    starts = cu_seqlens_q.tolist()
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        if start == end:
            continue
        length = int(seqused_k[number])
        held = block_table[number, : -(-length // k.shape[1])].long()
        group = q.shape[1] // k.shape[2]
        keys, values = (cache[held].flatten(0, 1)[:length].float().repeat_interleave(group, 1) for cache in (k, v))
        scores = torch.einsum("nhd,mhd->hnm", q[start:end].float(), keys) * softmax_scale
        seen = torch.ones(end - start, length, dtype=torch.bool).tril(length - (end - start))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        out[start:end] = torch.einsum("hnm,mhd->nhd", weights, values).to(out.dtype).view_as(out[start:end])


main()
