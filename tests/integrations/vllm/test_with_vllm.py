"""The plug-in inside the real vLLM: its tokens are those of vLLM's own attention."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from chunkbench.serving.servers.vllm import vllm_python, vllm_variables

pytestmark = pytest.mark.skipif(vllm_python() is None, reason="`make vllm-environment` installs vLLM")
transformers = pytest.importorskip("transformers")

REQUESTS = int(os.environ.get("CHUNKBENCH_VLLM_REQUESTS", "60"))
"""`make nightly` sends 500."""
VOCABULARY = 300
DRIVE = Path(__file__).with_name("drive.py")
ROOT = Path(__file__).parents[3]
TIE = 1e-3
"""Where the two largest log-probabilities are closer than this, another order of sums may exchange the tokens."""
HALF_TIE = 0.1
"""The same in float16."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with grouped heads, whose weights are scaled up until attention decides the tokens."""
    import torch

    from tests.serving.engine.models import sharpen

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=192, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        num_hidden_layers=2, vocab_size=VOCABULARY, max_position_embeddings=2048, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    scales = {"embed_tokens": 50, "q_proj": 10, "k_proj": 10, "v_proj": 10, "o_proj": 10, "lm_head": 20}
    sharpen(model, scales)
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    return folder


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
        [str(vllm_python()), str(DRIVE)], input=json.dumps(told), capture_output=True, text=True, check=False,
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


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("budget", [16, 17, 64, 100, 256, 512])
def test_tokens_are_those_of_vllms_own_attention(checkpoint: Path, budget: int) -> None:
    """Chunked prefill by budgets of prompt tokens, prefix caching, and preemption on a cache of 20 blocks."""
    sent = requests(REQUESTS // 6, budget)
    limits = {"max_num_batched_tokens": budget, "num_gpu_blocks_override": 24}
    theirs = drive(checkpoint, sent, "", **limits)
    ours = drive(checkpoint, sent, "chunkbench", **limits)
    assert (theirs["attention"], ours["attention"]) == (["CPUAttentionBackendImpl"], ["ChunkImpl"])
    assert ties(sent, ours, theirs, TIE) <= max(1, len(sent) // 100)


@pytest.mark.timeout(1800)
def test_the_backend_for_gpus_inside_vllm(checkpoint: Path) -> None:
    """vLLM decodes with our Triton kernels, in the interpreter, on a cache that forces preemption."""
    pytest.importorskip("triton", reason="triton is not installed")
    sent = requests(16, seed=5)
    for request in sent:
        request["prompt"], request["at"] = request["prompt"][:400], request["at"] // 4
        request["max_tokens"] = min(request["max_tokens"], 12)
    limits = {"max_num_batched_tokens": 64, "dtype": "float16", "max_model_len": 512}
    theirs = drive(checkpoint, sent, "", **limits)
    ours = drive(checkpoint, sent, "", triton=True, block_size=16, num_gpu_blocks_override=40, **limits)
    assert ours["attention"] == ["ChunkTritonImpl"]
    assert ours["preempted"] > 0
    assert ties(sent, ours, theirs, HALF_TIE) <= len(sent) // 4


def ties(sent: list[dict[str, Any]], ours: dict[str, Any], theirs: dict[str, Any], tie: float) -> int:
    """Requests whose tokens differ from where vLLM's two largest log-probabilities are closer than `tie`. Raises
    AssertionError if they differ elsewhere."""
    found = 0
    for request in sent:
        mine, reference = (side["answers"][request["id"]] for side in (ours, theirs))
        wanted = min(request["max_tokens"], request["abort_after"] or request["max_tokens"])
        assert len(mine["tokens"]) == len(reference["tokens"]) == wanted
        first = next((n for n in range(wanted) if mine["tokens"][n] != reference["tokens"][n]), None)
        if first is not None:
            assert reference["gaps"][first] < tie, (request["id"], first, reference["gaps"][first])
            found += 1
    return found


@pytest.mark.timeout(600)
def test_bfloat16_is_no_further_from_float32_than_vllms_own_attention(checkpoint: Path) -> None:
    sent = [{**request, "max_tokens": 1, "abort_after": None} for request in requests(40, seed=9)]
    exact = drive(checkpoint, sent, "")["answers"]

    def distance(plugins: str) -> float:
        """Mean distance of the largest log-probabilities of an answer's first token."""
        answers = drive(checkpoint, sent, plugins, dtype="bfloat16")["answers"]
        pairs = [
            abs(answers[id]["first"][token] - logprob)
            for id, answer in exact.items()
            for token, logprob in answer["first"].items()
            if token in answers[id]["first"]
        ]
        assert len(pairs) > 10 * len(sent)
        return sum(pairs) / len(pairs)

    assert distance("chunkbench") <= 1.1 * distance("")
