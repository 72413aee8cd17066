"""What load tests send: arrivals, drawn prompts, texts of users, and their control."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from chunkbench.attention.tokens import alike
from chunkbench.traffic import (
    Arrivals,
    Chat,
    PlannedRequest,
    Prompts,
    TextIds,
    TraceError,
    bundled_texts,
    control,
    draw_prompts,
    due_times,
    read_texts,
    text_ids,
)


def gaps(arrivals: Arrivals, rate: float = 2.0, seed: int = 1) -> list[float]:
    times = due_times(arrivals, rate, 4000, seed)
    return [later - earlier for earlier, later in pairwise(times)]


@pytest.mark.parametrize(
    ("arrivals", "spread"),
    [
        (Arrivals("poisson"), 1),
        (Arrivals("gamma", 0.001), 0.001),
        (Arrivals("gamma", 0.5), 0.5),
        (Arrivals("gamma", 2), 2),
        (Arrivals("gamma"), 1),
        (Arrivals("constant"), 0),
    ],
)
def test_gaps_have_the_mean_and_the_spread_asked_for(arrivals: Arrivals, spread: float) -> None:
    drawn = gaps(arrivals)
    assert fmean(drawn) == pytest.approx(0.5, rel=0.1)
    assert pstdev(drawn) / fmean(drawn) == pytest.approx(spread, rel=0.1, abs=1e-9)


def test_a_rate_stretches_the_same_sequence() -> None:
    slow, fast = gaps(Arrivals(), 1.0), gaps(Arrivals(), 4.0)
    assert slow == pytest.approx([4 * gap for gap in fast], abs=1e-9)
    assert gaps(Arrivals(), seed=2) != gaps(Arrivals(), seed=1)


def test_the_first_request_is_due_at_once_and_what_cannot_be_drawn_is_refused() -> None:
    assert due_times(Arrivals(), 3.0, 1, 0) == [0.0]
    assert due_times(Arrivals(), 3.0, 0, 0) == []
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="above 0"):
            due_times(Arrivals(), rate, 3, 0)
    for spread in (0.0, -1.0, float("nan"), 1e-320, 1e-4, 1e308, float("inf")):
        with pytest.raises(ValueError, match=r"the spread of arrivals must be from 0\.001 to 1000"):
            Arrivals("gamma", spread)


@given(st.integers(1, 80), st.integers(0, 80), st.integers(1, 3), st.integers(0, 5))
def test_prompts_share_what_is_asked_for_and_no_more(n_p: int, n_s: int, prompts: int, seed: int) -> None:
    if n_s > n_p:
        with pytest.raises(ValueError, match="do not fit"):
            Prompts(n_p, n_s, prompts)
        return
    drawn = draw_prompts(Prompts(n_p, n_s, prompts), 9, 1000, seed)
    assert {len(prompt) for prompt in drawn} == {n_p}
    for i, first in enumerate(drawn):
        for j, second in enumerate(drawn[:i]):
            if (i - j) % prompts == 0:
                assert alike(first, second) == n_s


def test_a_tree_of_prefixes() -> None:
    tree = Prompts(40, tree=((10, ((8, 2), (8, 1))),))
    drawn = draw_prompts(tree, 6, 1000, 0)
    assert [alike(drawn[0], other) for other in drawn[1:]] == [18, 10, 18, 18, 10]
    with pytest.raises(ValueError, match="44 shared tokens do not fit into prompts of n_p = 40"):
        Prompts(40, tree=((44, 2),))


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_the_bundled_sets() -> None:
    """Every question is another one; conversations have several turns."""
    texts = {name: read_texts(name).lines for name in bundled_texts()}
    assert {name: len({*map(str, lines)}) for name, lines in texts.items()} == {
        "conversations": 20,
        "edits": 10,
        "questions": 200,
    }
    assert all(len(turns) >= 3 and all(delay > 0 for _, delay in turns[1:]) for turns in texts["conversations"])


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
        ({"id": 1}, "must have one of text, prompt, messages or turns"),
        ({"text": "a", "messages": [user("b")]}, "must have one of text, prompt, messages or turns"),
        ({"text": ""}, "text: String should have at least 1 character"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        ({"turns": [{"text": "a"}, {"text": "b", "dealy": 1}]}, "turns.1.dealy: Extra inputs are not permitted"),
        ({"turns": [{"text": "a"}, {"text": "b", "delay": -1}]}, "turns.1.delay"),
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
    with pytest.raises(TraceError, match=r"cannot be read.*bundled sets are conversations, edits, questions"):
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


OPENINGS = ["s1 s2 s3 s4 s5", "e1 e2 e3"]
QUESTIONS = ["q1 q2", "r1 r2 r3", "t1 t2"]


@pytest.fixture
def ids(tmp_path: Path) -> tuple[TextIds, Tokenizer]:
    """Texts of two openings and three questions by a tokenizer of whole words, which begins every text with `begin`."""
    words = " ".join([*OPENINGS, *QUESTIONS]).split()
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["begin", *words])}, unk_token="begin"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="begin $A", special_tokens=[("begin", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    system = {"role": "system", "content": OPENINGS[0]}
    lines = [
        {"name": "a", "messages": [system]},
        {"name": "b", "text": OPENINGS[1] + " "},
        {"begin": "a", "messages": [{"role": "user", "content": QUESTIONS[0]}]},
        {"begin": "b", "text": QUESTIONS[1]},
        {"messages": [system], "turns": [{"text": QUESTIONS[2]}, {"text": "later"}]},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return text_ids(read_texts(str(tmp_path / "t.jsonl")), tmp_path / "tokenizer.json"), tokenizer


def in_turn(texts: tuple[tuple[int, ...], ...], count: int) -> set[tuple[int, ...]]:
    """The first `count` tokens of the texts one after the other, from each of them on."""
    return {tuple(token for text in (texts * 9)[n:] for token in text)[:count] for n in range(len(texts))}


def test_prompts_share_what_is_asked_for_and_nothing_with_other_draws(ids: tuple[TextIds, Tokenizer]) -> None:
    texts, _ = ids
    drawn = draw_prompts(Prompts(30, 20), 6, 10, "seed", texts)
    assert {len(prompt) for prompt in drawn} == {30}
    assert len({prompt[:20] for prompt in drawn}) == 1
    assert len({prompt[20:24] for prompt in drawn}) == 6
    assert drawn == draw_prompts(Prompts(30, 20), 6, 10, "seed", texts)
    assert drawn[0][:4] != draw_prompts(Prompts(30, 20), 6, 10, "other", texts)[0][:4]
    assert drawn[0][4:20] in in_turn(texts.openings, 16)
    assert all(prompt[24:] in in_turn(texts.questions, 6) for prompt in drawn)


def test_lengths_from_none_to_a_few_words(ids: tuple[TextIds, Tokenizer]) -> None:
    for n_s, n_p in ((0, 1), (1, 1), (3, 5), (4, 4)):
        assert [len(prompt) for prompt in draw_prompts(Prompts(n_p, n_s), 2, 10, 0, ids[0])] == [n_p, n_p]
