"""Compares vLLM with and without our plug-in, and with and without drafts of n-grams (prompt look-up), on SmolLM2.

    python benchmarks/vllm_drafts.py [CLIENTS ...]        default: 1 8; needs `make serving` and `make vllm-environment`

The tasks are edits of short codes and texts (experiments/texts/edits.jsonl), whose answers repeat most of the prompt.
Four engines answer all tasks in turns, with CLIENTS requests at a time, greedily, in float32. Prints tokens per second
of each, the share of drafted tokens that were accepted, and how many answers differ from vLLM's own without drafts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from chunkbench.server import smollm2
from chunkbench.workloads.serving.servers.vllm import VLLM, vllm_variables

TEXTS = Path(__file__).parents[1] / "experiments" / "texts" / "edits.jsonl"
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
ROUNDS, MAX_TOKENS = 3, 160
SYSTEMS = {
    "vLLM": ("", None),
    "vLLM, n-grams": ("", DRAFTS),
    "ours in vLLM": ("chunkbench", None),
    "ours in vLLM, n-grams": ("chunkbench", DRAFTS),
}

_ENGINE = """
import json, sys, time
from vllm import LLM, SamplingParams
told = json.loads(sys.stdin.readline())
engine = LLM(**told["engine"])
sampling = SamplingParams(temperature=0, max_tokens=told["max_tokens"])
def count(name):
    return sum(metric.value for metric in engine.get_metrics() if metric.name == f"vllm:spec_decode_num_{name}_tokens")
for line in sys.stdin:
    messages, clients = json.loads(line)
    before = [count(name) for name in ("draft", "accepted")]
    began, tokens = time.perf_counter(), []
    for first in range(0, len(messages), clients):
        answers = engine.chat(messages[first : first + clients], sampling, use_tqdm=False)
        tokens += [list(answer.outputs[0].token_ids) for answer in answers]
    took = time.perf_counter() - began
    drafted, accepted = (count(name) - old for name, old in zip(("draft", "accepted"), before))
    print("ANSWER " + json.dumps([took, tokens, drafted, accepted]), flush=True)
"""


def start(plugins: str, drafts: dict[str, Any] | None) -> subprocess.Popen[str]:
    engine = {
        "model": str(smollm2.checkpoint()), "dtype": "float32", "block_size": 32, "max_model_len": 2048,
        "max_num_seqs": 32, "enforce_eager": True, "disable_log_stats": False,
    }  # fmt: skip
    if drafts is not None:
        engine["speculative_config"] = drafts
    environment = os.environ | vllm_variables(2, 2**30, plugins)
    environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    process = subprocess.Popen(
        [str(VLLM.python), "-c", _ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=environment,
    )  # fmt: skip
    assert process.stdin is not None
    print(json.dumps({"engine": engine, "max_tokens": MAX_TOKENS}), file=process.stdin, flush=True)
    return process


def ask(process: subprocess.Popen[str], messages: list[Any], clients: int) -> list[Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps([messages, clients]), file=process.stdin, flush=True)
    for line in process.stdout:
        if line.startswith("ANSWER "):
            answer: list[Any] = json.loads(line.removeprefix("ANSWER "))
            return answer
    raise SystemExit("vLLM ended without an answer; run it by hand to see why: docs/vllm.md")


def main() -> None:
    if VLLM.python is None:
        raise SystemExit("this needs vLLM: make vllm-environment")
    messages = [json.loads(line)["messages"] for line in TEXTS.read_text(encoding="utf-8").splitlines()]
    running = {name: start(*how) for name, how in SYSTEMS.items()}
    for clients in map(int, sys.argv[1:] or ["1", "8"]):
        rates: dict[str, list[float]] = {name: [] for name in SYSTEMS}
        seen: dict[str, list[Any]] = {}
        for turn in range(ROUNDS + 1):  # the first one warms up, also the prefix caches
            for name, process in running.items():
                took, tokens, drafted, accepted = ask(process, messages, clients)
                seen[name] = [tokens, drafted, accepted]
                if turn:
                    rates[name].append(sum(map(len, tokens)) / took)
        print(f"{clients} clients, {sum(map(len, seen['vLLM'][0]))} tokens of {len(messages)} answers")
        for name, (tokens, drafted, accepted) in seen.items():
            other = sum(one != reference for one, reference in zip(tokens, seen["vLLM"][0], strict=True))
            share = f", {accepted / drafted:.0%} of {drafted:.0f} drafted tokens accepted" if drafted else ""
            each = [rate / base for rate, base in zip(rates[name], rates["vLLM"], strict=True)]
            ratio = f"{median(each):.2f}x ({min(each):.2f} to {max(each):.2f}) of vLLM's"
            print(f"  {name:22} {median(rates[name]):6.1f} tokens/s, {ratio}, {other} other answers{share}")
    for process in running.values():
        process.kill()


if __name__ == "__main__":
    main()
