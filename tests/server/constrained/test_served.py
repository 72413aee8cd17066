"""Constrained answers over HTTP, by both routes, streamed or not."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.testclient import TestClient
from tokenizers import Tokenizer, models

from chunkbench.server.app import Server, ServerOptions, application
from chunkbench.server.backend import ChunkBackend
from chunkbench.server.constrained import Constraint, Grammars, Matcher, Method
from chunkbench.server.engine import Engine, EngineOptions
from chunkbench.server.records import Log
from chunkbench.server.text import CheckpointTokenizer
from tests.server.constrained.drawn import normalising_tokenizer
from tests.server.engine.models import (
    END,
    MERGES,
    VOCABULARY,
    byte_tokenizer,
    sentencepiece_tokenizer,
    small_model,
    write_tokenizer,
)

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": False}
UNIQUE = {"type": "object", "properties": {"v": {"type": "array", "uniqueItems": True}}}


def served(folder: Path, method: Method, tokenizer: Tokenizer | None = None) -> Server:
    write_tokenizer(folder, tokenizer or byte_tokenizer(MERGES))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))  # so that the tokenizer is found
    backend = ChunkBackend(Engine(small_model(), EngineOptions(kv_bytes=4 << 20, cache="radix")))
    options = ServerOptions("m", 512, constrained=method)
    return Server(backend, options, CheckpointTokenizer(folder), Log(folder), lambda: None)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with TestClient(application(served(tmp_path_factory.mktemp("model"), "mask"))) as client:
        yield client


def ask(client: TestClient, route: str = "completions", **fields: Any) -> Any:
    asked = {"prompt": "A number: "} if route == "completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    return client.post(f"/v1/{route}", json={"model": "m", "max_tokens": 30, "seed": 1, **asked, **fields})


def text_of(answer: Any) -> str:
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "stop"
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_schemas_regular_expressions_and_choices(client: TestClient, route: str) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
    assert json.loads(text_of(ask(client, route, response_format=schema)))["n"] in (1, 22)
    for outputs in ({"json": SCHEMA}, {"json": json.dumps(SCHEMA)}):
        assert json.loads(text_of(ask(client, route, structured_outputs=outputs)))["n"] in (1, 22)
    assert re.fullmatch("[0-9]{4}", text_of(ask(client, route, structured_outputs={"regex": "[0-9]{4}"})))
    assert text_of(ask(client, route, structured_outputs={"choice": ["up", "down"]})) in ("up", "down")
    free = ask(client, route, response_format={"type": "text"}, structured_outputs={}).json()
    assert free["choices"][0]["finish_reason"] == "length"


def test_constraints_are_compiled_one_at_a_time_and_not_for_clients_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each takes shows in the heap, which does not tell two apart."""
    server, compiled, compiling, most, made = served(tmp_path, "mask"), Grammars._compile, 0, 0, list[str]()

    def watched(grammars: Grammars, constraint: Constraint) -> Any:
        nonlocal compiling, most
        compiling += 1
        most = max(most, compiling)
        made.append(constraint.text)
        time.sleep(0.02)
        found = compiled(grammars, constraint)
        compiling -= 1
        return found

    monkeypatch.setattr(Grammars, "_compile", watched)

    async def client(text: str) -> None:
        async def receive() -> Any:
            if text.islower():
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        await server._matcher(Request({"type": "http"}, receive), "regex", Constraint.of_regex(text * 3))

    async def together() -> list[BaseException | None]:
        return await asyncio.gather(*map(client, "aBcDe"), return_exceptions=True)

    ends = asyncio.run(together())
    assert [type(end) for end in ends] == [type(None), ClientDisconnect, type(None), ClientDisconnect, type(None)]
    assert (most, made) == (1, ["aaa", "ccc", "eee"])


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "constraint cannot be followed: .*unclosed"),
        ({"structured_outputs": {"json": "[" * 9000}}, "structured_outputs", "schema is not JSON: recursion limit"),
        ({"structured_outputs": {"json": '{"const": NaN}'}}, "structured_outputs", "the schema is not JSON: "),
        ({"structured_outputs": {"json": UNIQUE}}, "structured_outputs", r'keys: \["uniqueItems"\] at #/properties/v'),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "give one of regex, json"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs", "no token with which an answer can begin"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs", "structured_outputs.grammar .* not supported"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema is missing"),
        ({"response_format": {"type": "xml"}}, "response_format", "is not valid"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "give one of response_format and structured_outputs",
        ),
        ({"response_format": {"type": "json_object"}, "min_tokens": 2}, "min_tokens", "leave min_tokens out"),
    ],
)
def test_a_bad_constraint_is_a_400_that_says_why(
    client: TestClient, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = ask(client, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert re.search(message, error["message"]), error["message"]


@pytest.mark.parametrize("method", ["mask", "jump-retokenize", "interleaved"])
def test_a_stream_never_changes_its_text_and_tells_the_final_tokens(tmp_path: Path, method: Method) -> None:
    regex = '\\{"name":"(xy|xa)z","no":[0-9]{3},"nap":"(yes|yet)"\\}'
    asked: dict[str, Any] = {"structured_outputs": {"regex": regex}, "return_token_ids": True, "temperature": 2.0}
    with TestClient(application(served(tmp_path, method))) as client:
        several = ask(client, max_tokens=60, n=6, **asked | {"seed": 0}).json()["choices"]
        for seed in range(6):
            whole = ask(client, max_tokens=60, **asked | {"seed": seed}).json()
            (choice,) = whole["choices"]
            assert choice | {"index": seed} == several[seed]
            options = {"include_usage": True, "continuous_usage_stats": True}
            lines = ask(client, max_tokens=60, stream=True, stream_options=options, **asked | {"seed": seed}).text
            *events, total = [json.loads(line[6:]) for line in lines.split("\n\n") if line.startswith("data: {")]
            assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]
            assert re.fullmatch(regex, choice["text"])
            told = [token for event in events for token in event["choices"][0]["token_ids"]]
            assert told == choice["token_ids"]
            assert total["usage"] == whole["usage"]
            assert total["usage"]["completion_tokens"] == len(told)
        cut = ask(client, max_tokens=9, **asked).json()
        assert cut["choices"][0]["finish_reason"] == "length"
        assert cut["usage"]["completion_tokens"] == 9
        (scored,) = ask(client, max_tokens=60, logprobs=1, echo=True, **asked).json()["choices"]
        assert re.search(regex, scored["text"])
        assert None not in scored["logprobs"]["token_logprobs"][1:]
    told = [json.loads(line)["constrained"] for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    for line in told[:-2]:
        assert line["sampled"] + line["forced"] - line["rolled_back"] >= len(choice["token_ids"]) - 8
        spans = [choice["text"][begin:end] for begin, end in line["spans"]]
        assert "".join(spans).startswith('{"name":"') == (method != "mask")
        assert (sum(map(len, spans)) > 20) == (method != "mask")
        assert line["pieces"] >= 3 or method == "mask"
    assert any(line["rolled_back"] for line in told) == (method == "jump-retokenize")


def asked(folder: Path, tokenizer: Tokenizer, **outputs: Any) -> Any:
    """The answer of a server of a tokenizer."""
    with TestClient(application(served(folder, "forced-tokens", tokenizer))) as client:
        return ask(client, prompt=[1, 2, 3], max_tokens=60, structured_outputs=outputs)


def test_an_answer_has_the_letters_of_its_constraint_whatever_the_tokenizer_makes_of_texts(tmp_path: Path) -> None:
    """It drops a first space, normalises, is longer than the embedding, or cannot be read."""
    longer, broken = byte_tokenizer(MERGES), sentencepiece_tokenizer()
    longer.add_tokens([f"word {number}" for number in range(VOCABULARY)])
    texts = {" yes": sentencepiece_tokenizer(), "Cafe\u0301 ABC": normalising_tokenizer(), "word 290": longer}
    for number, (text, tokenizer) in enumerate(texts.items()):
        assert text_of(asked(tmp_path / str(number), tokenizer, choice=[text])) == text
    names = {"<0xZZZ>" if name == "!" else name: token for name, token in broken.get_vocab().items()}
    broken.model = models.BPE(names, [], byte_fallback=True, unk_token="<unk>")
    answer = asked(tmp_path / "broken", broken, regex="a")
    assert answer.status_code == 400
    assert "llguidance cannot read the model's tokenizer: " in answer.json()["error"]["message"]


def test_without_the_library_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    answer = asked(tmp_path, byte_tokenizer(MERGES), regex="a")
    assert answer.status_code == 400
    assert "pip install 'chunkbench[constrained]'" in answer.json()["error"]["message"]


def test_a_constraint_ends_the_answer_whatever_ignore_eos_says(client: TestClient) -> None:
    for seed in range(4):
        outputs = {"structured_outputs": {"regex": "x[ab]?"}, "stop_token_ids": [END]}
        fields = {**outputs, "ignore_eos": True, "return_token_ids": True}
        answer = ask(client, **fields, seed=seed)
        text = text_of(answer)
        (choice,) = answer.json()["choices"]
        assert re.fullmatch("x[ab]?", text)
        assert choice["token_ids"] == [*byte_tokenizer(MERGES).encode(text).ids, *[END] * (text == "x")]


def test_what_cannot_be_followed_further_fails_with_its_reason(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of llguidance stops it, and is no end of an answer."""
    monkeypatch.setattr(Matcher, "_accept", lambda self, token: self._state.consume_token(7))
    answer = ask(client, structured_outputs={"regex": "[a-c]{5}"})
    assert answer.status_code == 400
    assert "the constraint allows no token: Parser Error" in answer.json()["error"]["message"]


def test_a_panic_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic of a library in Rust is an exception, but no Exception."""

    class Panic(BaseException):
        pass

    def panics(*_: object) -> None:
        raise Panic("out of range")

    server, ended = served(tmp_path, "mask"), list[bool]()
    server._ended = lambda: ended.append(True)
    monkeypatch.setattr(Matcher, "_allow", panics)
    with TestClient(application(server)) as client:
        for _ in range(2):
            answer = ask(client, structured_outputs={"regex": "[a-c]{5}"})
            assert (answer.status_code, ended) == (503, [True])
            assert "the engine broke: Panic: out of range" in answer.json()["error"]["message"]
        assert client.get("/health").status_code == 503


def test_created_is_one_time_for_a_stream(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1_700_000_000)
    monkeypatch.setattr("chunkbench.server.app.time.time", lambda: next(clock))
    lines = ask(client, stream=True, stream_options={"include_usage": True}).text.split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert len(events) > 5
    assert len({event["created"] for event in events}) == 1


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_whole_numbers_may_be_written_with_a_point(client: TestClient, route: str) -> None:
    whole = {"max_tokens": 16.0, "seed": 3.0, "top_k": 5.0, "min_tokens": 1.0, "n": 1.0, "stop_token_ids": [256.0]}
    answer = ask(client, route, **whole, chat_template_kwargs={}, documents=[], return_token_ids=True)
    plain = ask(client, route, **{name: value for name, value in whole.items() if name != "n"} | {"seed": 3})
    assert answer.json()["usage"]["completion_tokens"] == plain.json()["usage"]["completion_tokens"]
    for name in ("max_tokens", "seed", "top_k"):
        refused = ask(client, route, **{name: 16.5})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
