"""Models that are found and served: retrieval heads, SmolLM2."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from chunkbench.llama import SHAPES, shape_of
from chunkbench.pins import SMOLLM2_INSTALL
from chunkbench.server import smollm2
from chunkbench.server.build import ModelChoice, build_backend
from chunkbench.server.engine import Engine, EngineOptions, Model, Request
from chunkbench.server.engine.beams import BeamOptions
from chunkbench.server.engine.model import ModelNumbers, load_module
from chunkbench.server.find_heads import INTERFACE, find_heads, tokens_for
from chunkbench.server.heads import HeadScores, HeadsError, read_heads
from chunkbench.traffic import Prompts, draw_prompts, read_texts, text_ids
from tests.server.engine.models import answers_of, run_groups

ANSWERS = {
    "What is the capital of France?": "The capital of France is Paris.<|im_end|>",
    "Write a haiku about snow.": "Snow, a fleeting beauty, a fleeting beauty,",
    "What is 12345 + 1?": "12345 is a number that can be expressed as",
}


TIE = 5e-4
"""Two logits that differ by less may change places. In float32 a logit of the engine is at most 1e-4 from that of
transformers (measured at 256 steps of real text, logits over a range of 60), so two of them move by 2e-4 against each
other. The two best logits of these steps were never closer than 1e-3."""


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return smollm2.checkpoint()
    except smollm2.ModelMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return Model(load_module(folder, torch.float32))


def test_greedy_answers_are_the_recorded_ones(folder: Path, model: Model) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    requests = [
        Request(question, chat_ids(tokenizer, question), max_tokens=len(tokenizer(answer)["input_ids"]))
        for question, answer in ANSWERS.items()
    ]
    answers = answers_of(Engine(model, EngineOptions(kv_bytes=64 << 20)), *requests)
    assert {question: tokenizer.decode(ids) for question, ids in answers.items()} == ANSWERS


@pytest.mark.parametrize(
    ("count", "n_p", "n_c"),
    [(12, 32, 6), pytest.param(500, 256, 32, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])],
    ids=["few", "many"],
)
def test_answers_are_those_of_transformers(folder: Path, model: Model, count: int, n_p: int, n_c: int) -> None:
    """Requests of real text arrive at random steps. Each prompt is asked four times, and half of it is shared with
    other prompts. The memory for K/V holds two prompts and their answers, so some requests are preempted."""
    texts = text_ids(read_texts("questions"), folder / "tokenizer.json")
    prompts = draw_prompts(Prompts(n_p, n_p // 2, max(2, count // 25)), count // 4, 0, "equal answers", texts)
    chance = random.Random(0)
    requests = [Request(str(number), prompts[number // 4], n_c) for number in range(count)]
    chunk = n_p // 16
    options = EngineOptions(kv_bytes=40 * chunk * model.token_bytes(), chunk_size=chunk, cache="radix")
    engine = Engine(model, options)
    answers: dict[str, list[int]] = {request.id: [] for request in requests}
    cached: dict[str, int] = {}
    preempted = 0
    while requests or not engine.idle:
        while requests and chance.random() < 0.9:
            engine.add(requests.pop(0))
        report = engine.step()
        preempted += report.preempted
        for made in report.generated:
            answers[made.request].append(made.token)
            cached.setdefault(made.request, made.cached_tokens or 0)
    assert preempted > count // 16
    assert sum(tokens >= n_p // 2 for tokens in cached.values()) > count // 2
    reference = Reference(folder)
    expected = [
        answer for first in range(0, len(prompts), 50) for answer in reference.answers(prompts[first:][:50], n_c)
    ]
    for number, answer in answers.items():
        reference.compare(prompts[int(number) // 4], answer, expected[int(number) // 4])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_beams_are_those_of_transformers(folder: Path, model: Model) -> None:
    """Thirty prompts of real text, 2 to 4 beams, 16 tokens. Where sums of log-probabilities are nearly equal, other
    beams may win, but none with a lower sum."""
    texts = text_ids(read_texts("questions"), folder / "tokenizer.json")
    prompts = draw_prompts(Prompts(48), 30, 0, "beams", texts)
    reference = Reference(folder)
    different = 0
    for number, prompt in enumerate(prompts):
        width = 2 + number % 3
        group = [Request(f"{n}", prompt, 16, beams=BeamOptions()) for n in range(width)]
        answers, _ = run_groups(Engine(model, EngineOptions(kv_bytes=64 << 20)), [group])
        expected = reference.beams(prompt, 16, width)
        if [*answers.values()] != expected:
            different += 1
            for answer, other in zip(answers.values(), expected, strict=True):
                assert reference.mean(prompt, answer) == pytest.approx(reference.mean(prompt, other), abs=TIE)
    assert different <= 3


class Reference:
    """The model in transformers."""

    def __init__(self, folder: Path) -> None:
        self._module = load_module(folder, torch.float32, "sdpa").eval()

    def answers(self, prompts: Sequence[Sequence[int]], n_c: int) -> list[list[int]]:
        """What `generate` answers to prompts of one length, each up to its end of sequence."""
        ids = torch.tensor(prompts)
        made = self._module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n_c, do_sample=False)
        (end,) = ModelNumbers(self._module).eos_ids
        rows: list[list[int]] = made[:, ids.shape[1] :].tolist()
        return [row[: row.index(end) + 1] if end in row else row for row in rows]

    def beams(self, prompt: Sequence[int], n_c: int, width: int) -> list[list[int]]:
        """All answers of a beam search, each up to its end of sequence."""
        (end,) = ModelNumbers(self._module).eos_ids
        ids = torch.tensor([prompt])
        made = self._module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n_c,
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
        )
        rows: list[list[int]] = made[:, len(prompt) :].tolist()
        return [row[: row.index(end) + 1] if end in row else row for row in rows]

    @torch.inference_mode()
    def mean(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """Mean log-probability of the answer's tokens."""
        logits = self._module(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        return float(logits.log_softmax(-1)[range(len(answer)), list(answer)].mean())

    @torch.inference_mode()
    def compare(self, prompt: Sequence[int], answer: list[int], expected: list[int]) -> None:
        """Answers must be equal up to a near tie."""
        if answer == expected:
            return
        place = next(n for n, (one, other) in enumerate(zip_longest(answer, expected)) if one != other)
        best = self._module(torch.tensor([[*prompt, *expected[:place]]])).logits[0, -1].topk(2)
        assert set(best.indices.tolist()) == {*answer[place : place + 1], *expected[place : place + 1]}
        assert best.values[0] - best.values[1] < TIE


def chat_ids(tokenizer: Any, question: str) -> list[int]:
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids


def test_its_shape_and_its_vocabulary(folder: Path) -> None:
    shape = shape_of(str(folder))
    known = SHAPES[smollm2.NAME]
    assert shape.folder == str(folder)
    assert shape.model_copy(update={"name": known.name, "folder": ""}) == known
    assert "folder" not in shape.model_dump()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "Digits 2026, bytes \x00é🙂 and\n\n  spaces.<|im_end|>"
    assert tokenizer.decode(tokenizer(text)["input_ids"], clean_up_tokenization_spaces=False) == text
    assert tokenizer("12")["input_ids"] == [33, 34]
    assert smollm2.checkpoint_of(known) == folder
    assert smollm2.checkpoint_of(SHAPES["small-llama"]) is None


CHILD = """
from chunkbench.server.smollm2 import ModelMissing, checkpoint

try:
    print(checkpoint())
except ModelMissing as error:
    print(error)
"""
HOMELESS = "import os\nos.path.expanduser = lambda path: path"
UNINSTALLED = """
import importlib.metadata

def distribution(name):
    raise importlib.metadata.PackageNotFoundError(name)

importlib.metadata.distribution = distribution
"""


def checkpoint_of_child(script: str = "", **environment: str) -> subprocess.Popen[str]:
    """A process that makes a checkpoint, and prints where or why not."""
    words = [sys.executable, "-c", script + CHILD]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | environment)


