"""Prompts from files: every form that is read, and what is said of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chunkbench.prompts import Prompt, PromptsError, read


def written(tmp_path: Path, name: str, content: str | list[Any]) -> Path:
    path = tmp_path / name
    lines = content if isinstance(content, str) else "\n".join(map(json.dumps, content)) + "\n"
    path.write_text(lines, encoding="utf-8")
    return path


def test_every_form_of_a_line(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    path = written(
        tmp_path,
        "traffic.jsonl",
        [
            "a text",
            [1, 2, 3],
            {"prompt": "b", "group": "g"},
            {"text": "c"},
            {"input_ids": [4]},
            chat,
            {"messages": chat},
        ],
    )
    found = read([path])
    assert [prompt.group for prompt in found] == ["traffic", "traffic", "g", *["traffic"] * 4]
    assert [prompt.text for prompt in found[:1] + found[2:4]] == ["a text", "b", "c"]
    assert [prompt.tokens for prompt in (found[1], found[4])] == [(1, 2, 3), (4,)]
    assert found[5].text == found[6].text == "<|system|>\nbe brief\n<|user|>\nhi\n"
    assert found[3].place == f"{path}:4"


def test_lists_and_texts(tmp_path: Path) -> None:
    listed = written(tmp_path, "two.json", json.dumps(["x", {"prompt": "y"}]))
    text = written(tmp_path, "one.txt", "hello\nworld")
    found = read([listed, text])
    assert [prompt.text for prompt in found] == ["x", "y", "hello\nworld"]
    assert found[2] == Prompt(tmp_path.name, "hello\nworld", place=str(text))


def test_blank_lines_count_as_lines_and_as_no_prompts(tmp_path: Path) -> None:
    path = written(tmp_path, "p.jsonl", '"a"\n\n"b"\n')
    assert [prompt.place for prompt in read([path])] == [f"{path}:1", f"{path}:3"]


def test_groups_by_any_field(tmp_path: Path) -> None:
    path = written(tmp_path, "p.jsonl", [{"prompt": "a", "tenant": 7, "group": "x"}, {"prompt": "b", "tenant": "t"}])
    assert [prompt.group for prompt in read([path], "tenant")] == ["7", "t"]
    with pytest.raises(PromptsError, match="has no field 'user', by which prompts are to be grouped"):
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
        ("p.json", '{"prompt": "a"}', "holds no list"),
        ("p.json", "[1, 2", "not JSON"),
        ("p.txt", "", "the prompt is empty"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(PromptsError, match=message):
        read([written(tmp_path, name, content)])


def test_files_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PromptsError, match="not UTF-8 text"):
        read([path])
    with pytest.raises(PromptsError, match=r"missing.txt: cannot be read: No such file"):
        read([tmp_path / "missing.txt"])
