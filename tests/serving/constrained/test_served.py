"""Constrained answers over HTTP, by both routes, streamed or not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from chunkbench.serving.engine import Engine, EngineOptions
from chunkbench.serving.server.app import Server, ServerOptions, application
from chunkbench.serving.server.backend import ChunkBackend
from chunkbench.serving.server.records import Log
from chunkbench.serving.server.text import CheckpointTokenizer
from tests.serving.engine.models import small_model, write_byte_tokenizer

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": False}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("model")
    write_byte_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))  # so that the tokenizer is found
    engine = Engine(small_model(), EngineOptions(kv_bytes=4 << 20))
    server = Server(ChunkBackend(engine), ServerOptions("m", 512), CheckpointTokenizer(folder), Log(None), lambda: None)
    with TestClient(application(server)) as client:
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


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"structured_outputs": {"regex": "(a"}},
            "structured_outputs",
            "the constraint cannot be followed: .*unclosed",
        ),
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
