"""The compressed automaton, against the plain meaning of regular expressions."""

from __future__ import annotations

import random
import re

import pytest

from chunkbench.serving.constrained import ConstraintRefused
from chunkbench.serving.constrained.automaton import BEGIN, NOWHERE, Automaton, compile_regex
from chunkbench.serving.constrained.template import Part, parts


def jump_after(automaton: Automaton, text: str) -> str:
    return automaton.jump(automaton.walk(BEGIN, text.encode())).decode()


@pytest.mark.parametrize(
    ("regex", "jumps"),
    [
        (r'\{"name":"[a-z]{1,3}","age":(1|22)\}', {"": '{"name":"', '{"name":"a': "", '{"name":"abc': '","age":'}),
        ("abc|abd", {"": "ab", "abc": ""}),
        ("(ab)*c?", {"": "", "a": "b", "ab": "", "c": ""}),  # a text that may end has a choice
        ("(ab){1,3}x", {"": "ab", "ab": "", "abab": "", "ababab": "x"}),
        ("a[éè]é[z]", {"": "a", "aé": "éz"}),  # é and è begin with the same byte: no jump inside a character
        ("x(é|z)", {"": "x", "x": ""}),
        (r'"[\w\d\s]*",', {"": '"', '"ab': "", '"ab"': ","}),
    ],
)
def test_jumps(regex: str, jumps: dict[str, str]) -> None:
    automaton = compile_regex(regex)
    assert {text: jump_after(automaton, text) for text in jumps} == jumps


def test_no_jump_begins_inside_a_character() -> None:
    automaton = compile_regex("[éà]{2}")
    inside = automaton.walk(BEGIN, "é".encode()[:1])
    assert inside != NOWHERE
    assert compile_regex("é[ax]").jump(compile_regex("é[ax]").walk(BEGIN, "é".encode()[:1])) == b""


@pytest.mark.parametrize(
    ("regex", "complete", "open_"),
    [
        ("abc", "abc", "ab"),
        ("(ab){1,2}", "abab", "ab"),
        ("[a-z]*", None, "ab"),
        ("(?s).{2}", "aé", "a"),
        ("a?", "a", ""),
    ],
)
def test_an_answer_is_complete_where_nothing_may_follow(regex: str, complete: str | None, open_: str) -> None:
    automaton = compile_regex(regex)
    if complete is not None:
        assert automaton.complete(automaton.walk(BEGIN, complete.encode()))
    assert not automaton.complete(automaton.walk(BEGIN, open_.encode()))


def test_it_walks_exactly_the_texts_that_can_still_match() -> None:
    """Also out of states in which the text may end."""
    rng = random.Random(0)
    for regex in ("(ab){1,3}", "(a|b)*c", "a?b?c?", "(abc|ab)(d|cd)?", "[a-c]{2,4}"):
        automaton = compile_regex(regex)
        for _ in range(200):
            text = "".join(rng.choice("abcd") for _ in range(rng.randrange(1, 6)))
            begun = any(re.fullmatch(regex, text + rest) for rest in ("", *_texts(3)))
            assert (automaton.walk(BEGIN, text.encode()) != NOWHERE) == begun, (regex, text)


def _texts(length: int) -> list[str]:
    found = [""]
    for _ in range(length):
        found += [text + letter for text in found for letter in "abcd"]
    return found


@pytest.mark.parametrize(
    ("regex", "message"),
    [
        ("(a|b)*a(a|b){15}", "states: this server takes at most 32768"),
        ("a$b", "no text matches|incompatible"),
        ("(a", "NFA"),
    ],
)
def test_what_has_no_automaton_is_refused(regex: str, message: str) -> None:
    with pytest.raises(ConstraintRefused, match=message):
        compile_regex(regex)


@pytest.mark.slow
def test_a_regular_expression_that_never_ends_is_ended() -> None:
    with pytest.raises(ConstraintRefused, match="its automaton takes more than"):
        compile_regex("(a|b)*a(a|b){40}")


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        (r'\{"n":"[a-z]{1,3}","h":(a|b\))\}', ['+{"n":"', "-[a-z]{1,3}", '+","h":', r"-(a|b\))", "+}"]),
        (r"ab*c\.x{2}", ["+a", "-b*", "+c.", "-x{2}"]),
        (r"[]a]b[[:alpha:]][^]]c", ["-[]a]", "+b", "-[[:alpha:]][^]]", "+c"]),
        (r"\d\p{L}x\n(a(b|[)])c)d", [r"-\d\p{L}", "+x", r"-\n(a(b|[)])c)", "+d"]),
        ("a|b", ["-a|b"]),
        ("(?i)abc", ["-(?i)abc"]),
        ("abc", ["+abc"]),
        ("a+?b", ["-a+?", "+b"]),
    ],
)
def test_templates(regex: str, expected: list[str]) -> None:
    assert parts(regex) == [Part(line[0] == "+", line[1:]) for line in expected]