@pytest.mark.parametrize(("script", "message"), [(HOMELESS, "HOME is not set"), (UNINSTALLED, SMOLLM2_INSTALL)])
def test_without_a_home_or_a_package_the_message_says_so(folder: Path, script: str, message: str) -> None:
    assert message in checkpoint_of_child(script, XDG_CACHE_HOME="").communicate(timeout=60)[0]


def test_a_damaged_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"damaged")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "source", lambda: tmp_path / "file")
    with pytest.raises(smollm2.ModelMissing, match="damaged or another version"):
        smollm2.checkpoint()
    assert not list((tmp_path / "cache").rglob("unfinished-*"))


@pytest.mark.slow
def test_two_processes_make_one_checkpoint(tmp_path: Path, folder: Path) -> None:
    both = [checkpoint_of_child(XDG_CACHE_HOME=str(tmp_path)) for _ in range(2)]
    (made,) = {one.communicate(timeout=300)[0].strip() for one in both}
    assert {path.name for path in Path(made).parent.iterdir()} == {smollm2.NAME}
    digests = [hashlib.sha256((one / "model.safetensors").read_bytes()).digest() for one in (Path(made), folder)]
    assert digests[0] == digests[1]


def test_servers_say_what_its_weights_are(folder: Path) -> None:
    told = "4-bit, dequantised"
    for choice, expected in ((folder, told), (folder / "config.json", None)):  # the latter has random weights
        said: list[str] = []
        options = EngineOptions(kv_bytes=4 << 20)
        backend, _ = build_backend(ModelChoice(str(choice), torch.bfloat16), "chunk", options, said.append)
        assert backend.facts().get("weights") == expected
        assert said.count(f"{smollm2.NAME}: weights: {told} to bfloat16") == bool(expected)


