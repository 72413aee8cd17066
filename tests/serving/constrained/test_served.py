"""Constrained answers over HTTP, by both routes, streamed or not."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.testclient import TestClient

from chunkbench.serving.constrained import Constraint, Grammars, Method
from chunkbench.serving.engine import Engine, EngineOptions
from chunkbench.serving.server.app import Server, ServerOptions, application
from chunkbench.serving.server.backend import ChunkBackend
from chunkbench.serving.server.records import Log
from chunkbench.serving.server.text import CheckpointTokenizer
from tests.serving.engine.models import MERGES, small_model, write_byte_tokenizer

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": False}


def served(folder: Path, method: Method) -> Server:
    write_byte_tokenizer(folder, MERGES)
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


def test_a_stream_is_the_same_text(client: TestClient) -> None:
    fields = {"structured_outputs": {"regex": "[a-c]{5}-[0-9]{3}"}}
    whole = text_of(ask(client, **fields))
    lines = ask(client, stream=True, **fields).text.split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == whole
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert re.fullmatch("[a-c]{5}-[0-9]{3}", whole)


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
        (
            {"structured_outputs": {"regex": "(a"}},
            "structured_outputs",
            "the constraint cannot be followed: .*unclosed",
        ),
        ({"structured_outputs": {"json": "[" * 9000}}, "structured_outputs", "schema is not JSON: recursion limit"),
        ({"structured_outputs": {"json": '{"const": NaN}'}}, "structured_outputs", "the schema is not JSON: "),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "give one of regex, json"),
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


def test_without_the_library_the_message_says_what_to_install(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("llguidance")

    monkeypatch.setattr(Server, "_grammars", None, raising=False)
    monkeypatch.setattr("chunkbench.serving.server.app.Grammars.__init__", missing)
    monkeypatch.setattr("chunkbench.serving.server.app.Grammars.matcher", missing)
    answer = ask(client, structured_outputs={"regex": "a"})
    assert answer.status_code == 400
    assert "pip install 'chunkbench[constrained]'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("method", ["jump-retokenize", "interleaved"])
def test_a_stream_never_changes_its_text_and_tells_the_final_tokens(tmp_path: Path, method: Method) -> None:
    regex = '\\{"name":"(xy|xa)z","no":[0-9]{3},"nap":"(yes|yet)"\\}'
    asked: dict[str, Any] = {"structured_outputs": {"regex": regex}, "return_token_ids": True, "temperature": 2.0}
    with TestClient(application(served(tmp_path, method))) as client:
        for seed in range(8):
            whole = ask(client, max_tokens=60, **asked | {"seed": seed}).json()
            (choice,) = whole["choices"]
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
    told = [json.loads(line)["constrained"] for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    for line in told[:-1]:
        assert line["sampled"] + line["forced"] - line["rolled_back"] >= len(choice["token_ids"]) - 8
        spans = [choice["text"][begin:end] for begin, end in line["spans"]]
        assert "".join(spans).startswith('{"name":"')
        assert sum(map(len, spans)) > 20
        assert line["pieces"] >= 3
    assert any(line["rolled_back"] for line in told) == (method == "jump-retokenize")
