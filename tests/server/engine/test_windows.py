"""Models with sliding windows, soft-capping and sinks: greedy tokens against transformers, and what is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from chunkbench.attention import RaggedChunkAttention
from chunkbench.attention.heads import HeadStores
from chunkbench.attention.windows import HeadPolicy
from chunkbench.kernels import cpu
from chunkbench.server.engine import Engine, EngineOptions, Model, ModelError, Request
from chunkbench.server.engine.model import load_module, random_module
from tests.attention.conftest import one_thread as one_thread
from tests.server.engine.models import SCALES, SIZES, VOCABULARY, WINDOWED, answers_of, config, sharpen
from tests.server.engine.test_against_transformers import Pair

if cpu.native() is None:
    pytest.skip(cpu.why_missing(), allow_module_level=True)

CHUNK = 16


@pytest.fixture(scope="module", params=["llama-grouped", "qwen3", *WINDOWED])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(request.param, tmp_path_factory.mktemp(request.param))


def sharp_model(kind: str, window: int) -> Model:
    made = config(kind)
    made.sliding_window = window
    module = random_module(made, torch.float32)
    sharpen(module, SCALES)
    return Model(module)


@pytest.fixture(scope="module")
def gemma() -> Model:
    """Windows shorter than a chunk: a chunk lies before the window of its successor's last tokens, not of its first."""
    return sharp_model("gemma2", 12)


def forking_requests() -> dict[str, Request]:
    """16 prompts that are longer than the windows and fork from shared prefixes; some continue others."""
    chance = random.Random(3)

    def text(tokens: int) -> list[int]:
        return [chance.randrange(VOCABULARY) for _ in range(tokens)]

    system = text(70)
    branches = [system + text(50), system[:48] + text(40)]
    prompts = [chance.choice([system, *branches]) + text(chance.choice([1, 9, 30])) for _ in range(12)]
    prompts += [prompts[0] + text(20), prompts[1] + text(40), branches[0][:112], text(60)]
    return {f"r{n}": Request(f"r{n}", prompt, chance.randrange(4, 14)) for n, prompt in enumerate(prompts)}


def engine_of(model: Model, chunks: int = 100, **options: Any) -> Engine:
    """An engine with room for so many chunks of all layers."""
    return Engine(model, EngineOptions(kv_bytes=model.token_bytes() * CHUNK * chunks, chunk_size=CHUNK, **options))


def pool_of(engine: Engine) -> Any:
    store = engine._attention._store
    assert isinstance(store, HeadStores)
    return store.pool


@pytest.mark.parametrize("cache", ["live", "radix"])
def test_greedy_tokens_are_those_of_transformers(pair: Pair, cache: Any) -> None:
    """With shared prefixes, preemptions, and kept prefixes that are evicted and found again."""
    requests = forking_requests()
    engine = engine_of(pair.model, 18, prompt_budget=60, cache=cache)
    answers: dict[str, list[int]] = {name: [] for name in requests}
    waiting, found, preempted, step = list(requests.values()), set[str](), 0, 0
    while waiting or not engine.idle:
        if step % 2 == 0:
            for request in waiting[:4]:
                engine.add(request)
            del waiting[:4]
        if step % 9 == 8 and engine.running:
            # Windows lose chunks while sequences grow, so that few are preempted for lack of memory.
            engine._scheduler.put_back(engine._scheduler.running[-1])
            preempted += 1
        report = engine.step()
        assert report.kv_bytes <= engine.options.kv_bytes
        step += 1
        for made in report.generated:
            answers[made.request].append(made.token)
            found |= {made.request} if made.cached_tokens else set()
    compared = pair.compare(requests, answers)
    assert (compared.different, compared.ties) == (0, 0)
    assert compared.tokens == sum(request.max_tokens for request in requests.values())
    assert preempted > 3
    assert len(found) > 3
    evictable = engine._attention._tree.evictable
    assert evictable is None or evictable.evictions > 0
    assert pair.kind not in WINDOWED or pool_of(engine).changes > 10


def changed(module: Any, what: str) -> None:
    """Change one thing in transformers' model."""
    if what == "window":
        module.config.sliding_window += 1
    for layer in module.model.layers:
        if what == "sinks":
            torch.nn.init.constant_(layer.self_attn.sinks, -100)
        if what == "softcap":
            layer.self_attn.attn_logit_softcapping = None


@pytest.mark.parametrize(
    ("kind", "what"), [*((kind, "window") for kind in WINDOWED), ("gemma2", "softcap"), ("gpt-oss", "sinks")]
)
def test_control_each_of_them_decides_tokens(kind: str, what: str, tmp_path: Path) -> None:
    """A window of one token more, no soft-capping or no sinks: other tokens."""
    pair = Pair(kind, tmp_path)
    changed(pair.reference, what)
    requests = {name: replace(one, max_tokens=16) for name, one in list(forking_requests().items())[:6]}
    answers = answers_of(engine_of(pair.model), *requests.values())
    assert pair.compare(requests, answers).different > 1