WIDTH, HEAD_DIM, WORD = 128, 64, 32
TOKEN, BEFORE, ALWAYS = slice(0, WORD), slice(WORD, 2 * WORD), 2 * WORD
"""Parts of the residual stream: the token, what the first layer writes of the token before it, and a constant."""


def model_with_known_heads() -> torch.nn.Module:
    """Attention only. Layer 0: a head looks at the token before its own, the other one at everything alike.

    Layer 1: an induction head compares its token with the token before each position; an echo head compares tokens.
    """
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=HEAD_DIM,
        vocab_size=4096,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},  # most pairs of dimensions do not turn
        rms_norm_eps=1e-9,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=INTERFACE).eval()
    for weight in model.parameters():
        weight.data.zero_()
    words = torch.randn(config.vocab_size, WORD)
    table = model.model.embed_tokens.weight.data
    table[:, TOKEN] = words / words.norm(dim=1, keepdim=True)
    table[:, ALWAYS] = 1
    # Dimensions i and i + 32 of a head turn together; those from 16 on hardly turn: there content is compared.
    content = [*range(16, 32), *range(48, 64)]
    for layer in model.model.layers:
        layer.input_layernorm.weight.data.fill_(1)
        layer.post_attention_layernorm.weight.data.fill_(1)
    model.model.norm.weight.data.fill_(1)
    first, second = (layer.self_attn for layer in model.model.layers)
    for i in range(32):
        angle = 1e12 ** (-i / 32)
        first.k_proj.weight.data[i, ALWAYS] = 4
        first.q_proj.weight.data[i, ALWAYS] = 4 * math.cos(angle)
        first.q_proj.weight.data[32 + i, ALWAYS] = -4 * math.sin(angle)  # turned back by one position
    first.v_proj.weight.data[:WORD, TOKEN] = torch.eye(WORD)
    first.o_proj.weight.data[BEFORE, :WORD] = torch.eye(WORD)
    for head, part in ((0, BEFORE), (1, TOKEN)):
        rows = torch.tensor(content) + head * HEAD_DIM
        second.q_proj.weight.data[rows, TOKEN] = 4 * torch.eye(WORD)
        second.k_proj.weight.data[rows, part] = 4 * torch.eye(WORD)
    return model


