"""The server as its clients see it: the real process, the real `openai` client."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import openai
import pytest
import torch
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

import chunkbench
from chunkbench.cli.main import cli
from chunkbench.server.build import ModelChoice
from chunkbench.workloads.serving.servers.vllm import VLLM
from tests.server.conftest import ORIGIN, POISON, PROMPT, ask, chat, client_of, text_of
from tests.server.engine.models import VOCABULARY, sharp_module, write_checkpoint
from tests.server.processes import Served, serve
from tests.torture.fuzz_http import Fuzz
from tests.torture.soak import Soak
from tests.torture.trials import Trial
from tests.waiting import wait_until


def lines(served: Served, name: str) -> list[dict[str, Any]]:
    text = (served.log / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_greedy_tokens_are_those_of_transformers(client: openai.OpenAI) -> None:
    module = sharp_module("llama-grouped", "eager")
    made = module.generate(torch.tensor([PROMPT]), max_new_tokens=6, do_sample=False, pad_token_id=0)
    expected = made[0, 8:].tolist()
    answer = ask(client)
    (choice,) = answer.choices
    assert (choice.token_ids, choice.finish_reason) == (expected, "length")
    assert choice.text == " ".join(f"w{token}" for token in expected)
    for same in (" ".join(f"w{token}" for token in PROMPT), [PROMPT]):
        assert ask(client, prompt=same).choices[0].text == choice.text
    (stopped,) = ask(client, stop_token_ids=[expected[2]]).choices
    assert (stopped.token_ids, stopped.finish_reason) == (expected[: expected.index(expected[2]) + 1], "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (8, 6, 14)


def test_a_stream_carries_the_same_tokens_one_by_one(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0]
    pieces = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert [piece.choices[0].token_ids for piece in pieces[:-1]] == [[token] for token in whole.token_ids]
    assert text_of(pieces) == whole.text
    assert [piece.choices[0].finish_reason for piece in pieces[:-1]] == [None] * 5 + ["length"]
    assert pieces[-1].choices == []
    assert pieces[-1].usage.completion_tokens == 6
    assert all(piece.usage is None for piece in ask(client, stream=True))
    options = {"include_usage": True, "continuous_usage_stats": True}
    pieces = list(ask(client, stream=True, stream_options=options))
    assert [piece.usage.completion_tokens for piece in pieces] == [1, 2, 3, 4, 5, 6, 6]
    assert {piece.usage.prompt_tokens for piece in pieces} == {8}


def test_stop_strings_end_an_answer_before_them(client: openai.OpenAI) -> None:
    """Streamed or not, by both routes. The tokens of the stop string are generated, so they are counted."""
    whole = ask(client, max_tokens=40).choices[0].text
    words = whole.split()
    third = f"{words[1][-1]} {words[2]}"  # it begins in the middle of a token
    assert whole.index(third) > 0
    expected = whole[: whole.index(third)]
    assert len(expected.split()) <= 2
    for stop in (third, ["not there", third], [third, words[30] + "x"]):
        answer = ask(client, max_tokens=40, stop=stop)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected, "stop")
        assert answer.usage.completion_tokens == 3
        pieces = list(ask(client, max_tokens=40, stop=stop, stream=True))
        assert text_of(pieces) == expected
        assert [piece.choices[0].finish_reason for piece in pieces] == [None, None, "stop"]
    later = ask(client, max_tokens=40, stop=third, min_tokens=3)
    assert later.choices[0].text.startswith(expected)
    assert later.usage.completion_tokens > 3
    assert ask(client, max_tokens=40, stop="not there").choices[0].text == whole
    assert ask(client, max_tokens=40, stop="").choices[0].text == whole


def test_stop_strings_end_a_chat(client: openai.OpenAI) -> None:
    whole = chat(client, max_tokens=20).choices[0].message.content
    stop = whole.split()[4]
    expected = whole[: whole.index(stop)]
    (choice,) = chat(client, max_tokens=20, stop=[stop]).choices
    assert (choice.message.content, choice.finish_reason) == (expected, "stop")
    pieces = list(chat(client, max_tokens=20, stop=stop, stream=True))
    assert (text_of(pieces), pieces[-1].choices[0].finish_reason) == (expected, "stop")


def test_a_stop_string_ends_the_work(client: openai.OpenAI, served: Served) -> None:
    """The engine forgets the request: it has nothing to do long before 2,000 tokens, and counts it as finished."""
    stop = ask(client).choices[0].text.split()[2]
    answer = ask(client, max_tokens=2000, stop=stop, ignore_eos=True)
    assert answer.usage.completion_tokens <= 3
    wait_until(lambda: served.metric("requests_running") == 0, limit_s=2)


@pytest.mark.parametrize("fields", [{}, {"temperature": 1}, {"stream": True}], ids=str)
def test_a_request_whose_logits_are_not_numbers_fails_alone(
    served: Served, client: openai.OpenAI, fields: dict[str, Any]
) -> None:
    prompt = [n % 250 for n in range(150)]
    stream = ask(client, prompt=prompt, max_tokens=100, stream=True)
    whole = [next(iter(stream)).choices[0].token_ids[0]]
    with pytest.raises(openai.APIError, match="logits for token 151 are NaN or infinite"):
        list(ask(client, prompt=[*prompt, POISON], **fields))
    whole += [piece.choices[0].token_ids[0] for piece in stream]
    assert ask(client, prompt=prompt, max_tokens=100).choices[0].token_ids == whole
    assert served.metric('requests_total{outcome="failed"}') >= 1
    assert json.loads(served.get("/health")) == {"status": "ok"}


def test_chat_uses_the_template(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "w7"}, {"role": "user", "content": [{"type": "text", "text": "w8"}]}]
    whole = chat(client, messages=messages, max_tokens=4)
    assert whole.usage.prompt_tokens == 4
    assert whole.choices[0].message.content == ask(client, prompt=[1, 7, 2, 8], max_tokens=4).choices[0].text
    stream = list(chat(client, messages=messages, max_completion_tokens=4, stream=True))
    assert [piece.choices[0].delta.role for piece in stream] == ["assistant", None, None, None]
    assert text_of(stream) == whole.choices[0].message.content


def test_models_names_what_is_measured(client: openai.OpenAI, served: Served) -> None:
    (model,) = json.loads(served.get("/v1/models"))["data"]
    assert (model["id"], model["server"]["attention"], model["server"]["dtype"]) == ("sharp", "two-phase", "float32")
    assert model["max_model_len"] == 2048
    assert client.models.retrieve("sharp").id == "sharp"
    with pytest.raises(openai.NotFoundError, match="the model other/one does not exist"):
        client.models.retrieve("other/one")
    status, body = served.post("/v1/embeddings", {})
    assert (status, body["error"]["message"]) == (404, "POST /v1/embeddings: Not Found")


CONSTRAINED = {"structured_outputs": {"choice": ["w1"]}}
CHANGES: list[tuple[dict[str, object], str, str | None]] = [
    ({"model": "other"}, "the model other does not exist; this server has sharp", "model"),
    ({"prompt": [1] * 2100}, "together 2106: this server takes at most 2048", "prompt"),
    ({"prompt": []}, "the prompt is empty", "prompt"),
    ({"prompt": [VOCABULARY]}, "token ids of the prompt must lie between 0 and 299", "prompt"),
    ({"prompt": [[1], [2], []]}, "prompt 2: the prompt is empty", "prompt"),
    ({"prompt": ["w1", [2]]}, "the field prompt is not valid", "prompt"),
    ({"prompt": [[1]] * 1025}, "1025 prompts with n = 1 ask for 1025 answers: this server", "prompt"),
    ({"prompt": {"a": 1}}, "the field prompt is not valid", "prompt"),
    ({"prompt": None}, "the field prompt is missing", "prompt"),
    ({"max_tokens": 0}, "the field max_tokens is not valid", "max_tokens"),
    ({"max_tokens": 10**400}, "the field max_tokens is not valid", "max_tokens"),
    ({"temperature": -1}, "temperature must lie between", "temperature"),
    ({"temperature": 10**400}, "the field temperature is not valid", "temperature"),
    ({"top_p": 0}, "top_p must be above 0", "top_p"),
    ({"seed": 2**64, "temperature": 1}, "seed must lie between -2**63 and 2**64 - 1", "seed"),
    ({"top_k": -2}, "top_k must be at least 1", "top_k"),
    ({"min_tokens": 7}, "min_tokens must be at least 0 and at most max_tokens = 6, not 7", "min_tokens"),
    ({"stop_token_ids": [-1]}, "the field stop_token_ids is not valid", "stop_token_ids"),
    ({"prompt": [1, True]}, "the field prompt is not valid", "prompt"),
    ({"stream_options": {"include_usage": 1}}, "the field stream_options is not valid", "stream_options"),
    ({"stream_options": {"odd": 1}}, "the field stream_options.odd = 1 is not supp", "stream_options"),
    ({"model": "m" * 2000}, "the field model is not valid", "model"),
    ({"n": 0}, "the field n is not valid", "n"),
    ({"logprobs": 21}, "logprobs is not valid: input should be less than or equal to 20", "logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "leave stream out", "prompt_logprobs"),
    ({"n": 33}, "n must be at most 32, not 33: this server computes at most", "n"),
    ({"n": 2, "temperature": 1, "seed": 2**64 - 1}, "seed must lie between", "seed"),
    ({"stop": ["w1", ""]}, "the field stop is not valid: string should have at least 1 character", "stop"),
    ({"nonsense": 1}, "the field nonsense = 1 is not supported", "nonsense"),
    ({"presence_penalty": 0.5}, "the field presence_penalty = 0.5 is not supported", "presence_penalty"),
    ({"use_beam_search": True, "stream": True}, "use_beam_search goes without stream", "use_beam_search"),
    ({"use_beam_search": True, "logprobs": 1}, "use_beam_search goes without logprobs", "use_beam_search"),
    ({**CONSTRAINED, "use_beam_search": True}, "use_beam_search goes without a constraint", "use_beam_search"),
]
"""What differs from a good request for a completion; what the message says; the field that it names."""
CALL = b'{"model": "sharp", "messages": [{"role": "user", "tool_calls": [{"id": 1}]}]}'
IMAGE = b'{"model": "sharp", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}'
BODIES: list[tuple[str, object, str, str | None]] = [
    ("completions", b"[" * 100_000, "the body is not JSON: recursion limit exceeded", None),
    ("completions", b'{"model": "sharp", "prompt": "\\ud800 "}', "the body is not JSON: ", None),
    ("completions", b'{"model": "\xff"}', "the body is not JSON: ", None),
    ("completions", b'{"temperature": NaN}', "the body is not JSON: ", None),
    ("completions", b'{"model": "sharp", "prompt": "w1", "temperature": 1e999}', "must lie between", "temperature"),
    ("chat/completions", b'{"model": "sharp", "messages": [{"role": "\\ud800"}]}', "the body is not JSON: ", None),
    ("chat/completions", b'{"model": "sharp", "messages": []}', "the field messages is not valid", "messages"),
    ("chat/completions", b'{"model": "sharp", "messages": [[]]}', "the field messages is not valid", "messages"),
    ("chat/completions", CALL, "the field messages.tool_calls = [{'id': 1}] is not supported", "messages"),
    ("chat/completions", b'{"model": "sharp", "messages": [{"role": "sum"}]}', "template refuses", "messages"),
    ("chat/completions", b'{"model": "sharp", "messages": [{"role": "odd"}]}', "no odd roles", "messages"),
    ("chat/completions", IMAGE, "a message has a part of type 'image_url'; text only", "messages"),
    ("completions", b"{", "the body is not JSON", None),
    ("completions", b"[]", "the body must be a JSON object", None),
]
GOOD = {"model": "sharp", "prompt": PROMPT, "max_tokens": 6}


@pytest.mark.parametrize(
    ("route", "body", "message", "param"),
    [*(("completions", GOOD | change, message, param) for change, message, param in CHANGES), *BODIES],
)
def test_what_cannot_be_done_is_refused(
    served: Served, route: str, body: object, message: str, param: str | None
) -> None:
    status, answer = served.post(f"/v1/{route}", body)
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    assert status == (404 if "does not exist" in message else 400)
    assert message in answer["error"]["message"]
    assert (answer["error"]["type"], answer["error"]["param"]) == (kind, param)


def test_fields_that_ask_for_nothing_are_taken(client: openai.OpenAI) -> None:
    fields = {"n": 1, "logprobs": None, "stop": None, "echo": False, "presence_penalty": 0, "best_of": 1}
    fields |= {"top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0}
    fields |= {"user": "me", "metadata": {"run": "1"}, "store": True, "service_tier": "flex", "request_id": "c"}
    fields |= {"safety_identifier": "a", "prompt_cache_key": "b", "parallel_tool_calls": True}
    assert ask(client, **fields).choices == ask(client).choices
    message = {"role": "user", "content": "w8", "name": None, "tool_calls": [], "refusal": None}
    fields |= {"response_format": {"type": "text"}, "modalities": ["text"], "tool_choice": "auto"}
    assert chat(client, max_tokens=2, messages=[message], **fields).choices == chat(client, max_tokens=2).choices


def test_metrics_have_the_names_of_vllm_too(served: Served, client: openai.OpenAI) -> None:
    ask(client)
    page = served.get("/metrics")
    labels = '{engine="0",model_name="sharp"}'
    for theirs, own in [
        ("num_requests_running", "requests_running"),
        ("num_requests_waiting", "requests_waiting"),
        ("kv_cache_usage_perc", "kv_usage"),
        ("prompt_tokens_total", "prompt_tokens_total"),
        ("prefix_cache_queries_total", "prompt_tokens_total"),
        ("prefix_cache_hits_total", "cached_tokens_total"),
        ("generation_tokens_total", "generated_tokens_total"),
        ("num_preemptions_total", "preemptions_total"),
        ("time_to_first_token_seconds_count", "first_token_seconds_count"),
        ("inter_token_latency_seconds_sum", "gap_seconds_sum"),
        ("e2e_request_latency_seconds_count", "request_seconds_count"),
    ]:
        (value,) = re.findall(rf"^vllm:{theirs}{re.escape(labels)} (.*)$", page, re.MULTILINE)
        assert f"chunkbench_{own} {value}\n" in page
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="sharp"}' in page
    assert 'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.05",model_name="sharp"}' in page
    asked = served.get("/metrics", accept="application/openmetrics-text")
    families = {family.name: family for family in openmetrics(asked)}
    assert families["vllm:generation_tokens"].samples[0].value > 0


def test_tokens_of_a_text_and_back(served: Served) -> None:
    told = served.post("/tokenize", {"model": "sharp", "prompt": "w3 w1", "return_token_strs": True})[1]
    assert told == {"count": 2, "max_model_len": 2048, "tokens": [3, 1], "token_strs": [" w3", " w1"]}
    assert served.post("/tokenize", {"messages": [{"role": "user", "content": "w8"}]})[1]["tokens"] == [1, 8]
    assert served.post("/detokenize", {"tokens": [3, 1]}) == (200, {"prompt": "w3 w1"})
    for path, body, param in [
        ("/tokenize", {"prompt": "w3", "messages": []}, "prompt"),
        ("/tokenize", {"model": "other", "prompt": "w3"}, "model"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ]:
        status, answer = served.post(path, body)
        assert (status // 100, answer["error"]["param"]) == (4, param)
    assert json.loads(served.get("/version")) == {"version": chunkbench.__version__}
    assert json.loads(served.get("/ping")) == {"status": "ok"}


def test_a_salt_separates_prefixes(client: openai.OpenAI) -> None:
    prompt = [(11 * n) % 250 for n in range(200)]

    def cached(**salt: str) -> int:
        usage = ask(client, prompt=prompt, **salt).usage
        return int(usage.prompt_tokens_details.cached_tokens)

    one, two = {"cache_salt": "one"}, {"cache_salt": "two"}
    assert [cached(), cached(**one), cached(**two), cached(**one), cached()] == [0, 0, 0, 192, 192]


def test_pages_of_an_allowed_origin_may_send_requests(served: Served) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}

    def preflight(origin: str) -> HttpRequest:
        return HttpRequest(f"{served.url}/v1/completions", headers={**asked, "origin": origin}, method="OPTIONS")

    with urlopen(preflight(ORIGIN), timeout=30) as answer:
        assert answer.headers["access-control-allow-origin"] == ORIGIN
    with pytest.raises(HTTPError, match="400"):
        urlopen(preflight("http://others.example"), timeout=30)


def test_top_k_and_min_tokens_change_the_answer(client: openai.OpenAI) -> None:
    def hot(**others: Any) -> Any:
        return ask(client, **{"temperature": 50, "seed": 3, **others}).choices[0].token_ids

    greedy = hot(temperature=0)
    assert hot(top_k=1) == greedy != hot() == hot()
    assert hot(seed=4) != hot()
    longer = hot(top_k=1, min_tokens=5, stop_token_ids=[greedy[1]])
    assert (longer[0], len(longer) >= 5, greedy[1] in longer[:4]) == (greedy[0], True, False)


def test_a_body_that_is_too_large_keeps_nobody_waiting(served: Served) -> None:
    """Neither does one that is as large as it may be."""
    most = (1 << 20) + 32 * 2048
    bodies = [
        b'{"prompt": [' + b"1," * (20 << 20) + b"1]}",
        b'{"model": "sharp", "prompt": [%s1]}' % (b"1," * (most // 2 - 99)),
    ]
    slowest = 0.0
    with ThreadPoolExecutor() as senders:
        answers = [senders.submit(served.post, "/v1/completions", body) for body in bodies]
        while not all(answer.done() for answer in answers):
            begin = time.monotonic()
            served.get("/health")
            slowest = max(slowest, time.monotonic() - begin)
    assert slowest < 1
    by_status = {status: body["error"]["message"] for status, body in (answer.result() for answer in answers)}
    assert by_status[413] == f"the body has {len(bodies[0])} bytes: this server takes at most {most}"
    assert "this server takes at most 2048" in by_status[400]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_chunks(served: Served, stream: bool) -> None:
    dropped = 'requests_total{outcome="dropped"}'
    assert served.metric("kv_bytes") == 0
    before = served.metric(dropped) if dropped in served.get("/metrics") else 0
    host, port = served.url.removeprefix("http://").split(":")
    endless = {"temperature": 0, "max_tokens": 2000, "ignore_eos": True}
    body = json.dumps({"model": "sharp", "prompt": PROMPT, "stream": stream, **endless}).encode()
    with socket.create_connection((host, int(port))) as line:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        line.sendall(head.encode() + body)
        wait_until(lambda: served.metric("kv_bytes") > 0)
    wait_until(lambda: served.metric("kv_bytes") == 0)
    assert served.metric(dropped) == before + 1


@pytest.mark.parametrize("number", [0, 1])
def test_bad_requests_change_no_good_one(served: Served, tmp_path: Path, number: int) -> None:
    """The short version of `make torture PART="fuzz HTTP"`."""
    Fuzz(served)(Trial(number, random.Random(number), tmp_path))


def test_a_stretch_of_load_leaves_nothing(served: Served, tmp_path: Path) -> None:
    """The short version of `make torture PART=soak`, without constraints: these tokens write no JSON."""
    Soak(served, different=4, requests=12, constrained=0)(Trial(0, random.Random(0), tmp_path))


def test_the_log_has_each_step_and_each_request(served: Served, client: openai.OpenAI) -> None:
    before = time.perf_counter()
    ask(client, max_tokens=3)
    wait_until(lambda: any(line["received"] > before for line in lines(served, "requests")))
    (request,) = [line for line in lines(served, "requests") if line["received"] > before]
    assert (request["prompt_tokens"], request["generated"], request["outcome"]) == (8, 3, "finished")
    assert before < request["received"] < request["first"] < request["last"]
    steps = [line for line in lines(served, "steps") if line["ended"] > before and line["batch"]]
    assert [step["prompt_tokens"] for step in steps] == [8, 0, 0]
    assert [step["generated"] for step in steps] == [1, 1, 1]
    assert all(sum(step["parts"].values()) == pytest.approx(step["s"]) for step in steps)
    assert all(step["kv_bytes"] > 0 and 0 < step["tree_s"] < step["overhead_s"] < step["s"] for step in steps)


def test_a_full_queue_is_429_and_sigterm_answers_what_runs(checkpoint: Path, tmp_path: Path) -> None:
    """The disk of its log is full, which changes nothing."""
    (tmp_path / "log").mkdir()
    for name in ("steps.jsonl", "requests.jsonl"):
        (tmp_path / "log" / name).symlink_to("/dev/full")
    limits = ["--max-batch", "1", "--max-waiting", "1", "--dtype", "float32", "--served-name", "sharp"]
    with serve(tmp_path / "log", str(checkpoint), *limits) as server:
        long = {"model": "sharp", "prompt": PROMPT, "max_tokens": 600, "temperature": 0, "ignore_eos": True}
        with ThreadPoolExecutor() as clients:
            first = clients.submit(server.post, "/v1/completions", long)
            wait_until(lambda: server.metric("requests_running") == 1)
            second = clients.submit(server.post, "/v1/completions", long)
            wait_until(lambda: server.metric("requests_waiting") == 1)
            status, body = server.post("/v1/completions", long)
            assert (status, body["error"]["code"]) == (429, "queue_full")
            assert server.stop() == 0
        for status, answer in (first.result(), second.result()):
            assert (status, answer["usage"]["completion_tokens"]) == (200, 600)
        errors = (tmp_path / "log.err").read_text()
        for name in ("steps.jsonl", "requests.jsonl"):
            assert errors.count(f"{name} ends here: No space left on device") == 1


@pytest.mark.slow
def test_transformers_behind_the_same_front(checkpoint: Path, tmp_path: Path, client: openai.OpenAI) -> None:
    options = ["--engine", "transformers", "--dtype", "float32", "--served-name", "sharp", "--kv-memory", "4MiB"]
    with serve(tmp_path / "log", str(checkpoint), *options) as server:
        theirs = client_of(server)
        for prompt in (PROMPT, [*range(100)]):
            assert ask(theirs, prompt=prompt).choices[0].text == ask(client, prompt=prompt).choices[0].text
        pieces = list(ask(theirs, stream=True))
        assert [piece.choices[0].finish_reason for piece in pieces] == [None] * 5 + ["length"]
        with pytest.raises(openai.BadRequestError, match="greedy"):
            ask(theirs, temperature=1)
        assert json.loads(server.get("/v1/models"))["data"][0]["server"]["engine"] == "transformers"
        test_stop_strings_end_an_answer_before_them(theirs)
        test_stop_strings_end_a_chat(theirs)
        test_a_stop_string_ends_the_work(theirs, server)
        assert server.stop() == 0


BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve`: the console program of vLLM's build for CPUs fails before it reads its arguments."""