def test_a_lost_prefix_is_computed_again_and_a_held_one_is_found() -> None:
    """Gemma 3's windows of 48 tokens: what is in full behind a prefix decides."""
    model = sharp_model("gemma3", 48)
    first = [n * 7 % VOCABULARY for n in range(200)]
    engine = engine_of(model, cache="radix")
    assert engine.step().batch == 0
    grown = [*first, *answers_of(engine, Request("a", first, 30))["a"]]
    assert engine.idle_kv_bytes < 0.7 * model.token_bytes() * 224
    for prompt, cached in ((first[:150], 0), ([*grown[:-1], 5], 224), (grown, 224)):
        request = Request("b", prompt, 8)
        assert engine._attention.cached_tokens(prompt) == cached
        assert answers_of(engine, request) == answers_of(engine_of(model), request)


def test_a_prompt_that_is_computed_again_reads_no_lost_chunks(gemma: Model) -> None:
    """Log-probabilities of a prompt need its first tokens, which windows of the same prefix have lost."""
    prompt = [n * 7 % VOCABULARY for n in range(160)]
    engine = engine_of(gemma, cache="radix")
    answers_of(engine, Request("a", prompt, 4))
    asked = Request("b", prompt, 3, prompt_logprobs=1)
    found = []
    for one in (engine, engine_of(gemma)):
        one.add(asked)
        while not one.idle:
            for made in one.step().generated:
                found.append(
                    (made.token, [None if of is None else round(of.chosen.logprob, 4) for of in made.prompt_logprobs])
                )
    assert found[:3] == found[3:]
    assert len(found[0][1]) == 160


def test_steps_that_fail_and_copies_change_no_answer(gemma: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of more than two sequences fail and are computed again in halves. Three answers fork from one prompt."""
    requests = list(forking_requests().values())[:8]
    twins = [replace(requests[0], id=f"twin {n}", max_tokens=40) for n in range(3)]
    expected = answers_of(engine_of(gemma), *requests, twins[0])
    compute = gemma.logits

    def logits(tokens: list[int], positions: list[int], *others: Any) -> torch.Tensor:
        if sum(after != before + 1 for before, after in pairwise(positions)) > 1:
            compute([0] * len(tokens), positions, *others)  # K and V of this step are wrong
            raise MemoryError
        return compute(tokens, positions, *others)

    monkeypatch.setattr(gemma, "logits", logits)
    engine = engine_of(gemma, prompt_budget=25)
    engine.add(*twins)
    answers = answers_of_all(engine, *requests)
    assert {name: answers[name] for name in expected} == expected
    assert answers["twin 1"] == answers["twin 2"] == answers["twin 0"]


def answers_of_all(engine: Engine, *requests: Request) -> dict[str, list[int]]:
    """The tokens of every request, also of those that were added before."""
    for request in requests:
        engine.add(request)
    answers: dict[str, list[int]] = {}
    while not engine.idle:
        report = engine.step()
        assert not report.failed
        for made in report.generated:
            answers.setdefault(made.request, []).append(made.token)
    return answers


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            "Qwen2",
            {"layer_types": ["full_attention", "linear_attention"]},
            "layer_types is set: .* no linear_attention",
        ),
        ("Llama4Text", {"num_attention_heads": 4}, "layer_types is set: .* no chunked_attention"),
        ("Llama", {"sliding_window": 8}, "sliding_window is 8: .* LlamaConfig has no such field"),
        ("Gemma2", {"sliding_window": None}, "sliding_window is missing: all windows"),
        ("Gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("Llama", {"head_dim": 24}, "head_dim is 24"),
        ("Gemma3", {}, "text_config is set"),
        ("T5", {}, "is_encoder_decoder is True"),
        ("Gemma3nText", {}, "num_kv_shared_layers is 15"),
        ("Gemma4Text", {}, "per_layer_attributes is set: its layers differ in size"),
        ("DeepseekV3", {}, "kv_lora_rank is 512"),
        ("Bert", {}, "is_decoder is False"),
        ("Mpt", {}, "model_type is 'mpt'"),
    ],
)
def test_what_cannot_run_is_refused_before_weights_load(
    kind: str, options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = getattr(transformers, f"{kind}Config")(**(SIZES | options if options else {}))
    made.save_pretrained(tmp_path)
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("loads weights")
    )
    with pytest.raises(ModelError, match=message):
        load_module(tmp_path, torch.float32)


def test_windows_need_the_native_kernel_and_no_other_policy(
    gemma: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="heads: this model's sliding windows"):
        engine_of(gemma, policy=HeadPolicy(((True, True),) * 3))
    with pytest.raises(ValueError, match="exact windows: PyTorch's kernel cannot"):
        RaggedChunkAttention(3, 4, 32, 2, policy=gemma.policy, kernel="torch")
    cache = RaggedChunkAttention(3, 4, 32, 2)
    with pytest.raises(ModelError, match="made for a model with other sliding windows"):
        gemma.logits([1], [0], [0], cache)
    monkeypatch.setattr(cpu, "_load", lambda: (None, "it is not built"))
    with pytest.raises(
        ModelError, match="sliding_window is 31: only the native kernel can do this, and it is not built"
    ):
        random_module(config("gemma2"), torch.float32)
