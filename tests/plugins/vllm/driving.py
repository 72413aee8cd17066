"""What tests of the real vLLM share: a small model, random requests, and a process that answers them."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

from chunkbench.workloads.serving.servers.vllm import VLLM, vllm_variables

VOCABULARY = 300
DRIVE = Path(__file__).with_name("drive.py")
ROOT = Path(__file__).parents[3]


def write_model(folder: Path) -> None:
    """A small Llama with grouped heads, whose weights are scaled up until attention decides the tokens."""
    import torch
    import transformers

    from tests.server.engine.models import sharpen

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=192, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        num_hidden_layers=2, vocab_size=VOCABULARY, max_position_embeddings=2048, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    scales = {"embed_tokens": 50, "q_proj": 10, "k_proj": 10, "v_proj": 10, "o_proj": 10, "lm_head": 20}
    sharpen(model, scales)
    model.save_pretrained(folder)


def drive(
    checkpoint: Path, requests: list[dict[str, Any]], plugins: str, triton: bool = False, **engine: Any
) -> dict[str, Any]:
    """What `drive.py` prints; `triton`: with the backend for GPUs, in Triton's interpreter. Raises AssertionError with
    the last lines of vLLM's output."""
    arguments = {
        "model": str(checkpoint), "skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32",
        "block_size": 64, "max_model_len": 1024, "max_num_seqs": 8, "num_gpu_blocks_override": 200,
        "enable_prefix_caching": True, "disable_log_stats": False, **engine,
    }  # fmt: skip
    one_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment = os.environ | vllm_variables(2, 2**30, plugins) | one_process
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"} if triton else {}
    told = {"engine": arguments, "requests": requests, "triton": triton}
    done = subprocess.run(
        [str(VLLM.python), str(DRIVE)], input=json.dumps(told), capture_output=True, text=True, check=False,
        env=environment, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    """Random arrivals; prompts that share a system prompt, fork from others, or share nothing; some are cancelled."""
    chance = random.Random(seed)
    systems = [[chance.randrange(VOCABULARY) for _ in range(length)] for length in (64, 150, 300)]
    made: list[dict[str, Any]] = []
    at = 0
    for number in range(count):
        at += chance.choice([0, 0, 1, 3, 6])
        base = chance.choice([[], *systems, made[-1]["prompt"] if made else []])
        if chance.random() < 0.3:
            base = base[: chance.randrange(len(base) + 1)]
        prompt = (base + [chance.randrange(VOCABULARY) for _ in range(chance.choice([1, 5, 40, 100]))])[:800]
        cut = chance.randrange(1, 20) if chance.random() < 0.1 else None
        tokens = chance.randrange(1, 60)
        made.append({"id": f"r{number}", "prompt": prompt, "max_tokens": tokens, "at": at, "abort_after": cut})
    return made
