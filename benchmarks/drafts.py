"""Compares servers with and without drafts of n-grams (prompt look-up) on SmolLM2: our engine, vLLM, and our kernels in
vLLM.

    python benchmarks/drafts.py [CLIENTS ...]        default: 1 32; needs `make serving`; `make vllm-environment`

The tasks are edits of short codes and texts (experiments/texts/edits.jsonl), whose answers repeat most of the prompt.
The systems answer all tasks in turns, with CLIENTS requests at a time, greedily, in float32. Prints tokens per second
of each, over that of the same system without drafts and over our engine's without drafts; the share of drafted tokens
that were accepted; and how many answers differ from the system's own without drafts. Without vLLM only our engine is
measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import torch
import transformers

from chunkbench.server import smollm2
from chunkbench.server.engine import Engine, EngineOptions, Model, Request
from chunkbench.server.engine.model import load_module
from chunkbench.workloads.serving.servers.vllm import VLLM, vllm_variables

TEXTS = Path(__file__).parents[1] / "experiments" / "texts" / "edits.jsonl"
DRAFT_TOKENS, ROUNDS, MAX_TOKENS = 4, 2, 96
N_GRAMS = {
    "method": "ngram", "num_speculative_tokens": DRAFT_TOKENS, "prompt_lookup_max": 4, "prompt_lookup_min": 2,
}  # fmt: skip
_VLLM = """
import json, sys, time
from vllm import LLM, SamplingParams
told = json.loads(sys.stdin.readline())
engine = LLM(**told["engine"])
sampling = SamplingParams(temperature=0, max_tokens=told["max_tokens"])
def count(name):
    return sum(metric.value for metric in engine.get_metrics() if metric.name == f"vllm:spec_decode_num_{name}_tokens")
for line in sys.stdin:
    prompts, clients = json.loads(line)
    before = [count(name) for name in ("draft", "accepted")]
    began, tokens = time.perf_counter(), []
    for first in range(0, len(prompts), clients):
        asked = [{"prompt_token_ids": prompt} for prompt in prompts[first : first + clients]]
        tokens += [list(answer.outputs[0].token_ids) for answer in engine.generate(asked, sampling, use_tqdm=False)]
    took = time.perf_counter() - began
    drafted, accepted = (count(name) - old for name, old in zip(("draft", "accepted"), before))
    print("ANSWER " + json.dumps([took, tokens, drafted, accepted]), flush=True)
"""


class Answers(NamedTuple):
    seconds: float
    tokens: list[list[int]]
    drafted: float
    accepted: float


class System(Protocol):
    def ask(self, prompts: list[list[int]], clients: int) -> Answers: ...


class Ours:
    def __init__(self, model: Model, draft_tokens: int) -> None:
        self._engine = Engine(model, EngineOptions(kv_bytes=1 << 30, cache="radix", draft_tokens=draft_tokens))

    def ask(self, prompts: list[list[int]], clients: int) -> Answers:
        engine, made = self._engine, [list[int]() for _ in prompts]
        drafted = accepted = 0
        began = time.perf_counter()
        for first in range(0, len(prompts), clients):
            for number, prompt in enumerate(prompts[first : first + clients], first):
                engine.add(Request(str(number), prompt, MAX_TOKENS))
            while not engine.idle:
                report = engine.step()
                drafted, accepted = drafted + report.drafted, accepted + report.accepted
                for token in report.generated:
                    made[int(token.request)].append(token.token)
        return Answers(time.perf_counter() - began, made, drafted, accepted)


class InVllm:
    def __init__(self, plugins: str, drafts: bool) -> None:
        engine = {
            "model": str(smollm2.checkpoint()), "dtype": "float32", "block_size": 32, "max_model_len": 2048,
            "max_num_seqs": 32, "enforce_eager": True, "disable_log_stats": False,
            **({"speculative_config": N_GRAMS} if drafts else {}),
        }  # fmt: skip
        environment = os.environ | vllm_variables(torch.get_num_threads(), 2**30, plugins)
        environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
        self._process = subprocess.Popen(
            [str(VLLM.python), "-c", _VLLM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=environment,
        )  # fmt: skip
        self._tell({"engine": engine, "max_tokens": MAX_TOKENS})

    def ask(self, prompts: list[list[int]], clients: int) -> Answers:
        self._tell([prompts, clients])
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                return Answers(*json.loads(line.removeprefix("ANSWER ")))
        raise SystemExit("vLLM ended without an answer; start it by hand to see why: docs/vllm.md")

    def _tell(self, what: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)


def main() -> None:
    folder = smollm2.checkpoint()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [json.loads(line)["messages"] for line in TEXTS.read_text(encoding="utf-8").splitlines()]
    prompts = [
        list(tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False)) for one in messages
    ]
    model = Model(load_module(folder, torch.float32))
    systems: dict[str, tuple[System, System]] = {"our engine": (Ours(model, 0), Ours(model, DRAFT_TOKENS))}
    if VLLM.python is None:
        print("vLLM is missing: make vllm-environment")
    else:
        systems["vLLM"] = InVllm("", False), InVllm("", True)
        systems["our kernels in vLLM"] = InVllm("chunkbench", False), InVllm("chunkbench", True)
    for clients in map(int, sys.argv[1:] or ["1", "32"]):
        asked = (prompts * -(-clients // len(prompts)))[: max(clients, len(prompts))]
        rates: dict[tuple[str, bool], list[float]] = {}
        last: dict[tuple[str, bool], Answers] = {}
        for turn in range(ROUNDS + 1):  # the first one warms up, also the prefix caches
            for name, pair in systems.items():
                for drafts, system in enumerate(pair):
                    answers = last[name, bool(drafts)] = system.ask(asked, clients)
                    if turn:
                        rate = sum(map(len, answers.tokens)) / answers.seconds
                        rates.setdefault((name, bool(drafts)), []).append(rate)
        print(f"{clients} clients, {len(asked)} answers of at most {MAX_TOKENS} tokens")
        base = rates["our engine", False]
        for (name, drafts), own in rates.items():
            answers, plain = last[name, drafts], last[name, False]
            label = name + (", n-grams" if drafts else "")
            told = f"  {label:30} {median(own):6.1f} tokens/s, {_over(own, base)} of ours"
            if drafts:
                other = sum(one != two for one, two in zip(answers.tokens, plain.tokens, strict=True))
                share = answers.accepted / answers.drafted if answers.drafted else 0
                told += f", {_over(own, rates[name, False])} of its own without; {share:.0%} of {answers.drafted:.0f} "
                told += f"drafted tokens accepted, {other} answers differ"
            print(told, flush=True)


def _over(own: list[float], base: list[float]) -> str:
    each = [one / other for one, other in zip(own, base, strict=True)]
    return f"{median(each):.2f}x ({min(each):.2f} to {max(each):.2f})"


if __name__ == "__main__":
    main()
