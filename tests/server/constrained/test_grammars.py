"""Answers of random models follow random constraints; what cannot be followed is refused with its reason."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from functools import cache
from typing import Any

import numpy as np
import pytest

from chunkbench.malloc import bytes_in_use
from chunkbench.server.constrained import Constraint, ConstraintRefused, Grammars, Method
from chunkbench.server.constrained.constraint import ANY_OBJECT
from chunkbench.server.engine import Engine, EngineOptions, Request, Sampling
from tests.server.constrained.drawn import METHODS
from tests.server.engine.models import END, MERGES, VOCABULARY, byte_tokenizer, small_model
from tests.torture.judged import random_regex

PROMPT = list(b"Answer: ")


@cache
def compiled(method: Method) -> Grammars:
    return Grammars(byte_tokenizer(MERGES).to_str(), VOCABULARY, {END}, method)


class Answers(list[tuple[str, str]]):
    """(text, why it ended) of each request of an engine, all at once."""

    def __init__(self, engine: Engine, grammars: Grammars) -> None:
        super().__init__()
        self.steps = self.preempted = self.forced = self.rolled_back_computed = 0
        tokens: dict[str, list[int]] = {}
        ends: dict[str, str] = {}
        while not engine.idle:
            report = engine.step()
            assert not report.failed
            self.steps += 1
            self.preempted += report.preempted
            for made in report.generated:
                self.forced += made.forced
                self.rolled_back_computed += max(0, made.replaces - 1)  # the last one is never computed
                answer = tokens.setdefault(made.request, [])
                del answer[len(answer) - made.replaces :]
                answer.append(made.token)
                ends[made.request] = made.finish or ""
        self.written = [tokens[str(number)] for number in range(len(tokens))]
        for number, answer in enumerate(self.written):
            self.append((grammars.vocabulary.text(answer).decode(errors="replace"), ends[str(number)]))


def answers(
    constraints: list[Constraint],
    most: int = 40,
    method: Method = "mask",
    temperature: float = 1.0,
    kv_bytes: int = 4 << 20,
) -> Answers:
    """One answer for each constraint."""
    engine = Engine(small_model(), EngineOptions(max_batch=16, kv_bytes=kv_bytes, chunk_size=16, cache="radix"))
    matchers = [compiled(method).matcher(constraint) for constraint in constraints]
    for number, matcher in enumerate(matchers):
        sampling = Sampling(temperature=temperature, seed=number)
        engine.add(Request(str(number), PROMPT, most, sampling, frozenset({END}), matcher=matcher))
    found = Answers(engine, compiled(method))
    for matcher, answer in zip(matchers, found.written, strict=True):
        assert len(answer) <= most
        assert matcher.work.sampled + matcher.work.forced - matcher.work.rolled_back >= len(answer) - 1
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 12), pytest.param(1, 180, marks=pytest.mark.slow), pytest.param(2, 180, marks=pytest.mark.slow)],
)
def test_answers_match_random_regular_expressions(method: Method, seed: int, count: int) -> None:
    rng = random.Random(seed)
    regexes = [random_regex(rng) for _ in range(count)]
    found = answers([Constraint.of_regex(regex) for regex in regexes], method=method)
    finished = [(regex, text) for regex, (text, end) in zip(regexes, found, strict=True) if end == "stop"]
    assert len(finished) > 0.8 * count
    for regex, text in finished:
        assert re.fullmatch(regex, text), (regex, text)


@pytest.mark.parametrize("kv_bytes", [4 << 20, 9 << 14], ids=["room", "preempted"])
def test_forced_tokens_leave_greedy_answers_as_they_are_and_save_steps(kv_bytes: int) -> None:
    """Where tokens are bytes, a forced text has one way to be written. Its pieces cross the borders of chunks."""
    rng = random.Random(1)
    constraints = [
        Constraint.of_regex(f'\\{{"{"k" * rng.randrange(1, 40)}":"[a-c]{{1,3}}","{"x" * (n + 35)}":(yes|no)\\}}')
        for n in range(6)
    ]
    masked = answers(constraints, 90, "mask", 0.0, kv_bytes)
    jumped = answers(constraints, 90, "forced-tokens", 0.0, kv_bytes)
    assert jumped == masked
    assert jumped.forced > 6 * 15
    assert jumped.steps < masked.steps / 3
    assert masked.forced == 0
    assert all(bool(found.preempted) == (kv_bytes < 1 << 20) for found in (masked, jumped))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constraint.of_regex("(a"), "unclosed group"),
        (lambda: Constraint.of_regex("(?=a)b"), "look-around"),
        (lambda: Constraint.of_regex("x" * 100_000), "this server takes at most 65536"),
        (lambda: Constraint.of_schema("{"), "the schema is not JSON"),
        (lambda: Constraint.of_schema("\ud800"), "the schema is not JSON"),
        (lambda: Constraint.of_schema([1]), "must be an object, not list"),
        (lambda: Constraint.of_schema({"type": "strange"}), "Invalid type: strange"),
        (lambda: Constraint.of_schema({"$ref": "#/none"}), "does not exist"),
        (lambda: Constraint.of_schema({"format": "date", "allOf": 3}), "allOf"),
        (lambda: Constraint.of_schema({"format": ["date"]}), "format"),
        (lambda: Constraint.of_choice([]), "at least one text"),
        (lambda: Constraint.of_schema(json.loads('{"items":' * 200 + "{}" + "}" * 200)), "recursion limit"),
        (lambda: Constraint.of_choice(["a", ""]), "no text may be empty"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_reason(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConstraintRefused, match=message):
        compiled("mask").matcher(make())


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"format": "date"}, ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "0000-01-01"]),
        ({"format": "date", "pattern": "^20"}, ["2024-02-29"], ["2023-02-29", "1904-02-29"]),
        ({"format": "date-time"}, ["2024-02-29T10:00:00Z"], ["2023-02-29T10:00:00Z", "2024-02-29T25:00:00Z"]),
        ({"format": "date", "enum": ["2023-02-29", "2024-02-29"]}, ["2024-02-29"], ["2023-02-29"]),
    ],
)
def test_dates_are_those_of_the_calendar(schema: dict[str, Any], allowed: list[str], refused: list[str]) -> None:
    made = compiled("mask")

    def follows(text: str) -> bool:
        matcher = made.matcher(Constraint.of_schema({"type": "string", **schema}))
        for token in made.vocabulary.of_text(json.dumps(text).encode()):
            bits = np.zeros(-(-VOCABULARY // 32), np.int32)
            matcher.allow(bits)
            if not bits[token // 32] >> token % 32 & 1:
                return False
            matcher.accept(token)
        return True

    assert [text for text in (*allowed, *refused) if follows(text)] == allowed


@pytest.mark.parametrize("regex", ["(x+x+)+y", "(a{1,1000}){1,1000}", "([a-z]{1,500}[0-9]{1,500}){1,500}", "(a|aa)*b"])
def test_a_hostile_regular_expression_costs_little(regex: str) -> None:
    began = time.monotonic()
    with contextlib.suppress(ConstraintRefused):
        answers([Constraint.of_regex(regex)], most=20)
    assert time.monotonic() - began < 20


def test_constraints_that_take_much_memory_are_not_kept_together() -> None:
    grammars, before = Grammars(byte_tokenizer(MERGES).to_str(), VOCABULARY, {END}), bytes_in_use()
    heavy = [Constraint.of_regex(f"(a{{{count}}}){{400}}") for count in range(400, 406)]
    for constraint in heavy:
        grammars.matcher(constraint)
    assert 24 << 20 < bytes_in_use() - before < 60 << 20  # six of them take 108 MiB
    assert [grammars.known(constraint) is None for constraint in (heavy[0], heavy[-1])] == [True, False]


def test_the_answer_is_written_with_the_tokens_of_its_whole_text() -> None:
    """Tokens that were computed are taken back, where they merge with what is appended."""
    regex = '(xy|xa)z","(name|nap)":"(yes|yet)'
    found = answers([Constraint.of_regex(regex)] * 16, method="jump-retokenize", temperature=100.0)
    assert len({text for text, _ in found}) > 4
    assert found.rolled_back_computed > 0
    for (text, end), tokens in zip(found, found.written, strict=True):
        assert re.fullmatch(regex, text)
        assert end == "stop"
        # All but what came after the last choice, of which nothing was forced.
        assert tokens[:-2] == compiled("jump-retokenize").vocabulary.of_text(text.encode())[: len(tokens) - 2]


@pytest.mark.parametrize("method", METHODS)
def test_what_has_no_end_or_very_many_states_is_followed(method: Method) -> None:
    found = answers([ANY_OBJECT, Constraint.of_regex("(a|b)*a(a|b){15}c")], 60, method, temperature=0.5)
    for text, end in found:
        assert end == "length" or re.fullmatch(r"\{.*\}|(a|b)*a(a|b){15}c", text, re.DOTALL)
    assert found[0][0].startswith("{")
    assert set(found[1][0]) <= set("abc")


def test_interleaved_appends_the_fixed_texts_alone() -> None:
    constraints = [Constraint.of_regex("name:(yes|yet)-[0-9]{2}.(a|b)"), Constraint.of_regex("[a-c]{3}|d")] * 4
    found = answers(constraints, method="interleaved")
    assert found.forced == 4 * (len(compiled("mask").vocabulary.of_text(b"name:")))
    jumped = answers(constraints, method="jump")
    assert jumped.forced > found.forced


@pytest.mark.parametrize("method", METHODS)
def test_an_answer_without_any_choice_needs_no_step(method: Method) -> None:
    found = answers([Constraint.of_regex("abcabc")], method=method)
    assert list(found) == [("abcabc", "stop")]
    assert found.forced == (0 if method == "mask" else 2)
    # No step is spent on an end of text behind it.
    assert answers([Constraint.of_regex("abc")], most=3, method=method) == [("abc", "stop")]


@pytest.mark.parametrize("method", METHODS)
def test_an_answer_of_a_model_without_an_end_ends_where_nothing_else_may_come(method: Method) -> None:
    schema = {"type": "number", "multipleOf": 7919, "minimum": -3, "maximum": 3}
    grammars = Grammars(byte_tokenizer(MERGES).to_str(), VOCABULARY, (), method)
    engine = Engine(small_model(), EngineOptions(kv_bytes=4 << 20, cache="radix"))
    matcher = grammars.matcher(Constraint.of_schema(schema))
    engine.add(Request("0", PROMPT, 9, Sampling(temperature=1.0, seed=0), matcher=matcher))
    assert Answers(engine, grammars) in ([("0", "stop")], [("-0", "stop")])
