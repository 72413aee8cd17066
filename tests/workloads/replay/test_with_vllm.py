"""The replay predicts the real vLLM: the cached tokens of every request, and the preemptions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from chunkbench.attention.text import TokenText
from chunkbench.server.scheduling import Rules
from chunkbench.traffic.replayed import ReplayRequest
from chunkbench.workloads.replay.managers.hashed import HashedBlocks
from chunkbench.workloads.replay.simulate import Replay, replay
from chunkbench.workloads.replay.step_time import Constant
from chunkbench.workloads.serving.servers.vllm import vllm_python
from tests.plugins.vllm.driving import drive, requests, write_model

pytestmark = pytest.mark.skipif(vllm_python() is None, reason="`make vllm-environment` installs vLLM")
pytest.importorskip("transformers")
BLOCK = 32


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_model(folder)
    return folder


def predict(sent: list[dict[str, Any]], answers: dict[str, Any], blocks: int, budget: int, batch: int) -> Replay:
    """The replay of what vLLM was asked, one second a step. What it answered tells the keys of generated blocks."""
    made = [
        ReplayRequest(
            request["at"],
            TokenText(
                [*request["prompt"], *answers[request["id"]]["tokens"]],
                len(request["prompt"]),
                len(request["prompt"]) + len(answers[request["id"]]["tokens"]),
            ),
        )
        for request in sent
    ]
    # One block of vLLM's is never used: its id stands for "none".
    manager = HashedBlocks(blocks - 1, BLOCK)
    rules = Rules(batch, budget, decode_in_budget=True, spare=False)
    return replay(made, manager, rules, Constant(1.0))


def asked(count: int, seed: int, together: int) -> list[dict[str, Any]]:
    """Random requests, none cancelled; `together` arrive at once, the next ones after these ended (0: as drawn)."""
    sent = requests(count, seed)
    for number, request in enumerate(sent):
        request["abort_after"] = None
        request["prompt"] = request["prompt"][:400]
        if together:
            request["at"] = number // together * 10_000
    return sent


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("together", "blocks", "budget"),
    [
        pytest.param(1, 30, 512, id="one at a time", marks=pytest.mark.slow),
        pytest.param(8, 30, 64, id="in batches", marks=pytest.mark.slow),
        pytest.param(0, 30, 100, id="preemption"),
        pytest.param(0, 100, 256, id="roomy", marks=pytest.mark.slow),
    ],
)
def test_cached_tokens_of_every_request(checkpoint: Path, together: int, blocks: int, budget: int) -> None:
    sent = asked(48, seed=together + blocks, together=together)
    limits = {"block_size": BLOCK, "num_gpu_blocks_override": blocks, "max_num_batched_tokens": budget}
    theirs = drive(checkpoint, sent, "", max_model_len=512, max_num_seqs=8, **limits)
    replayed = predict(sent, theirs["answers"], blocks, budget, 8)
    measured = [theirs["answers"][request["id"]]["cached"] for request in sent]
    assert [entry.cached_tokens for entry in replayed.requests] == measured
    assert replayed.preemptions == theirs["preempted"]
    assert sum(measured) > 0
    if blocks == 30 and together != 1:
        assert replayed.preemptions > 0


@pytest.mark.slow
def test_the_prediction_can_be_wrong(checkpoint: Path) -> None:
    """A cache of other size predicts other hits."""
    sent = asked(24, seed=3, together=1)
    limits = {"block_size": BLOCK, "num_gpu_blocks_override": 30, "max_num_batched_tokens": 512}
    theirs = drive(checkpoint, sent, "", max_model_len=512, max_num_seqs=8, **limits)
    measured = [theirs["answers"][request["id"]]["cached"] for request in sent]
    assert [e.cached_tokens for e in predict(sent, theirs["answers"], 30, 512, 8).requests] == measured
    assert [e.cached_tokens for e in predict(sent, theirs["answers"], 24, 512, 8).requests] != measured


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("blocks", "size"),
    [(20, 4), pytest.param(70, 1, marks=pytest.mark.slow), pytest.param(12, 8, marks=pytest.mark.slow)],
)
def test_vllms_own_block_manager(blocks: int, size: int) -> None:
    """Without a model: the same answers to random operations, block by block."""
    script = Path(__file__).with_name("vllm_block_manager.py")
    words = [str(vllm_python()), str(script), str(blocks), str(size), "20000", str(size)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["difference"] is None
    assert told["counts"].keys() == {
        "joined", "cached", "parts", "left", "appended", "refused", "refused parts", "refused appends",
    }  # fmt: skip
