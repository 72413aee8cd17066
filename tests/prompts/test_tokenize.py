"""Tokenizers: one from a file for real, and what is said where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chunkbench.prompts import Prompt, PromptsError, tokenized

TEXTS = [Prompt("g", "a b a", place="p.jsonl:1"), Prompt("g", "b c", place="p.jsonl:2")]


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return path


def test_a_tokenizer_from_a_file(tokenizer_file: Path) -> None:
    assert tokenized(TEXTS, str(tokenizer_file)) == [(0, 1, 0), (1, 2)]


def test_token_ids_need_none() -> None:
    assert tokenized([Prompt("g", tokens=(3, 4))], None) == [(3, 4)]
    assert tokenized([Prompt("g", tokens=(3, 4))], "no such tokenizer") == [(3, 4)]


def test_texts_need_one() -> None:
    with pytest.raises(PromptsError, match=r"p.jsonl:1: is text, and no tokenizer was chosen: name a tokenizer.json"):
        tokenized(TEXTS, None)


def test_token_ids_and_texts_do_not_mix(tokenizer_file: Path) -> None:
    with pytest.raises(PromptsError, match="token ids beside texts"):
        tokenized([*TEXTS, Prompt("g", tokens=(3,), place="x")], str(tokenizer_file))


def test_a_text_without_tokens(tokenizer_file: Path) -> None:
    with pytest.raises(PromptsError, match=r"p:9: the tokenizer makes no token of it"):
        tokenized([Prompt("g", " ", place="p:9")], str(tokenizer_file))


def test_files_that_are_no_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    with pytest.raises(PromptsError, match="no such file"):
        tokenized(TEXTS, str(path))
    path.write_text("{}")
    with pytest.raises(PromptsError, match=r"not a tokenizer.json of Hugging Face"):
        tokenized(TEXTS, str(path))


@pytest.mark.parametrize(("name", "library"), [("cl100k_base", "tiktoken"), ("gpt2", "tokenizers")])
def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch, name: str, library: str) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(PromptsError, match=rf"{name}: needs {library}: pip install 'chunkbench\[prompts\]'"):
        tokenized(TEXTS, name)