def test_known_heads_are_found() -> None:
    shares: list[float] = []
    scores = find_heads(model_with_known_heads(), "by hand", 30, advance=shares.append)
    induction, echo = torch.tensor(scores.induction), torch.tensor(scores.echo)
    assert induction[1, 0] > 0.9 > 0.2 > max(induction[0, 0], induction[0, 1], induction[1, 1])
    assert echo[1, 1] > 0.3 > 0.2 > max(echo[0, 0], echo[0, 1], echo[1, 0])
    assert scores.retrieval_heads() == ((False, False), (True, True))
    assert scores.retrieval_heads(echo=False) == ((False, False), (True, False))
    assert shares == [0.5, 1.0]


def test_shares_are_rounded_up_and_a_kv_head_is_its_best_query_head() -> None:
    layers, heads = 10, 6
    induction = tuple(tuple(0.01 * (layer * heads + head) for head in range(heads)) for layer in range(layers))
    echo = tuple(tuple(1.0 if (layer, head) == (0, 3) else 0.0 for head in range(heads)) for layer in range(layers))
    scores = HeadScores(model="m", tokens=8, kv_heads=2, echo=echo, induction=induction)
    full = scores.retrieval_heads()  # of 20 KV heads: 3 by induction, 1 by echo
    assert [(layer, head) for layer in range(layers) for head in range(2) if full[layer][head]] == [
        *((0, 1), (8, 1)),
        *((9, 0), (9, 1)),
    ]
    assert scores.of_kv_heads(induction)[9] == pytest.approx((0.56, 0.59))


def test_a_file_of_scores_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "heads.json"
    scores = find_heads(model_with_known_heads(), "by hand", 30)
    path.write_text(scores.as_json())
    assert read_heads(path) == scores
    assert json.loads(path.read_text())["retrieval"] == [[1, 0], [1, 1]]
    policy = read_heads(path).policy(window=128)
    assert (policy.full, policy.window, policy.compress) == (((False, False), (True, True)), 128, "own")


def test_scores_of_another_model_are_refused() -> None:
    assert (tokens_for(8192), tokens_for(100_000)) == (2048, 2500)  # as many as there are positions
    scores = HeadScores(model="m", tokens=8, kv_heads=2, echo=((0.1, 0.2),), induction=((0.1, 0.2),))
    scores.check(Path("heads.json"), 1, 2, 2)
    for other in ((2, 2, 2), (1, 4, 2), (1, 2, 1)):
        with pytest.raises(
            HeadsError, match=r"heads\.json: is for m, with 1 layers of 2 heads.*this model.*find-heads"
        ):
            scores.check(Path("heads.json"), *other)


GOOD = HeadScores(
    model="m", tokens=8, kv_heads=2, echo=((0.1, 0.2), (0.3, 0.4)), induction=((0.1, 0.2), (0.3, 0.4))
).as_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a file of scores of heads"),
        ('{"echo": [[NaN]]}', "NaN is "),
        ('{"model": "m"}', "tokens: Field required"),
        ('{"model": "m", "tokens": 1, "kv_heads": 1, "echo": [["x"]], "induction": []}', "echo.0.0"),
        ({"kv_heads": 0}, "kv_heads: .*greater than 0"),
        ({"kv_heads": 3}, "kv_heads: 3 does not divide the number of heads"),
        ({"echo": [[], []], "induction": [[], []]}, "must have one score for each head"),
        ({"induction": [[0.1, 0.2]]}, "must have one score for each head"),
        ({"retrieval": [[1, 1], [0, 0], [0, 1]]}, "retrieval: does not agree with the scores"),
    ],
)
def test_scores_that_no_search_wrote_are_refused(
    tmp_path: Path, text: str | dict[str, object] | None, message: str
) -> None:
    path = tmp_path / "heads.json"
    if text is not None:
        path.write_text(text if isinstance(text, str) else json.dumps(json.loads(GOOD) | text))
    with pytest.raises(HeadsError, match=rf"heads\.json: .*{message}"):
        read_heads(path)
