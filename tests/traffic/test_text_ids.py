"""Prompts of given lengths from real text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from chunkbench.traffic import Prompts, TextIds, draw_prompts, read_texts, text_ids

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


def test_openings_and_questions(ids: tuple[TextIds, Tokenizer]) -> None:
    texts, tokenizer = ids
    assert [tokenizer.decode(list(text)) for text in texts.openings] == OPENINGS
    assert [tokenizer.decode(list(text)) for text in texts.questions] == QUESTIONS
    assert len(texts.words) == 15


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
