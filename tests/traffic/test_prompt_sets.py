"""Sets of prompts: files read, texts turned into token ids."""

from __future__ import annotations

import json
import os
import sys
import threading
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.traffic.cache_hits import CacheHits, Exchange, cache_hits, hit_shares
from chunkbench.traffic.prompt_sets import Prompt, PromptsError, read, tokenized
from chunkbench.traffic.request_result import Objective, RequestResult, load_numbers, quantile


def write(tmp_path: Path, name: str, content: str | list[Any]) -> Path:
    path = tmp_path / name
    lines = content if isinstance(content, str) else "\n".join(map(json.dumps, content)) + "\n"
    path.write_text(lines, encoding="utf-8")
    return path


def test_every_form_of_a_prompt_in_a_line(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    lines: list[Any] = ["a text", [1, 2, 3], {"prompt": "b", "group": "g"}, {"text": "c"}]
    lines += [{"text_input": "d", "session_id": "s", "delay": 4}, {"input_ids": [4]}, chat, {"messages": chat}]
    path = write(tmp_path, "traffic.jsonl", lines)
    prompts = read([path])
    assert [prompt.group for prompt in prompts] == ["traffic", "traffic", "g", *["traffic"] * 5]
    assert [prompt.text for prompt in prompts[:1] + prompts[2:5]] == ["a text", "b", "c", "d"]
    assert [prompt.tokens for prompt in (prompts[1], prompts[5])] == [(1, 2, 3), (4,)]
    assert prompts[6].text == prompts[7].text == "<|system|>\nbe brief\n<|user|>\nhi\n"
    assert prompts[3].place == f"{path}:4"
    blank = write(tmp_path, "p.JSONL", '"a"\n\n"b"\n')
    assert [prompt.place for prompt in read([blank])] == [f"{blank}:1", f"{blank}:3"]
    text = write(tmp_path, "one.txt", "hello\nworld")
    assert read([text]) == [Prompt(tmp_path.name, "hello\nworld", place=str(text))]


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
        ("p.jsonl", "[1, true]\n", "neither a text, nor token ids"),
        ("p.jsonl", '{"prompt": ""}\n', "the prompt is empty"),
        ("p.jsonl", '[{"role": "user"}]\n', "needs a role and a content"),
        ("p.json", '{"prompt": "a"}', "not a list"),
        ("p.jsonl", "1\n1e999", "p.jsonl:1: neither a text"),
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


def test_texts_become_token_ids(tokenizer_file: Path) -> None:
    assert tokenized(TEXTS, str(tokenizer_file)) == [(0, 1, 0), (1, 2)]
    for name in (None, "no such tokenizer"):
        assert tokenized([Prompt("g", tokens=(3, 4))], name) == [(3, 4)]
    (tokenizer_file.parent / "bad.json").write_text("{}")
    for prompts, name, message in (
        (TEXTS, None, r"p.jsonl:1: is text, and no tokenizer was chosen: name a tokenizer.json"),
        (TEXTS, "", r"p.jsonl:1: is text, and no tokenizer was chosen"),
        ([*TEXTS, Prompt("g", tokens=(3,), place="x")], str(tokenizer_file), "token ids among texts"),
        ([Prompt("g", " ", place="p:9")], str(tokenizer_file), r"p:9: the tokenizer gives no token for this prompt"),
        (TEXTS, str(tokenizer_file.with_name("none.json")), "no such file"),
        (TEXTS, str(tokenizer_file.with_name("bad.json")), r"not a tokenizer.json of Hugging Face"),
    ):
        with pytest.raises(PromptsError, match=message):
            tokenized(prompts, name)


@pytest.mark.parametrize(("name", "library"), [("cl100k_base", "tiktoken"), ("gpt2", "tokenizers")])
def test_the_error_names_a_missing_library(monkeypatch: pytest.MonkeyPatch, name: str, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(PromptsError, match=rf"{name}: needs {library}: pip install 'chunkbench\[prompts\]'"):
        tokenized(TEXTS, name)


def request(due: float, first: float, last: float, tokens: int = 5, **others: object) -> RequestResult:
    fields = {"due": due, "sent": due, "first": first, "last": last, "tokens": tokens, "asked_tokens": tokens}
    return RequestResult.model_validate({"prompt_tokens": 10, **fields, **others})


TWO = [request(1.0, 1.5, 3.5, cached_tokens=5), request(2.0, 3.0, 6.0, cached_tokens=10)]


def test_latency_counts_from_when_a_request_was_due() -> None:
    numbers = load_numbers([request(1.0, 2.0, 6.0, sent=1.75)])
    assert numbers.normalized_latency is not None
    assert numbers.time_to_first_token is not None
    assert numbers.sending_delay is not None
    assert (numbers.normalized_latency.mean, numbers.time_to_first_token.mean) == (1.0, 1.0)
    assert numbers.sending_delay.p99 == 0.75
    assert numbers.client_late


def test_what_failed_has_no_latency_and_what_the_client_cut_is_no_failure() -> None:
    broken = RequestResult(due=0, prompt_tokens=1, asked_tokens=1, status="error", reason="gone")
    numbers = load_numbers([*TWO, broken, request(1.0, 2.0, 6.0, status="cancelled")])
    assert (numbers.requests, numbers.answered, numbers.failed, numbers.cancelled) == (4, 2, 1, 1)
    assert numbers.latency == load_numbers(TWO).latency
    assert load_numbers([broken]).normalized_latency is None
    assert load_numbers([]).requests_per_s == 0


def test_means_rates_and_shares() -> None:
    numbers = load_numbers(TWO, [Objective("normalized", 0.6)])
    assert numbers.normalized_latency is not None
    assert numbers.normalized_latency.mean == pytest.approx((0.5 + 0.8) / 2)
    assert numbers.time_per_token is not None
    assert numbers.time_per_token.mean == pytest.approx((0.5 + 0.75) / 2)
    assert numbers.seconds == 5.0
    assert numbers.requests_per_s == pytest.approx(2 / 5)
    assert numbers.tokens_per_s == pytest.approx(10 / 5)
    assert numbers.goodput_per_s == pytest.approx(1 / 5)
    assert numbers.cached_share == 0.75
    assert not numbers.client_late


def test_gaps_and_objectives() -> None:
    ended = [
        request(1.0, 1.5, 3.5, gaps=[0.1] * 98 + [0.5, 2.0]),
        request(1.0, 2.0, 3.0, gaps=[0.2]),
        request(1.0, 2.0, 3.0, tokens=1),
        request(1.0, 1.0, 4.0).model_copy(update={"first": None}),
    ]
    gap = load_numbers(ended).gap
    assert gap is not None
    assert (gap.p50, gap.p95, gap.p99) == (0.1, 0.1, 0.5)
    assert load_numbers(ended[2:]).gap is None

    def met(**limits: float) -> list[bool]:
        objectives = [Objective(figure, limit) for figure, limit in limits.items()]
        return [load_numbers([one], objectives).goodput_per_s > 0 for one in ended]  # type: ignore[operator]

    assert met(itl=0.5) == [True, True, False, False]
    assert met(itl=0.4) == [False, True, False, False]
    assert met(ttft=0.5) == [True, False, False, False]
    assert met(ttft=1.0, tpot=0.3) == [False, True, False, False]
    assert met(latency=2.5) == [True, True, True, False]
    assert met(normalized=0.5) == [True, True, False, False]


def test_quantiles() -> None:
    assert [quantile([4, 1, 3, 2], share) for share in (0.25, 0.5, 0.9, 1)] == [1, 2, 4, 4]
    assert quantile([7], 0.01) == 7
    with pytest.raises(ValueError, match="at least one"):
        quantile([], 0.5)


def exchange(sent: float, prompt: str | tuple[int, ...], cached: int | None = 0, answer: str = "") -> Exchange:
    result = RequestResult(
        due=sent, sent=sent, prompt_tokens=len(prompt), asked_tokens=1, tokens=1, cached_tokens=cached
    )
    return Exchange(result, prompt, prompt + answer if isinstance(prompt, str) else prompt)


def equal(a: str, b: str) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


def hits(*ended: Exchange, counted: float | None = None) -> CacheHits:
    found = cache_hits(ended, counted)
    assert found is not None
    return found


@given(st.lists(st.text("ab", min_size=1, max_size=8), min_size=1, max_size=12))
def test_what_requests_share_is_what_stands_at_the_begin_of_an_earlier_one(prompts: list[str]) -> None:
    expected = sum(
        max((equal(prompt, other) for other in prompts[:number]), default=0) for number, prompt in enumerate(prompts)
    )
    found = hits(*(exchange(number, prompt) for number, prompt in enumerate(prompts)))
    assert found.shared == expected / sum(map(len, prompts))


def test_the_order_is_that_in_which_they_were_sent_and_answers_count() -> None:
    later, first = exchange(2.0, "hello world!", 5), exchange(1.0, "hello", 0, answer=" world")
    found = hits(later, first)
    assert (found.prompt_tokens, found.cached_tokens, found.computed_tokens, found.most_cached) == (17, 5, 12, 5)
    assert (found.shared, found.unit, found.source) == (11 / 17, "characters", "usage")


def test_metrics_speak_where_usage_does_not() -> None:
    silent = exchange(0.0, (1, 2, 3), None)
    assert (hits(silent).cached_tokens, hits(silent).computed_tokens, hits(silent).warm) == (None, None, False)
    found = hits(silent, counted=2.0)
    assert (found.cached_tokens, found.source, found.most_cached, found.unit) == (2, "metrics", None, "tokens")


def test_a_warm_cache_is_told_from_sharing() -> None:
    """Of token ids to four tokens a request; text may differ by a template and by the length of its words."""
    shared = [exchange(0.0, tuple(range(100))), exchange(1.0, tuple(range(100)), 100)]
    assert not hits(*shared).warm
    assert not hits(exchange(0.0, tuple(range(100)), 4)).warm
    assert hits(exchange(0.0, tuple(range(100)), 5)).warm
    text = "x" * 1000
    assert not hits(exchange(0.0, text, 60)).warm
    assert hits(exchange(0.0, text, 100)).warm


def test_requests_that_failed_are_not_counted_and_may_be_found() -> None:
    failed = exchange(0.0, (1, 2, 3, 4))
    failed = failed._replace(request=failed.request.model_copy(update={"status": "timeout"}))
    assert cache_hits([failed]) is None
    found = hits(failed, exchange(1.0, (1, 2, 3, 4), 4))
    assert (found.requests, found.prompt_tokens, found.shared, found.warm) == (1, 4, 1.0, False)


def test_hits_by_turn_and_conversation() -> None:
    def turn(conversation: int, number: int, cached: int | None) -> Exchange:
        return Exchange(request(1, 2, 3, cached_tokens=cached), (1,), (1,), conversation, number)

    ended = [turn(0, 1, 0), turn(0, 2, 8), turn(2, 1, 2), turn(2, 7, 10), turn(4, 1, None)]
    assert [tuple(one) for one in hit_shares(ended)] == [
        ("requests", 4, 0.0, 0.2, 1.0),
        ("conversations", 2, 0.4, 0.4, 0.6),
        ("turn 1", 2, 0.0, 0.0, 0.2),
        ("turn 2", 1, 0.8, 0.8, 0.8),
        ("later turns", 1, 1.0, 1.0, 1.0),
    ]
    assert len(hit_shares([turn(0, 1, 0)])) == 1
    assert hit_shares([turn(0, 1, None)]) == []
