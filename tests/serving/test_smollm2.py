"""The small trained model: its checkpoint, and greedy answers of the engine as recorded text."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import MISSING

if MISSING:
    pytest.skip(f"{', '.join(MISSING)} is not installed", allow_module_level=True)

import torch
import transformers
from click.testing import CliRunner

from chunkbench.cli.main import cli
from chunkbench.experiment.llama import SHAPES, shape_of
from chunkbench.pins import SMOLLM2_INSTALL
from chunkbench.serving import smollm2
from chunkbench.serving.engine import Engine, EngineOptions, Model, Request
from chunkbench.serving.engine.model import load_module
from chunkbench.serving.server.build import ModelChoice, build_backend
from tests.serving.engine.models import answers_of

try:
    smollm2._source()
except smollm2.ModelMissing as error:
    pytest.skip(str(error), allow_module_level=True)

ANSWERS = {
    "What is the capital of France?": "The capital of France is Paris.<|im_end|>",
    "Write a haiku about snow.": "Snow, a fleeting beauty, a fleeting beauty,",
    "What is 12345 + 1?": "12345 is a number that can be expressed as",
}


@pytest.fixture(scope="module")
def folder() -> Path:
    return smollm2.checkpoint()


def test_greedy_answers_are_the_recorded_ones(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    requests = [
        Request(question, chat_ids(tokenizer, question), max_tokens=len(tokenizer(answer)["input_ids"]))
        for question, answer in ANSWERS.items()
    ]
    model = Model(load_module(folder, torch.float32))
    answers = answers_of(Engine(model, EngineOptions(kv_bytes=64 << 20)), *requests)
    assert {question: tokenizer.decode(ids) for question, ids in answers.items()} == ANSWERS


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
    words = [sys.executable, "-c", "from chunkbench.serving.smollm2 import checkpoint; print(checkpoint())"]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    (made,) = {one.communicate(timeout=300)[0].strip() for one in both}
    assert {path.name for path in Path(made).parent.iterdir()} == {smollm2.NAME}
    digests = [hashlib.sha256((one / "model.safetensors").read_bytes()).digest() for one in (Path(made), folder)]
    assert digests[0] == digests[1]
