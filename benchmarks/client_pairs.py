"""Our client against `vllm bench serve`, on the same server, in alternating pairs.

Both clients send the same number of requests of the same sizes at the same rate to one `chunkbench serve`. The server
writes down how long it had each request (from its body's arrival to its last token). The mean of (latency at the
client - time in the server) is what client and connection add; the two clients should agree to 3% of the mean latency.
Run it with `python benchmarks/client_pairs.py`; `make vllm-environment` installs vLLM's client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from chunkbench.serving.load import LoadOptions, describe_server, send
from chunkbench.serving.servers.vllm import vllm_python
from chunkbench.traces import Arrivals, PlannedRequest, Prompts, draw_prompts, due_times

VOCABULARY = 2048
REQUESTS, RATE, N_P, N_C = 64, 8.0, 128, 32


def write_checkpoint(folder: Path) -> None:
    """A small model with a tokenizer of whole words, so that text of n words is n tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=8,
        head_dim=128, vocab_size=VOCABULARY, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def latencies_of_ours(url: str, seed: int) -> list[float]:
    """Latencies of our client, in seconds."""
    prompts = draw_prompts(Prompts(N_P), REQUESTS, VOCABULARY, f"pair {seed}")
    dues = due_times(Arrivals(), RATE, REQUESTS, f"pair {seed}")
    plan = [PlannedRequest(due, prompt, N_C) for due, prompt in zip(dues, prompts, strict=True)]

    async def run() -> list[float]:
        measured = await send(await describe_server(url), plan, LoadOptions())
        assert all(request.status == "ok" for request in measured.requests), measured.requests
        return [(request.last or 0.0) - (request.sent or 0.0) for request in measured.requests]

    return asyncio.run(run())


def latencies_of_vllm(url: str, checkpoint: Path, seed: int) -> list[float]:
    """Latencies of `vllm bench serve`, in seconds."""
    result = checkpoint / f"result-{seed}.json"
    subprocess.run(
        [
            str(vllm_python()), str(Path(__file__).with_name("vllm_bench_serve.py")), "--backend", "openai",
            "--base-url", url, "--model", str(checkpoint), "--served-model-name", "small",
            "--dataset-name", "random", "--random-input-len", str(N_P), "--random-output-len", str(N_C),
            "--request-rate", str(RATE), "--num-prompts", str(REQUESTS), "--seed", str(seed), "--ignore-eos",
            "--temperature", "0", "--disable-tqdm", "--save-result", "--save-detailed",
            "--result-filename", str(result),
        ],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    facts = json.loads(result.read_text())
    assert facts["completed"] == REQUESTS, facts
    return [first + sum(gaps) for first, gaps in zip(facts["ttfts"], facts["itls"], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder / "model")
        command = [sys.executable, "-m", "chunkbench", "serve", str(folder / "model"), "--served-name", "small"]
        options = ["--kv-memory", "1GiB", "--port", "0", "--log", str(folder / "log")]
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                found = re.search(r"http://\S+(?=/v1)", server.stdout.readline())
                assert found, "the server did not start"
                measure(found[0], folder, pairs)
            finally:
                server.terminate()


def measure(url: str, folder: Path, pairs: int) -> None:
    """Measure the pairs and print them."""
    log = folder / "log" / "requests.jsonl"
    added: dict[str, list[float]] = {"ours": [], "vllm": []}
    whole: list[float] = []
    latencies_of_ours(url, -1)  # warm-up
    for pair in range(pairs):
        for client in ("ours", "vllm") if pair % 2 == 0 else ("vllm", "ours"):
            before = len(log.read_text().splitlines())
            ours = client == "ours"
            seen = latencies_of_ours(url, pair) if ours else latencies_of_vllm(url, folder / "model", pair)
            lines = [json.loads(line) for line in log.read_text().splitlines()[before:]]
            # `vllm bench serve` sends a request before the measurement, to see whether the server answers.
            own = [line["last"] - line["received"] for line in lines][-REQUESTS:]
            added[client].append(statistics.fmean(seen) - statistics.fmean(own))
            whole.append(statistics.fmean(seen))
        print(
            f"pair {pair + 1}: added by ours {added['ours'][-1] * 1e3:.2f} ms, "
            f"by vllm bench serve {added['vllm'][-1] * 1e3:.2f} ms; "
            f"mean latency {whole[-2] * 1e3:.1f} and {whole[-1] * 1e3:.1f} ms",
            flush=True,
        )
    difference = statistics.fmean(added["ours"]) - statistics.fmean(added["vllm"])
    share = difference / statistics.fmean(whole)
    print(f"ours - vllm bench serve: {difference * 1e3:+.2f} ms, {share:+.2%} of the mean latency (bar 3%)")


if __name__ == "__main__":
    main()
