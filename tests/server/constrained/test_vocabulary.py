"""What constrained answers are made of: vocabularies, templates, what was used last."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest
from tokenizers import normalizers

from chunkbench.server.constrained.recent import Recent
from chunkbench.server.constrained.template import Gap, Part, Place, parts
from chunkbench.server.constrained.vocabulary import Vocabulary, follow_bytes, whole_characters
from tests.server.engine.models import END, MERGES, byte_tokenizer, sentencepiece_tokenizer


def jump_after(regex: str, text: str) -> str:
    """What must follow a text, as far as there is no choice."""
    state = follow_bytes(regex)
    assert state.consume_tokens([*text.encode()])
    return whole_characters(state.compute_ff_bytes()).decode()


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
def test_jumps_are_compressed_edges(regex: str, jumps: dict[str, str]) -> None:
    assert {text: jump_after(regex, text) for text in jumps} == jumps


def test_it_walks_exactly_the_texts_that_can_still_match() -> None:
    """Also out of states in which the text may end."""
    rng = random.Random(0)
    rests = ["".join(letters) for length in range(4) for letters in product("abcd", repeat=length)]
    for regex in ("(ab){1,3}", "(a|b)*c", "a?b?c?", "(abc|ab)(d|cd)?", "[a-c]{2,4}"):
        state = follow_bytes(regex)
        for _ in range(200):
            text = "".join(rng.choice("abcd") for _ in range(rng.randrange(1, 6)))
            begun = any(re.fullmatch(regex, text + rest) for rest in rests)
            assert (state.validate_tokens([*text.encode()]) == len(text)) == begun, (regex, text)


TEXTS = ("Cafe\u0301 ABC", " yes", "  two  spaces ", '{"a":1}', "ﬁ Å \t\n")


@pytest.mark.parametrize("normalizer", ["NFC", "NFKD", "Lowercase", "StripAccents", "Strip", None])
def test_tokens_write_each_text_letter_for_letter(normalizer: str | None) -> None:
    """Also where the model's own tokenizer changes it."""
    for tokenizer in (byte_tokenizer(MERGES), sentencepiece_tokenizer()):
        if normalizer:
            own = [tokenizer.normalizer] if tokenizer.normalizer else []
            tokenizer.normalizer = normalizers.Sequence([getattr(normalizers, normalizer)(), *own])
        tokenizer.enable_truncation(2)
        vocabulary = Vocabulary.read(tokenizer.to_str(), tokenizer.get_vocab_size(), {END})
        for text in TEXTS:
            assert vocabulary.decode(vocabulary.of_text(text.encode())) == text


def test_tokens_that_the_model_lacks_write_nothing() -> None:
    tokenizer = byte_tokenizer(MERGES)
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.add_tokens(["whole word"])
    for size in (tokenizer.get_vocab_size() + 8, tokenizer.get_vocab_size() - 1, END + 3, END + 1):
        vocabulary = Vocabulary.read(tokenizer.to_str(), size, {END})
        assert vocabulary.library.vocab_size == len(vocabulary.lengths) == size
        tokens = vocabulary.of_text(b"a name, xyz, whole word")
        assert vocabulary.text(tokens) == b"a name, xyz, whole word"
        assert max(tokens) < size
    ends = Vocabulary.read(tokenizer.to_str(), tokenizer.get_vocab_size(), {END, 65})
    assert ends.text([64, END, 65, 66]) == ends.text([64, 66])


@pytest.mark.parametrize("size", [END + 1 + len(MERGES), 300, 320, END + 2])
def test_a_model_without_an_end_never_chooses_one(size: int) -> None:
    vocabulary = Vocabulary.read(byte_tokenizer(MERGES).to_str(), size, ())
    (end,) = vocabulary.library.eos_tokens
    assert end >= size or not vocabulary.writable[end // 32] >> end % 32 & 1
    assert vocabulary.decode(vocabulary.of_text(b"!a name")) == "!a name"


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


def test_what_was_used_longest_ago_goes_first_and_what_is_too_heavy_alone_costs_the_others_nothing() -> None:
    entries: Recent[str, int] = Recent(3, 10)

    def after(key: str, weight: int) -> str:
        entries.keep(key, 1, weight)
        return "".join(key for key in "abcdef" if entries.get(key) is not None)

    assert [after(key, 3) for key in "abc"] == ["a", "ab", "abc"]
    entries.get("a")
    assert after("d", 3) == "acd"
    assert after("e", 11) == "acd"
    assert after("e", 6) == "de"
    assert after("d", 11) == "e"
