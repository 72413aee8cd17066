"""Sets of prompts: files read, texts turned into token ids."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from chunkbench.traffic.prompt_sets import Prompt, PromptsError, read, tokenized


def write(tmp_path: Path, name: str, content: str | list[Any]) -> Path:
    path = tmp_path / name
    lines = content if isinstance(content, str) else "\n".join(map(json.dumps, content)) + "\n"
    path.write_text(lines, encoding="utf-8")
    return path


def test_every_form_of_a_prompt_in_a_line(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    path = write(
        tmp_path,
        "traffic.jsonl",
        [
            "a text",
            [1, 2, 3],
            {"prompt": "b", "group": "g"},
            {"text": "c"},
            {"text_input": "d", "session_id": "s", "delay": 4},
            {"input_ids": [4]},
            chat,
            {"messages": chat},
        ],
    )
    prompts = read([path])
    assert [prompt.group for prompt in prompts] == ["traffic", "traffic", "g", *["traffic"] * 5]
    assert [prompt.text for prompt in prompts[:1] + prompts[2:5]] == ["a text", "b", "c", "d"]
    assert [prompt.tokens for prompt in (prompts[1], prompts[5])] == [(1, 2, 3), (4,)]
    assert prompts[6].text == prompts[7].text == "<|system|>\nbe brief\n<|user|>\nhi\n"
    assert prompts[3].place == f"{path}:4"


def test_conversations_of_sharegpt(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "a\u2028b"}, {"from": "gpt", "value": "c"}, {"from": "system", "value": "d"}]
    path = write(tmp_path, "s.json", json.dumps([{"id": "x", "conversations": said}, {"id": "y", "conversations": []}]))
    (prompt,) = read([path])
    assert prompt.text == "<|user|>\na\u2028b\n<|assistant|>\nc\n<|system|>\nd\n"
    line = write(tmp_path, "s.jsonl", json.dumps({"conversations": said}, ensure_ascii=False))
    assert [one.text for one in read([line])] == [prompt.text]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('"a"\n{"prompt": "b"}\n', ["a", "b"]),
        ('[\n "a",\n "b"\n]\n', ["a", "b"]),
        ('["a", {"prompt": "b"}]', ["a", "b"]),
        ('[{"prompt": "a"}, {"conversations": []}]\n', ["a"]),
        ('[{"role": "user", "content": "a"}]\n', ["<|user|>\na\n"]),
        ("two\nlines\n", ["two\nlines\n"]),
    ],
)
def test_a_pipe_is_what_its_first_line_is(tmp_path: Path, content: str, texts: list[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(content,))
    writer.start()
    assert [prompt.text for prompt in read([pipe])] == texts
    writer.join()


def test_json_lists_and_text_files(tmp_path: Path) -> None:
    listed = write(tmp_path, "two.json", json.dumps(["x", {"prompt": "y"}]))
    text = write(tmp_path, "one.txt", "hello\nworld")
    prompts = read([listed, text])
    assert [prompt.text for prompt in prompts] == ["x", "y", "hello\nworld"]
    assert prompts[2] == Prompt(tmp_path.name, "hello\nworld", place=str(text))


def test_blank_lines_are_no_prompts_but_count_for_line_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "p.JSONL", '"a"\n\n"b"\n')
    assert [prompt.place for prompt in read([path])] == [f"{path}:1", f"{path}:3"]


def test_prompts_can_be_grouped_by_any_field(tmp_path: Path) -> None:
    path = write(tmp_path, "p.jsonl", [{"prompt": "a", "tenant": 7, "group": "x"}, {"prompt": "b", "tenant": "t"}])
    assert [prompt.group for prompt in read([path], "tenant")] == ["7", "t"]
    with pytest.raises(PromptsError, match="has no field 'user' to group prompts by"):
        read([path], "user")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", '"a"\n{"prompt": \n', r"p.jsonl:2: not JSON"),
        ("p.jsonl", '{"question": "a"}\n', r"has no prompt, text, token_ids or messages \(its fields: 'question'\)"),
        ("p.jsonl", "3\n", "neither a text, nor token ids"),
        ("p.jsonl", "[1, -2]\n", "neither a text, nor token ids"),
        ("p.jsonl", "[1, true]\n", "neither a text, nor token ids"),
        ("p.jsonl", '{"prompt": ""}\n', "the prompt is empty"),
        ("p.jsonl", '[{"role": "user"}]\n', "needs a role and a content"),
        ("p.json", '{"prompt": "a"}', "not a list"),
        ("p.json", "[1, 2", "not JSON"),
        ("p.json", "[" * 100_000, "p.json: not JSON that can be read: it is nested too deeply"),
        ("p.jsonl", "1\n1e999", "p.jsonl:1: neither a text"),
        ("p.jsonl", '"a"\n[1e999]', "p.jsonl:2: not JSON: 1e999 is no finite number"),
        ("p.jsonl", "[18446744073709551616]", "neither a text, nor token ids"),
        ("p.jsonl", r'"\ud800"', "p.jsonl:1: not text: half of a surrogate pair"),
        ("p.jsonl", '{"conversations": [{"from": "gpt"}]}', "needs a role and a content"),
        ("p.jsonl", '{"conversations": [{"from": [], "value": "a"}]}', "needs a role and a content"),
        ("p.jsonl", '[{"role": "user", "content": [{"text": 3}, {"text": null}]}]', "needs a role and a content"),
        ("p.txt", "", "the prompt is empty"),
    ],
)
def test_the_error_for_an_unreadable_prompt_names_its_place(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    with pytest.raises(PromptsError, match=message):
        read([write(tmp_path, name, content)])


def test_binary_and_missing_files_raise(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PromptsError, match=r"p.txt:1:1: the file is in UTF-16; save it as UTF-8"):
        read([path])
    path.write_bytes(b"good\nb\xe4d")
    with pytest.raises(PromptsError, match=r"p.txt:2:2: not text in UTF-8"):
        read([path])
    with pytest.raises(PromptsError, match=r"missing.txt: cannot be read: No such file"):
        read([tmp_path / "missing.txt"])


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
