"""Regular expressions as templates, and where a text is in one."""

from __future__ import annotations

import pytest

from chunkbench.server.constrained.template import Gap, Part, Place, parts
from chunkbench.server.constrained.vocabulary import follow_bytes


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


def test_a_gap_ends_with_the_first_character_of_the_next_text_where_it_may_end() -> None:
    gaps = [Gap(follow_bytes('(?:[a-z]{1,3}|"",)"'), b',"h":', False), Gap(follow_bytes("(?:[0-9]+)}"), b"", False)]
    place = Place(b'{"n":"', gaps)
    for text, rest in (('{"n', '":"'), ('":"', ""), ("a", ""), ('b"', ',"h":'), (',"h":', ""), ("12", ""), ("}", "")):
        place.walk(text.encode())
        assert place.rest.decode() == rest, text


def test_a_text_that_leaves_the_template_has_nothing_fixed_any_more() -> None:
    place = Place(b"ab", [Gap(follow_bytes("(?:c)d"), b"e", False)])
    place.walk(b"axcd")
    assert place.rest == b""
