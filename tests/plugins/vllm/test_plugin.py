"""When the plug-in takes part, what it says when it cannot, and that vLLM's tokens stay those of its own attention."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from chunkbench.kernels import cpu
from chunkbench.plugins.vllm import plugin, register
from chunkbench.workloads.serving.servers.vllm import VLLM
from tests.plugins.vllm.driving import drive, requests, write_model


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets a version of vLLM be installed, as far as its metadata say so."""

    def install(version: str) -> None:
        (tmp_path / f"vllm-{version}.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        (tmp_path / f"vllm-{version}.dist-info" / "METADATA").write_text(metadata)
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_vllm_finds_it_by_its_entry_point() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name=plugin.NAME)
    assert found.load() is register


@pytest.mark.parametrize("named", ["", "other", "chunkbench2", "other,chunkbench"])
def test_it_does_nothing_unless_it_is_named_and_refuses_a_version_that_does_not_fit(
    named: str, vllm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm("0.33.1")
    monkeypatch.setenv("VLLM_PLUGINS", named)
    if named != "other,chunkbench":
        register()
        return
    with pytest.raises(RuntimeError, match=r"chunkbench \S+ fits vLLM 0.32; this is vLLM 0.33.1"):
        register()


@pytest.mark.parametrize("version", ["0.3.2", "0.320.1", "0.32.0"])
def test_why_not(version: str, vllm: Callable[[str], None]) -> None:
    with mock.patch.object(plugin, "vllm_version", return_value=None):
        assert "not installed" in plugin.why_not("cpu")
    vllm(version)
    assert plugin.why_not("cpu").endswith(cpu.why_missing() if version == "0.32.0" else f"this is vLLM {version}")
    if version == "0.32.0" and not torch.cuda.is_available():
        assert "no NVIDIA GPU" in plugin.why_not("cuda")


in_vllm = pytest.mark.skipif(VLLM.python is None, reason="`make vllm-environment` installs vLLM")
TIE = 1e-3
"""Where the two largest log-probabilities are closer than this, another order of sums may exchange the tokens."""
HALF_TIE = 0.1
"""The same in float16."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("llama")
    write_model(folder)
    return folder


@in_vllm
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("budget", "count"),
    [(64, 10), *(pytest.param(budget, 83, marks=pytest.mark.slow) for budget in (16, 17, 64, 100, 256, 512))],
)
def test_tokens_are_those_of_vllms_own_attention(checkpoint: Path, budget: int, count: int) -> None:
    """Chunked prefill by budgets of prompt tokens, prefix caching, and preemption on a cache of 20 blocks."""
    sent = requests(count, budget)
    limits = {"max_num_batched_tokens": budget, "num_gpu_blocks_override": 24}
    theirs = drive(checkpoint, sent, "", **limits)
    ours = drive(checkpoint, sent, "chunkbench", **limits)
    assert (theirs["attention"], ours["attention"]) == (["CPUAttentionBackendImpl"], ["ChunkImpl"])
    assert ties(sent, ours, theirs, TIE) <= max(1, len(sent) // 100)


@in_vllm
@pytest.mark.slow
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


NGRAMS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@in_vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("triton", [False, True], ids=["cpu", "triton"])
def test_answers_with_drafts_are_those_without(checkpoint: Path, triton: bool) -> None:
    """vLLM drafts by looking n-grams up in the prompt. Most drafts of this model are wrong, so tokens are rejected."""
    sent = requests(24, seed=6)
    for request in sent:
        request["prompt"], request["at"] = request["prompt"][:300], request["at"] // 4
        request["max_tokens"] = min(request["max_tokens"], 24)
    limits = {"max_num_batched_tokens": 64, "dtype": "float16" if triton else "float32", "max_model_len": 512}
    theirs = drive(checkpoint, sent, "", **limits)
    plugin = {"plugins": "" if triton else "chunkbench", "triton": triton, "block_size": 16 if triton else 64}
    ours = drive(checkpoint, sent, **plugin, **limits, speculative_config=NGRAMS)
    assert ours["attention"] == ["ChunkTritonImpl" if triton else "ChunkImpl"]
    assert 0 < ours["accepted"] < ours["drafted"]
    assert ties(sent, ours, theirs, HALF_TIE if triton else TIE) <= len(sent) // 4


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


@in_vllm
@pytest.mark.slow
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
