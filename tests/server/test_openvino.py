"""`chunkbench serve --engine openvino`. Most tests need an environment with openvino-genai."""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from click.testing import CliRunner

from chunkbench.cli.main import cli
from chunkbench.server.build import ModelChoice, build_backend
from chunkbench.server.engine import EngineOptions, ModelError
from chunkbench.server.openvino_backend import OpenVINOBackend
from chunkbench.server.openvino_model import write_model
from chunkbench.workloads.serving.servers.chunk_llama import OPENVINO
from tests.server.conftest import PROMPT, ask, client_of, text_of
from tests.server.engine.models import sharp_module
from tests.server.processes import Served, serve
from tests.server.test_server import lines
from tests.server.test_server import test_a_stop_string_ends_the_work as check_work
from tests.server.test_server import test_stop_strings_end_a_chat as check_stop_strings_of_a_chat
from tests.server.test_server import test_stop_strings_end_an_answer_before_them as check_stop_strings
from tests.waiting import wait_until

SMALL = ["small-llama", "--layers", "2", "--vocabulary", "2048", "--served-name", "sharp", "--kv-memory", "200MiB"]


needs_openvino = pytest.mark.skipif(OPENVINO.python is None, reason="no environment with openvino-genai")


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers start in the environment with openvino-genai."""
    monkeypatch.setattr(sys, "executable", str(OPENVINO.python))


def engine_of(server: Served) -> int:
    """Id of the engine's process."""
    pid = server.process.pid
    (engine,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(engine)


def test_without_its_package_the_engine_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    with pytest.raises(ModelError, match="needs openvino-genai: `make openvino-environment` makes"):
        build_backend(ModelChoice("small-llama", torch.float32), "openvino", EngineOptions(), print)


def test_a_model_that_the_engine_cannot_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="kind qwen3 with silu: the engine openvino takes only llama"):
        write_model(sharp_module("qwen3", "sdpa"), tmp_path)
    module = sharp_module("llama-grouped", "sdpa")
    with pytest.raises(ModelError, match="kv_bytes=9000 does not hold a block, which takes 32768 bytes"):
        OpenVINOBackend(module, EngineOptions(kv_bytes=9000))
    with pytest.raises(ModelError, match="which takes 10240 bytes"):  # 32 + 8 for K, 32 + 8 for V, and K's scales
        OpenVINOBackend(module, EngineOptions(kv_bytes=9000, kv_dtype="uint8"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kv-dtype", "int8", "--engine", "openvino"], "openvino stores K and V as same, uint8, not as int8"),
        (["--kv-dtype", "fp8", "--engine", "transformers"], "transformers stores K and V as same, not as fp8"),
        (["--engine", "openvino", "--attention", "no-sharing"], "--attention works only with our engine, not with"),
        (["--engine", "openvino", "--schedule", "prefix"], "not with --engine openvino"),
        (["--engine", "openvino", "--heads", "heads.json"], "--heads works only with our engine"),
    ],
)
def test_options_that_do_not_apply_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["serve", "small-llama", *arguments])
    assert (result.exit_code, message in result.output) == (2, True), result.output


@pytest.mark.slow
@needs_openvino
@pytest.mark.usefixtures("openvino")
def test_answers_are_those_of_transformers(checkpoint: Path, tmp_path: Path) -> None:
    """One by one, all at once, and streamed; Ctrl-C ends the server and its engine."""
    module = sharp_module("llama-grouped", "eager")
    prompts = [PROMPT, [*range(1, 100)], [*range(1, 100), 7], [*range(40, 240)]]
    made = [module.generate(torch.tensor([one]), max_new_tokens=20, do_sample=False, pad_token_id=0) for one in prompts]
    expected = [tokens[0, len(one) :].tolist() for one, tokens in zip(prompts, made, strict=True)]
    options = ["--engine", "openvino", "--dtype", "float32", "--served-name", "sharp", "--kv-memory", "4MiB"]
    with serve(tmp_path / "log", str(checkpoint), *options, "--prompt-budget", "64") as server:
        client = client_of(server)

        def answer(prompt: list[int]) -> list[int]:
            pieces = list(ask(client, prompt=prompt, max_tokens=20, stream=True))
            assert [len(piece.choices[0].token_ids) for piece in pieces] == [1] * 20
            return [piece.choices[0].token_ids[0] for piece in pieces]

        assert [answer(one) for one in prompts] == expected
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(answer, prompts * 2)) == expected * 2
        (stopped,) = ask(client, stop_token_ids=[expected[0][2]]).choices
        assert (stopped.token_ids, stopped.finish_reason) == (expected[0][:3], "stop")
        check_refusals(client)
        check_stop_strings(client)
        check_stop_strings_of_a_chat(client)
        check_work(client, server)
        check_disconnected_clients(client, server)
        facts = json.loads(server.get("/v1/models"))["data"][0]["server"]
        assert (facts["engine"], facts["kv_dtype"], facts["kv_bytes_per_token"]) == ("openvino", "float32", 1024)
        steps, engine = lines(server, "steps"), engine_of(server)
        assert max(step["batch"] for step in steps) > 1
        assert all(0 < step["overhead_s"] < step["s"] for step in steps)
        assert steps[-1]["kv_bytes"] % (32 * 1024) == 0
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 130
        assert not Path(f"/proc/{engine}").exists()
    assert "Traceback" not in (tmp_path / "log.err").read_text()


def check_refusals(client: openai.OpenAI) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 1}, "greedy"),
        ({"logprobs": 1}, "logprobs"),
        ({"use_beam_search": True, "n": 2}, "use_beam_search"),
        ({"prompt": [300]}, "between 0 and 299"),
        ({"max_tokens": 5000}, "takes at most 2048"),
    ]
    for fields, message in refused:
        with pytest.raises(openai.BadRequestError, match=message):
            ask(client, **fields)


def check_disconnected_clients(client: openai.OpenAI, server: Served) -> None:
    """The engine forgets their requests."""
    with ask(client, max_tokens=2000, stream=True) as stream:
        next(iter(stream))
    server.wait_until_idle(5)
    count = len(lines(server, "steps"))
    assert count < 1000
    ask(client)
    wait_until(lambda: len(lines(server, "steps")) == count + 6, limit_s=5)


@pytest.mark.slow
@needs_openvino
@pytest.mark.usefixtures("openvino")
def test_with_u8_a_dead_engine_ends_the_server(tmp_path: Path) -> None:
    with serve(tmp_path / "log", *SMALL, "--engine", "openvino", "--dtype", "float32", "--kv-dtype", "uint8") as server:
        client = client_of(server)
        assert len(ask(client).choices[0].token_ids) == 6
        facts = json.loads(server.get("/v1/models"))["data"][0]["server"]
        assert facts["kv_dtype"] == "uint8"
        stream = ask(client, max_tokens=2000, stream=True)
        first = next(iter(stream))
        os.kill(engine_of(server), signal.SIGKILL)
        with pytest.raises(openai.APIError, match="OpenVINO's process was ended by SIGKILL"):
            text_of([first, *stream])
        assert server.process.wait(30) == 1


@pytest.mark.slow
@needs_openvino
@pytest.mark.usefixtures("openvino")
def test_the_engine_ends_with_its_server(tmp_path: Path) -> None:
    with serve(tmp_path / "log", *SMALL, "--engine", "openvino", "--dtype", "float32", "--cache", "live") as server:
        engine = engine_of(server)
        next(iter(ask(client_of(server), max_tokens=2000, stream=True)))
        server.process.kill()
        wait_until(lambda: not Path(f"/proc/{engine}/exe").exists(), limit_s=10)
