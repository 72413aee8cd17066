"""The small trained model: its checkpoint, and greedy answers of the engine as recorded text."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import MISSING

if MISSING:
    pytest.skip(f"{', '.join(MISSING)} is not installed", allow_module_level=True)

import torch
import transformers
from click.testing import CliRunner

from chunkbench.cli.main import cli
from chunkbench.llama import SHAPES, shape_of
from chunkbench.pins import SMOLLM2_INSTALL
from chunkbench.server import smollm2
from chunkbench.server.build import ModelChoice, build_backend
from chunkbench.server.engine import Engine, EngineOptions, Model, Request
from chunkbench.server.engine.model import ModelNumbers, load_module
from chunkbench.traffic import Prompts, draw_prompts, read_texts, text_ids
from tests.server.engine.models import answers_of

try:
    smollm2._source()
except smollm2.ModelMissing as error:
    pytest.skip(str(error), allow_module_level=True)

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
    return smollm2.checkpoint()


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
    [(16, 64, 8), pytest.param(500, 256, 32, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])],
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
    options = EngineOptions(kv_bytes=40 * chunk * model.token_bytes, chunk_size=chunk, cache="radix")
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


def test_a_missing_or_damaged_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").write_bytes(b"damaged")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "_source", lambda: tmp_path / "file")
    with pytest.raises(smollm2.ModelMissing, match="damaged or another version"):
        smollm2.checkpoint()
    assert not list((tmp_path / "cache").rglob("unfinished-*"))
    monkeypatch.undo()

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(smollm2, "distribution", missing)
    with pytest.raises(smollm2.ModelMissing, match=SMOLLM2_INSTALL):
        smollm2.checkpoint()


def test_servers_say_what_its_weights_are(folder: Path) -> None:
    told = "4-bit, dequantised"
    for choice, expected in ((folder, told), (folder / "config.json", None)):  # the latter has random weights
        said: list[str] = []
        options = EngineOptions(kv_bytes=4 << 20)
        backend, _ = build_backend(ModelChoice(str(choice), torch.bfloat16), "chunk", options, said.append)
        assert backend.facts().get("weights") == expected
        assert said.count(f"{smollm2.NAME}: weights: {told}") == bool(expected)


EXPERIMENT = """
kind: serving
implementations: [chunk_llama, chunk_llama_no_sharing]
budget: 10h
requests: 1
arrival_seeds: 2
defaults: {model: smollm2-135m, n_p: 64, n_c: 4, batch_size: 2, n_s: 0, rate: 600}
sweep: [{}]
"""


@pytest.mark.slow
def test_a_report_says_once_what_its_weights_are(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "real.yaml").write_text(EXPERIMENT)
    told = CliRunner().invoke(cli, ["run", str(tmp_path / "real.yaml"), "--out", str(tmp_path / "run"), "--detail"])
    assert told.exit_code == 0, told.output
    report = CliRunner().invoke(cli, ["report", str(tmp_path / "run"), "--detail"]).output
    assert report.count("weights: 4-bit, dequantised") == 1
    assert (tmp_path / "run" / "cases.jsonl").read_text().count('"weights":"4-bit, dequantised"') == 4  # rows, servers


@pytest.mark.slow
def test_two_processes_make_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = [sys.executable, "-c", "from chunkbench.server.smollm2 import checkpoint; print(checkpoint())"]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    (made,) = {one.communicate(timeout=300)[0].strip() for one in both}
    assert {path.name for path in Path(made).parent.iterdir()} == {smollm2.NAME}
    digests = [hashlib.sha256((one / "model.safetensors").read_bytes()).digest() for one in (Path(made), folder)]
    assert digests[0] == digests[1]


def test_without_a_home_the_message_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(smollm2.ModelMissing, match="HOME is not set"):
        smollm2.checkpoint()
