"""Tokenizers: a real one from a file, and the errors without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chunkbench.traffic.sets import Prompt, PromptsError, tokenized

TEXTS = [Prompt("g", "a b a", place="p.jsonl:1"), Prompt("g", "b c", place="p.jsonl:2")]


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_tokenizer_from_a_file(tokenizer_file: Path) -> None:
    assert tokenized(TEXTS, str(tokenizer_file)) == [(0, 1, 0), (1, 2)]


def test_token_ids_need_no_tokenizer() -> None:
    assert tokenized([Prompt("g", tokens=(3, 4))], None) == [(3, 4)]
    assert tokenized([Prompt("g", tokens=(3, 4))], "no such tokenizer") == [(3, 4)]


@pytest.mark.parametrize("none", [None, ""])
def test_texts_need_a_tokenizer(none: str | None) -> None:
    with pytest.raises(PromptsError, match=r"p.jsonl:1: is text, and no tokenizer was chosen: name a tokenizer.json"):
        tokenized(TEXTS, none)


def test_token_ids_and_texts_do_not_mix(tokenizer_file: Path) -> None:
    with pytest.raises(PromptsError, match="token ids among texts"):
        tokenized([*TEXTS, Prompt("g", tokens=(3,), place="x")], str(tokenizer_file))


def test_a_text_for_which_the_tokenizer_gives_no_token_raises(tokenizer_file: Path) -> None:
    with pytest.raises(PromptsError, match=r"p:9: the tokenizer gives no token for this prompt"):
        tokenized([Prompt("g", " ", place="p:9")], str(tokenizer_file))


def test_a_missing_or_invalid_tokenizer_file_raises(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    with pytest.raises(PromptsError, match="no such file"):
        tokenized(TEXTS, str(path))
    path.write_text("{}")
    with pytest.raises(PromptsError, match=r"not a tokenizer.json of Hugging Face"):
        tokenized(TEXTS, str(path))


@pytest.mark.parametrize(("name", "library"), [("cl100k_base", "tiktoken"), ("gpt2", "tokenizers")])
def test_the_error_names_a_missing_library(monkeypatch: pytest.MonkeyPatch, name: str, library: str) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(PromptsError, match=rf"{name}: needs {library}: pip install 'chunkbench\[prompts\]'"):
        tokenized(TEXTS, name)