@pytest.mark.skipif(VLLM.python is None, reason="`make vllm-environment` installs vLLM's client")
def test_vllm_bench_serve_works(served: Served, checkpoint: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    sizes = ["--random-input-len", "40", "--random-output-len", "6", "--num-prompts", "5", "--ignore-eos"]
    command = [str(VLLM.python), "-c", BENCH_SERVE, "--backend", "openai"]
    command += ["--base-url", served.url, "--model", str(checkpoint), "--served-model-name", "sharp", *sizes]
    command += ["--dataset-name", "random", "--save-result", "--save-detailed", "--result-filename", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads(result.read_text())
    assert (facts["completed"], facts["total_output_tokens"]) == (5, 30)
    assert all(len(gaps) == 5 for gaps in facts["itls"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: not a folder of a checkpoint, a config.json or the name of a shape"),
        (["small-llama", "--kv-memory", "much"], "--kv-memory much: not a size"),
        (["small-llama", "--kv-memory", "1KiB", "--attention", "no-sharing"], "does not hold one chunk"),
        (["small-llama", "--kv-memory", "1TiB", "--layers", "1"], "--kv-memory 1TiB needs 1099.5 GB, "),
        (["small-llama", "--engine", "transformers", "--attention", "no-sharing"], "--attention works only with our"),
        (["small-llama", "--engine", "transformers", "--cache", "radix"], "--cache works only with our engine"),
        (["small-llama", "--attention", "no-sharing", "--cache", "radix"], "attention no-sharing does not share"),
        (["none.json"], "none.json: transformers cannot read it"),
        (["none.json", "--layers", "1"], "layers applies only to a named shape"),
        (["small-llama", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:8000"),
    ],
)
def test_a_server_that_cannot_start_says_why(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["serve", *arguments])
    assert (result.exit_code, message in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model.safetensors", "version https://git-lfs.github.com/spec/v1", "cannot read it: SafetensorError"),
        ("tokenizer.json", "{", "cannot read it: JSONDecodeError"),
        ("config.json", {"num_hidden_layers": 3}, "9 of the model's weights are missing"),
        ("config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "cannot read it: ImportError"),
        ("config.json", {"hidden_act": "nothing"}, "cannot read it: KeyError"),
        ("generation_config.json", {"eos_token_id": ["2"]}, "eos_token_id is ['2'], not a token id"),
    ],
)
def test_a_checkpoint_that_cannot_be_served_is_refused(
    tmp_path: Path, file: str, change: str | dict[str, Any], message: str
) -> None:
    path = write_checkpoint("llama-grouped", tmp_path) / file
    if isinstance(change, dict):
        change = json.dumps(json.loads(path.read_text()) | change)
    path.write_text(change)
    result = CliRunner().invoke(cli, ["serve", str(tmp_path), "--port", "0"])
    assert (result.exit_code, message in result.output) == (2, True), result.output


def test_a_checkpoint_is_served_under_the_name_of_its_folder(tmp_path: Path) -> None:
    names = {"models/Llama-3.2-1B/": "Llama-3.2-1B", "small-llama": "small-llama", "shapes/tiny.json": "tiny"}
    names |= {"shapes/Llama-3.2-1B.json": "Llama-3.2-1B", "models/Llama-3.2-1B/config.json": "Llama-3.2-1B"}
    names |= {"mine-1.0": "mine-1.0", "odd.json": "odd.json", "mine-1.0/../mine-1.0/.": "mine-1.0"}
    names |= {"m\udcff": "m\ufffd"}
    (tmp_path / "odd.json").mkdir()
    (tmp_path / "mine-1.0").symlink_to(tmp_path / "odd.json")
    with contextlib.chdir(tmp_path):
        assert {model: ModelChoice(model, torch.float32).name for model in names} == names
