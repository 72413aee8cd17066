"""Answers of random models follow random constraints; what cannot be followed is refused with its reason."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time

import jsonschema
import pytest
import transformers
from tokenizers import pre_tokenizers

from chunkbench.serving.constrained import Constraint, ConstraintRefused, Grammars, grammars
from chunkbench.serving.engine import Engine, EngineOptions, Request, Sampling
from chunkbench.serving.engine.engine import Constrained
from tests.serving.engine.models import VOCABULARY, small_model, write_byte_tokenizer

END = 256
"""The token behind those of bytes."""
PROMPT = list(b"Answer: ")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    """Of a tokenizer of bytes, whose ids are those of the small model."""
    folder = write_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer
    tokenizer.add_special_tokens(["<end>"])
    return Grammars(tokenizer.to_str(), VOCABULARY, {END})


class Answers(list[tuple[str, str]]):
    """(text, why it ended) of one answer for each constraint, all at once."""

    steps = preempted = forced = 0


def answers(
    compiled: Grammars,
    constraints: list[Constraint],
    most: int = 40,
    method: Constrained = "mask",
    temperature: float = 1.0,
    kv_bytes: int = 4 << 20,
) -> Answers:
    engine = Engine(
        small_model(), EngineOptions(max_batch=16, kv_bytes=kv_bytes, chunk_size=16, constrained=method, cache="radix")
    )
    for number, constraint in enumerate(constraints):
        sampling = Sampling(temperature=temperature, seed=number)
        matcher = compiled.matcher(constraint)
        engine.add(Request(str(number), PROMPT, most, sampling, frozenset({END}), matcher=matcher))
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(constraints))}
    ends: dict[str, str] = {}
    found = Answers()
    while not engine.idle:
        report = engine.step()
        assert not report.failed
        found.steps += 1
        found.preempted += report.preempted
        for made in report.generated:
            found.forced += made.forced
            tokens[made.request].append(made.token)
            if made.finish:
                ends[made.request] = made.finish
    names = sorted(pre_tokenizers.ByteLevel.alphabet())  # [token] its character
    for name in sorted(tokens, key=int):
        found.append(("".join(names[token] for token in tokens[name] if token != END), ends[name]))
    return found


def random_regex(rng: random.Random, depth: int = 3) -> str:
    """Literals, classes, choices and repetitions over characters that stand for themselves as byte tokens."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(["a", "xyz", "[a-f]", "[0-9]", "[A-Za-z0-9]", "-", "yes", "[^a-z]"]).replace(
            "[^a-z]", "[0-9A-F]"
        )
    parts = [random_regex(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    kind = rng.randrange(3)
    if kind == 0:
        return "".join(parts)
    if kind == 1:
        return f"({'|'.join(parts)})"
    low = rng.randrange(3)
    return f"({parts[0]}){{{low},{low + rng.randrange(1, 3)}}}"


METHODS: tuple[Constrained, ...] = ("mask", "forced-tokens")


@pytest.mark.parametrize("method", METHODS)
def test_answers_match_random_regular_expressions(compiled: Grammars, method: Constrained) -> None:
    rng = random.Random(0)
    regexes = [random_regex(rng) for _ in range(30)]
    found = answers(compiled, [Constraint.of_regex(regex) for regex in regexes], method=method)
    finished = [(regex, text) for regex, (text, end) in zip(regexes, found, strict=True) if end == "stop"]
    assert len(finished) > 25
    for regex, text in finished:
        assert re.fullmatch(regex, text), (regex, text)


def test_answers_match_schemas_and_choices(compiled: Grammars) -> None:
    properties = {"name": {"enum": ["ann", "bob"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}}
    schema = {"type": "object", "properties": properties, "required": ["name", "age"], "additionalProperties": False}
    choices = ["red", 'a "quoted" one', "blue-green"]
    constraints = [Constraint.of_schema(schema)] * 4 + [Constraint.of_choice(choices)] * 4
    found = answers(compiled, constraints)
    assert {end for _, end in found} == {"stop"}
    for text, _ in found[:4]:
        jsonschema.validate(json.loads(text), schema)
        assert " " not in text  # no optional whitespace
    assert all(text.replace("Ġ", " ") in choices for text, _ in found[4:])


@pytest.mark.parametrize("kv_bytes", [4 << 20, 14 << 14], ids=["room", "preempted"])
def test_forced_tokens_leave_greedy_answers_as_they_are_and_save_steps(compiled: Grammars, kv_bytes: int) -> None:
    """Where tokens are bytes, a forced text has one way to be written. Its pieces cross the borders of chunks."""
    rng = random.Random(1)
    constraints = [
        Constraint.of_regex(f'\\{{"{"k" * rng.randrange(1, 40)}":"[a-c]{{1,3}}","{"x" * n}":(yes|no)\\}}')
        for n in range(12)
    ]
    masked = answers(compiled, constraints, 90, "mask", 0.0, kv_bytes)
    jumped = answers(compiled, constraints, 90, "forced-tokens", 0.0, kv_bytes)
    assert jumped == masked
    assert jumped.forced > 12 * 15
    assert jumped.steps < masked.steps / 3
    assert masked.forced == 0
    assert all(bool(found.preempted) == (kv_bytes < 1 << 20) for found in (masked, jumped))


@pytest.mark.parametrize("method", METHODS)
def test_an_answer_that_is_cut_says_length(compiled: Grammars, method: Constrained) -> None:
    for regex in ("[a-z]{100}", "a[b]{100}"):  # also within a forced piece
        ((text, end),) = answers(compiled, [Constraint.of_regex(regex)], 7, method)
        assert (len(text), end) == (7, "length")


def test_an_answer_ends_with_its_last_token_where_nothing_may_follow(compiled: Grammars) -> None:
    """No step is spent on an end-of-sequence token."""
    assert answers(compiled, [Constraint.of_regex("abc")], most=3) == [("abc", "stop")]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constraint.of_regex("(a"), "unclosed group"),
        (lambda: Constraint.of_regex("(?=a)b"), "look-around"),
        (lambda: Constraint.of_regex("x" * 100_000), "this server takes at most 65536"),
        (lambda: Constraint.of_schema("{"), "the schema is not JSON"),
        (lambda: Constraint.of_schema([1]), "must be an object, not list"),
        (lambda: Constraint.of_schema({"type": "strange"}), "Invalid type: strange"),
        (lambda: Constraint.of_schema({"$ref": "#/none"}), "does not exist"),
        (lambda: Constraint.of_choice([]), "at least one text"),
        (lambda: Constraint.of_choice(["a", ""]), "no empty one"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_reason(compiled: Grammars, make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConstraintRefused, match=message):
        compiled.matcher(make())


@pytest.mark.parametrize("regex", ["(x+x+)+y", "(a{1,1000}){1,1000}", "([a-z]{1,500}[0-9]{1,500}){1,500}", "(a|aa)*b"])
def test_a_hostile_regular_expression_costs_little(compiled: Grammars, regex: str) -> None:
    began = time.monotonic()
    with contextlib.suppress(ConstraintRefused):
        answers(compiled, [Constraint.of_regex(regex)], most=20)
    assert time.monotonic() - began < 20


def test_a_constraint_is_compiled_once_and_forgotten_when_many_follow(
    compiled: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "MOST_COMPILED", 2)
    made: list[Constraint] = []
    original = Grammars._compile

    def compiling(self: Grammars, constraint: Constraint) -> object:
        made.append(constraint)
        return original(self, constraint)

    monkeypatch.setattr(Grammars, "_compile", compiling)
    one, two, three = (Constraint.of_regex(f"once{n}") for n in range(3))
    for constraint in (one, two, one, three, one, two):
        compiled.matcher(constraint)
    assert made == [one, two, three, two]
