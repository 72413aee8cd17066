"""Requests of real text: the bundled sets, files of users, and the control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chunkbench.traffic import Chat, PlannedRequest, TraceError, bundled_texts, control, read_texts


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_the_bundled_sets() -> None:
    """200 questions, some of them text; 20 conversations of several turns. Every question is another one."""
    bundled = bundled_texts()
    assert sorted(bundled) == ["conversations", "questions"]
    assert sum(len(file.read_bytes()) for file in bundled.values()) < 300_000
    questions, conversations = read_texts("questions"), read_texts("conversations")
    assert (len(questions.lines), {len(line) for line in questions.lines}) == (200, {1})
    assert len({str(line) for line in questions.lines}) == 200
    assert sorted(questions.beginnings) == ["coding-assistant", "few-shot", "reviewer-with-tools", "support-desk"]
    assert {type(prompt) for ((prompt, _),) in questions.lines} == {Chat, str}
    assert len(conversations.lines) == 20
    assert all(len(turns) >= 3 and all(delay > 0 for _, delay in turns[1:]) for turns in conversations.lines)


def test_lines_of_all_kinds(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    path = write(
        tmp_path / "t.jsonl",
        {"text": "One"},
        "",
        {"prompt": "Two", "id": 7},
        {"messages": [user("Three")]},
        {"name": "brief", "messages": [system]},
        {"begin": "brief", "messages": [user("Four")]},
        {"begin": "brief", "turns": [{"text": "Five"}, {"text": "Six", "delay": 2.5}]},
        {"name": "shots", "text": "Q: A: "},
        {"name": "more shots", "begin": "shots", "text": "R: B: "},
        {"begin": "more shots", "prompt": "S:"},
    )
    texts = read_texts(path)
    assert texts.plan([0.0] * 6, None) == [
        PlannedRequest(0.0, "One", 512, exact=False),
        PlannedRequest(0.0, "Two", 512, exact=False),
        PlannedRequest(0.0, Chat((user("Three"),)), 512, exact=False),
        PlannedRequest(0.0, Chat((system, user("Four"))), 512, exact=False),
        PlannedRequest(0.0, Chat((system, user("Five"))), 512, exact=False),
        PlannedRequest(2.5, Chat((user("Six"),)), 512, after=4, exact=False),
        PlannedRequest(0.0, "Q: A: R: B: S:", 512, exact=False),
    ]
    assert texts.plan([0.0, 1.5], 8) == [PlannedRequest(0.0, "One", 8), PlannedRequest(1.5, "Two", 8)]
    assert texts.beginnings["brief"] == Chat((system,))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[1]", "the line is no JSON object"),
        ({"id": 1}, "has to have one of text, prompt, messages or turns"),
        ({"text": "a", "messages": [user("b")]}, "has to have one of text, prompt, messages or turns"),
        ({"text": ""}, "text: String should have at least 1 character"),
        ({"text": [1, 2]}, "text: Input should be a valid string"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        ({"turns": [{"text": "a"}, {"text": "b", "dealy": 1}]}, "turns.1.dealy: Extra inputs are not permitted"),
        ({"turns": [{"text": "a"}, {"text": "b", "delay": -1}]}, "turns.1.delay"),
        ({"turns": [{"text": "a"}, {"text": "b", "delay": True}]}, "turns.1.delay"),
        ({"turns": [{"text": "a", "delay": 3}]}, "turns.0.delay: no answer comes before the first turn"),
        ({"begin": "b", "text": "a"}, "begin: no line before it has the name 'b'"),
        ({"begin": "shots", "messages": [user("a")]}, "begin: text begins with text, and messages with messages"),
        ({"name": "shots", "text": "a"}, "name: 'shots' is taken"),
        ({"name": "n", "turns": [{"text": "a"}, {"text": "b"}]}, "name: a beginning has no turns"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_a_bad_line_is_refused_with_its_place(tmp_path: Path, line: Any, problem: str) -> None:
    path = write(tmp_path / "t.jsonl", {"name": "shots", "text": "Q:"}, {"text": "fine"}, line)
    with pytest.raises(TraceError) as raised:
        read_texts(path)
    assert str(raised.value).startswith(f"{path}:3: ")
    assert problem in str(raised.value)


def test_a_file_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot be read.*bundled sets are conversations, questions"):
        read_texts(str(tmp_path / "no.jsonl"))
    with pytest.raises(TraceError, match="has no request"):
        read_texts(write(tmp_path / "t.jsonl", {"name": "only", "text": "a beginning"}))


def test_a_control_shares_nothing_and_asks_for_the_same() -> None:
    ids = [PlannedRequest(0.0, tuple(range(20)), 3) for _ in range(50)]
    for changed, request in zip(control(ids, 1000), ids, strict=True):
        assert (len(changed.prompt), changed.prompt[4:]) == (20, request.prompt[4:])  # type: ignore[arg-type]
    first = [request.prompt[0] for plan in (control(ids, 1000),) for request in plan]  # type: ignore[index]
    assert len(set(first)) == 50
    assert control([PlannedRequest(0.0, (7,), 1)], 2)[0].prompt in ((0,), (1,))
    chat = Chat(({"role": "system", "content": "S"}, user("a")))
    turns = [PlannedRequest(0.0, chat, 3), PlannedRequest(1.0, Chat((user("b"),)), 3, after=0)]
    (one, other) = control(turns, 10)
    assert isinstance(one.prompt, Chat)
    assert isinstance(other.prompt, Chat)
    later = other.prompt.after(one.prompt, "A")
    openings = [said.sent[0]["content"] for said in (one.prompt, later)]
    assert len(set(openings)) == 2
    assert all(opening.endswith(" S") and len(opening) > 5 for opening in openings)
    assert later.sent[1:] == [user("a"), {"role": "assistant", "content": "A"}, user("b")]
    (text, again) = (control([PlannedRequest(0.0, "text", 1)], 10)[0].prompt for _ in range(2))
    assert isinstance(text, str)
    assert text.endswith(" text")
    assert text != again
