"""The server as its clients see it: the real process, the real `openai` client."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import openai
import pytest
import torch
import transformers
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

import chunkbench
from chunkbench.cli.main import cli
from chunkbench.server.build import ModelChoice
from chunkbench.workloads.serving.servers.vllm import vllm_python
from tests.server.engine.models import VOCABULARY, sharp_module, write_checkpoint
from tests.server.processes import Served, serve
from tests.torture.fuzz_http import Fuzz
from tests.torture.soak import Soak
from tests.torture.trials import Trial

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
ORIGIN = "http://pages.example"
POISON = VOCABULARY - 1
"""A token of which the served model makes NaN. Other prompts lead to it with no probability that counts."""
TEMPLATE = "{% for m in messages %}{% if m.role == 'odd' %}{{ raise_exception('no odd roles') }}{% endif %}"
TEMPLATE += "{% if m.role == 'sum' %}{{ m.content + 1 }}{% endif %}w{{ loop.index }} {{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with sharp random weights, a tokenizer of whole words w0, w1, ..., and a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("checkpoint")
    module = sharp_module("llama-grouped", "eager")
    module.model.embed_tokens.weight.data[POISON] = float("nan")
    module.lm_head.weight.data[POISON] = 0
    module.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def served(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("log")
    options = ["--served-name", "sharp", "--dtype", "float32", "--kv-memory", "4MiB", "--allow-origin", ORIGIN]
    with serve(log, str(checkpoint), *options) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    body = {"model": "sharp", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, **fields}
    own = ("ignore_eos", "min_tokens", "return_token_ids", "stop_token_ids")
    extra = {name: body.pop(name) for name in own if name in body} | body.pop("extra_body", {})
    return client.completions.create(**body, extra_body=extra)


def test_greedy_tokens_are_those_of_transformers(client: openai.OpenAI) -> None:
    module = sharp_module("llama-grouped", "eager")
    expected = module.generate(torch.tensor([PROMPT]), max_new_tokens=6, do_sample=False, pad_token_id=0)[0, 8:]
    answer = ask(client, return_token_ids=True)
    assert answer.choices[0].token_ids == expected.tolist()
    assert ask(client, prompt=" ".join(f"w{token}" for token in PROMPT)).choices[0].text == answer.choices[0].text
    assert ask(client, prompt=[PROMPT]).choices[0].text == answer.choices[0].text
    stopped = ask(client, return_token_ids=True, stop_token_ids=[expected.tolist()[2]]).choices[0]
    assert stopped.token_ids == expected.tolist()[: expected.tolist().index(expected.tolist()[2]) + 1]
    assert stopped.finish_reason == "stop"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text == " ".join(f"w{token}" for token in expected.tolist())
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (8, 6, 14)


def test_a_stream_carries_the_same_tokens_one_by_one(client: openai.OpenAI) -> None:
    whole = ask(client, return_token_ids=True).choices[0]
    pieces = list(ask(client, stream=True, return_token_ids=True, stream_options={"include_usage": True}))
    assert [piece.choices[0].token_ids for piece in pieces[:-1]] == [[token] for token in whole.token_ids]
    assert "".join(piece.choices[0].text for piece in pieces[:-1]) == whole.text
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
        assert "".join(piece.choices[0].text for piece in pieces) == expected
        assert [piece.choices[0].finish_reason for piece in pieces] == [None, None, "stop"]
    later = ask(client, max_tokens=40, stop=third, min_tokens=3)
    assert later.choices[0].text.startswith(expected)
    assert later.usage.completion_tokens > 3
    assert ask(client, max_tokens=40, stop="not there").choices[0].text == whole
    assert ask(client, max_tokens=40, stop="").choices[0].text == whole


def test_stop_strings_end_a_chat(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "w8"}]
    fields: dict[str, Any] = {"model": "sharp", "messages": messages, "temperature": 0, "max_tokens": 20}
    whole = client.chat.completions.create(**fields).choices[0].message.content
    assert whole is not None
    stop = whole.split()[4]
    expected = whole[: whole.index(stop)]
    choice = client.chat.completions.create(**fields, stop=[stop]).choices[0]
    assert (choice.message.content, choice.finish_reason) == (expected, "stop")
    pieces = list(client.chat.completions.create(**fields, stop=stop, stream=True))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == expected
    assert pieces[-1].choices[0].finish_reason == "stop"


def test_a_stop_string_ends_the_work(client: openai.OpenAI, served: Served) -> None:
    """The engine forgets the request: it has nothing to do long before 2,000 tokens, and counts it as finished."""
    stop = ask(client).choices[0].text.split()[2]
    answer = ask(client, max_tokens=2000, stop=stop, ignore_eos=True)
    assert answer.usage.completion_tokens <= 3
    deadline = time.monotonic() + 2
    while "chunkbench_requests_running 0.0" not in (page := served.get("/metrics")):
        assert time.monotonic() < deadline, page
        time.sleep(0.02)


@pytest.mark.parametrize("fields", [{}, {"temperature": 1}, {"stream": True}], ids=str)
def test_a_request_whose_logits_are_not_numbers_fails_alone(
    served: Served, client: openai.OpenAI, fields: dict[str, Any]
) -> None:
    prompt = [n % 250 for n in range(150)]
    stream = ask(client, prompt=prompt, max_tokens=100, stream=True, return_token_ids=True)
    whole = [next(iter(stream)).choices[0].token_ids[0]]
    with pytest.raises(openai.APIError, match="logits for token 151 are NaN or infinite"):
        list(ask(client, prompt=[*prompt, POISON], **fields))
    whole += [piece.choices[0].token_ids[0] for piece in stream]
    assert ask(client, prompt=prompt, max_tokens=100, return_token_ids=True).choices[0].token_ids == whole
    assert served.metric('requests_total{outcome="failed"}') >= 1
    assert json.loads(served.get("/health")) == {"status": "ok"}


def test_chat_uses_the_template(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "system", "content": "w7"}, {"role": "user", "content": [{"type": "text", "text": "w8"}]}]
    chat = client.chat.completions.create(model="sharp", messages=messages, max_tokens=4, temperature=0)
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == 4
    assert chat.choices[0].message.content == ask(client, prompt=[1, 7, 2, 8], max_tokens=4).choices[0].text
    stream = client.chat.completions.create(
        model="sharp", messages=messages, max_completion_tokens=4, temperature=0, stream=True
    )
    deltas = [piece.choices[0].delta for piece in stream]
    assert [delta.role for delta in deltas] == ["assistant", None, None, None]
    assert "".join(delta.content or "" for delta in deltas) == chat.choices[0].message.content


def test_models_names_what_is_measured(client: openai.OpenAI, served: Served) -> None:
    (model,) = json.loads(served.get("/v1/models"))["data"]
    assert (model["id"], model["server"]["attention"], model["server"]["dtype"]) == ("sharp", "two-phase", "float32")
    assert model["max_model_len"] == 2048
    assert client.models.retrieve("sharp").id == "sharp"
    with pytest.raises(openai.NotFoundError, match="the model other/one does not exist"):
        client.models.retrieve("other/one")
    status, body = served.post("/v1/embeddings", {})
    assert (status, body["error"]["message"]) == (404, "POST /v1/embeddings: Not Found")


@pytest.mark.parametrize(
    ("change", "status", "message", "param"),
    [
        ({"model": "other"}, 404, "the model other does not exist; this server has sharp", "model"),
        ({"prompt": [1] * 2100}, 400, "together 2106: this server takes at most 2048", "prompt"),
        ({"prompt": []}, 400, "the prompt is empty", "prompt"),
        ({"prompt": [VOCABULARY]}, 400, "token ids of the prompt must lie between 0 and 299", "prompt"),
        ({"prompt": [[1], [2], []]}, 400, "prompt 2: the prompt is empty", "prompt"),
        ({"prompt": ["w1", [2]]}, 400, "the field prompt is not valid", "prompt"),
        ({"prompt": [[1]] * 1025}, 400, "1025 prompts with n = 1 ask for 1025 answers: this server", "prompt"),
        ({"prompt": {"a": 1}}, 400, "the field prompt is not valid", "prompt"),
        ({"prompt": None}, 400, "the field prompt is missing", "prompt"),
        ({"max_tokens": 0}, 400, "the field max_tokens is not valid", "max_tokens"),
        ({"max_tokens": 10**400}, 400, "the field max_tokens is not valid", "max_tokens"),
        ({"temperature": -1}, 400, "temperature must lie between", "temperature"),
        ({"temperature": 10**400}, 400, "the field temperature is not valid", "temperature"),
        ({"top_p": 0}, 400, "top_p must be above 0", "top_p"),
        ({"seed": 2**64, "temperature": 1}, 400, "seed must lie between -2**63 and 2**64 - 1", "seed"),
        ({"top_k": -2}, 400, "top_k must be at least 1", "top_k"),
        ({"min_tokens": 7}, 400, "min_tokens must be at least 0 and at most max_tokens = 6, not 7", "min_tokens"),
        ({"stop_token_ids": [-1]}, 400, "the field stop_token_ids is not valid", "stop_token_ids"),
        ({"prompt": [1, True]}, 400, "the field prompt is not valid", "prompt"),
        ({"stream_options": {"include_usage": 1}}, 400, "the field stream_options is not valid", "stream_options"),
        ({"stream_options": {"odd": 1}}, 400, "the field stream_options.odd = 1 is not supp", "stream_options"),
        ({"model": "m" * 2000}, 400, "the field model is not valid", "model"),
        ({"n": 0}, 400, "the field n is not valid", "n"),
        (
            {"logprobs": 21},
            400,
            "the field logprobs is not valid: input should be less than or equal to 20",
            "logprobs",
        ),
        ({"prompt_logprobs": 1, "stream": True}, 400, "leave stream out", "prompt_logprobs"),
        ({"n": 33}, 400, "n must be at most 32, not 33: this server computes at most", "n"),
        ({"n": 2, "temperature": 1, "seed": 2**64 - 1}, 400, "seed must lie between", "seed"),
        ({"stop": ["w1", ""]}, 400, "the field stop is not valid: string should have at least 1 character", "stop"),
        ({"nonsense": 1}, 400, "the field nonsense = 1 is not supported", "nonsense"),
        ({"presence_penalty": 0.5}, 400, "the field presence_penalty = 0.5 is not supported", "presence_penalty"),
    ],
)
def test_what_cannot_be_done_is_refused(
    served: Served, change: dict[str, object], status: int, message: str, param: str | None
) -> None:
    got, body = served.post("/v1/completions", {"model": "sharp", "prompt": PROMPT, "max_tokens": 6, **change})
    assert got == status
    assert message in body["error"]["message"]
    assert body["error"]["param"] == param
    assert body["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


def test_fields_that_ask_for_nothing_are_taken(served: Served) -> None:
    neutral = {"n": 1, "logprobs": None, "stop": None, "echo": False, "presence_penalty": 0, "best_of": 1}
    neutral |= {"top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0}
    labels = {"user": "me", "metadata": {"run": "1"}, "store": True, "service_tier": "flex", "safety_identifier": "a"}
    labels |= {"prompt_cache_key": "b", "request_id": "c", "parallel_tool_calls": True}
    fields = {"model": "sharp", "max_tokens": 1, **neutral, **labels}
    status, plain = served.post("/v1/completions", {"model": "sharp", "max_tokens": 1, "prompt": PROMPT, "seed": 1})
    assert status == 200
    status, answer = served.post("/v1/completions", {**fields, "prompt": PROMPT, "seed": 1})
    assert (status, answer.get("choices")) == (200, plain["choices"])
    message = {"role": "user", "content": "w8", "name": None, "tool_calls": [], "refusal": None}
    chat = {"messages": [message], "response_format": {"type": "text"}, "modalities": ["text"], "tool_choice": "auto"}
    assert served.post("/v1/chat/completions", {**fields, **chat})[0] == 200


def test_several_answers_to_several_prompts(served: Served, client: openai.OpenAI) -> None:
    """Each answer is that of a request of its own, also in a stream; usage counts each prompt once."""
    prompts, fields = [[*range(70), 1], [*range(70), 2]], {"temperature": 3, "max_tokens": 12, "return_token_ids": True}
    one = [ask(client, prompt=prompt, seed=5 + n, **fields).choices[0] for prompt in prompts for n in range(3)]
    assert len({choice.text for choice in one}) == 6
    stop = one[1].text[6:9]
    whole = ask(client, prompt=prompts, n=3, seed=5, stop=stop, **fields)
    assert [choice.index for choice in whole.choices] == list(range(6))
    assert (whole.usage.prompt_tokens, whole.usage.prompt_tokens_details.cached_tokens) == (142, 128)
    assert whole.usage.completion_tokens == sum(len(choice.token_ids) for choice in whole.choices)
    for alone, choice in zip(one, whole.choices, strict=True):
        assert choice.text == alone.text.partition(stop)[0]
        assert choice.finish_reason == ("stop" if stop in alone.text else "length")
    assert {choice.finish_reason for choice in whole.choices} == {"stop", "length"}
    texts, ends, order = [""] * 6, [""] * 6, list[int]()
    for event in ask(client, prompt=prompts, n=3, seed=5, stop=stop, stream=True, **fields):
        (choice,) = event.choices
        texts[choice.index] += choice.text
        ends[choice.index] = choice.finish_reason
        order.append(choice.index)
    assert (texts, ends) == ([c.text for c in whole.choices], [c.finish_reason for c in whole.choices])
    assert order != sorted(order)


def reference_logprobs(checkpoint: Path, tokens: list[int]) -> torch.Tensor:
    """`[tokens, vocabulary]`: log-probabilities of transformers, row i for the token after token i."""
    module = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = module(torch.tensor([tokens])).logits[0]
    return logits.log_softmax(-1)


@pytest.mark.parametrize("repeated", [False, True])
def test_logprobs_of_a_completion_and_its_prompt(client: openai.OpenAI, checkpoint: Path, repeated: bool) -> None:
    """Also if the prompt is cached, and with several answers: all are those of transformers."""
    prompt = [(7 * n) % 250 for n in range(300)]
    fields = {"prompt": prompt, "temperature": 2, "seed": 3, "return_token_ids": True, "n": 2, "logprobs": 3}
    answers = ask(client, echo=True, **fields).choices
    for answer in answers:
        tokens = [*prompt, *answer.token_ids]
        expected, told = reference_logprobs(checkpoint, tokens), answer.logprobs
        own = expected[range(len(tokens) - 1), tokens[1:]]
        assert told.token_logprobs[0] is told.top_logprobs[0] is None
        torch.testing.assert_close(torch.tensor(told.token_logprobs[1:]), own, atol=2e-3, rtol=1e-4)
        assert told.tokens == [f" w{token}" for token in tokens]
        assert told.text_offset == [sum(map(len, told.tokens[:n])) for n in range(len(tokens))]
        for row, token, top in zip(expected, tokens[1:], told.top_logprobs[1:], strict=False):
            values, best = row.topk(3)
            assert {f" w{id}" for id in best.tolist()} | {f" w{token}"} == top.keys()
            assert max(top.values()) == pytest.approx(values[0].item(), abs=2e-3)
        assert answer.text.split() == [text.strip() for text in told.tokens]
    assert answers[0].token_ids != answers[1].token_ids
    (alone,) = ask(client, **fields | {"n": 1, "logprobs": 0}).choices
    assert alone.logprobs.token_logprobs == pytest.approx(answers[0].logprobs.token_logprobs[300:], abs=1e-3)
    assert [list(top) for top in alone.logprobs.top_logprobs] == [[f" w{token}"] for token in alone.token_ids]
    stream = list(ask(client, echo=True, stream=True, **fields | {"n": 1}))
    joined = [value for event in stream for value in event.choices[0].logprobs.token_logprobs]
    assert joined[1:] == pytest.approx(answers[0].logprobs.token_logprobs[1:], abs=1e-3)
    offsets = [offset for event in stream for offset in event.choices[0].logprobs.text_offset]
    assert offsets == answers[0].logprobs.text_offset
    assert "".join(event.choices[0].text for event in stream) == answers[0].text


def test_prompt_logprobs_and_those_of_a_chat(served: Served, client: openai.OpenAI, checkpoint: Path) -> None:
    messages: Any = [{"role": "user", "content": "w8 w9"}]
    chat: Any = {"model": "sharp", "messages": messages, "max_tokens": 4, "temperature": 0}
    whole = client.chat.completions.create(logprobs=True, top_logprobs=2, extra_body={"prompt_logprobs": 1}, **chat)
    content = whole.choices[0].logprobs.content
    tokens = [1, 8, 9, *(int(one.token[2:]) for one in content)]
    expected = reference_logprobs(checkpoint, tokens)
    assert whole.choices[0].message.content == "".join(one.token for one in content).strip()
    for place, one in enumerate(content, 3):
        assert one.logprob == pytest.approx(expected[place - 1, tokens[place]].item(), abs=2e-3)
        assert [other.token for other in one.top_logprobs] == [f" w{id}" for id in expected[place - 1].topk(2).indices]
        assert bytes(one.bytes).decode() == one.token
    nothing, *prompt = whole.prompt_logprobs
    assert nothing is None
    for place, told in enumerate(prompt, 1):
        own = told[str(tokens[place])]
        assert own["logprob"] == pytest.approx(expected[place - 1, tokens[place]].item(), abs=2e-3)
        assert own["rank"] == 1 + (expected[place - 1] > expected[place - 1, tokens[place]]).sum()
        assert {other["rank"] for other in told.values()} == {1, own["rank"]}
    streamed = client.chat.completions.create(logprobs=True, stream=True, **chat)
    told = [one.logprob for event in streamed for one in event.choices[0].logprobs.content]
    assert told == pytest.approx([one.logprob for one in content], abs=1e-3)
    completion = ask(client, prompt=tokens[:3])
    status, body = served.post("/v1/completions", {"model": "sharp", "prompt": tokens[:3], "prompt_logprobs": 0})
    assert status == 200
    assert [len(one) for one in body["choices"][0]["prompt_logprobs"][1:]] == [1, 1]
    assert completion.choices[0].logprobs is None


def test_beams(served: Served, client: openai.OpenAI, checkpoint: Path) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference.generate(
            torch.tensor([PROMPT]),
            max_new_tokens=6,
            num_beams=3,
            num_return_sequences=3,
            do_sample=False,
            pad_token_id=0,
        )
    fields = {"return_token_ids": True, "extra_body": {"use_beam_search": True, "length_penalty": 1.0}}
    answer = ask(client, n=3, temperature=1, **fields)
    assert [choice.token_ids for choice in answer.choices] == expected[:, len(PROMPT) :].tolist()
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(PROMPT), 18)
    messages: Any = [{"role": "user", "content": "w8"}]
    chat = client.chat.completions.create(
        model="sharp", messages=messages, max_tokens=3, n=2, extra_body={"use_beam_search": True}
    )
    assert len({choice.message.content for choice in chat.choices}) == 2
    for given, message in [
        ({"stream": True}, "use_beam_search goes without stream"),
        ({"logprobs": 1}, "use_beam_search goes without logprobs"),
        ({"structured_outputs": {"choice": ["w1"]}}, "use_beam_search goes without a constraint"),
    ]:
        body = {"model": "sharp", "prompt": PROMPT, "use_beam_search": True, **given}
        status, refused = served.post("/v1/completions", body)
        assert (status, refused["error"]["param"]) == (400, "use_beam_search")
        assert message in refused["error"]["message"]


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
        usage = ask(client, prompt=prompt, extra_body=salt).usage
        return int(usage.prompt_tokens_details.cached_tokens)

    salted: dict[str, str] = {"cache_salt": "one"}
    assert [cached(), cached(**salted), cached(cache_salt="two"), cached(**salted), cached()] == [0, 0, 0, 192, 192]


def test_pages_of_an_allowed_origin_may_send_requests(served: Served) -> None:
    headers = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    url = f"{served.url}/v1/completions"
    with urlopen(HttpRequest(url, headers={"origin": ORIGIN, **headers}, method="OPTIONS"), timeout=30) as answer:
        assert answer.headers["access-control-allow-origin"] == ORIGIN
    with pytest.raises(HTTPError, match="400"):
        urlopen(HttpRequest(url, headers={"origin": "http://others.example", **headers}, method="OPTIONS"), timeout=30)


def test_several_answers_of_a_chat(served: Served, client: openai.OpenAI) -> None:
    fields: Any = {"model": "sharp", "messages": [{"role": "user", "content": "w8 w9"}], "max_tokens": 5, "seed": 1}
    before = served.metric("prompt_tokens_total")
    chat = client.chat.completions.create(n=4, **fields)
    alone = [client.chat.completions.create(**{**fields, "seed": 1 + n}) for n in range(4)]
    assert [choice.message.content for choice in chat.choices] == [one.choices[0].message.content for one in alone]
    assert chat.usage is not None
    assert served.metric("prompt_tokens_total") - before == 5 * chat.usage.prompt_tokens
    roles = [event.choices[0].delta.role for event in client.chat.completions.create(n=4, stream=True, **fields)]
    assert roles.count("assistant") == 4
    with pytest.raises(openai.BadRequestError, match="n must be at most 32"):
        client.chat.completions.create(n=100, **fields)
    assert served.metric("requests_running") == 0


def test_top_k_and_min_tokens_change_the_answer(served: Served, client: openai.OpenAI) -> None:
    greedy = ask(client, return_token_ids=True).choices[0].token_ids
    fields = {"temperature": 50, "seed": 3, "max_tokens": 6, "return_token_ids": True, "prompt": PROMPT}

    def hot(**others: Any) -> Any:
        return served.post("/v1/completions", {"model": "sharp", **fields, **others})[1]["choices"][0]["token_ids"]

    assert hot(top_k=1) == greedy != hot() == hot()
    assert hot(seed=4) != hot()
    longer = hot(top_k=1, min_tokens=5, stop_token_ids=[greedy[1]])
    assert (longer[0], len(longer) >= 5, greedy[1] in longer[:4]) == (greedy[0], True, False)


CALL = b'{"model": "sharp", "messages": [{"role": "user", "tool_calls": [{"id": 1}]}]}'
IMAGE = b'{"model": "sharp", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}'


@pytest.mark.parametrize(
    ("route", "body", "message", "param"),
    [
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
    ],
)
def test_bodies_that_no_client_should_send(
    served: Served, route: str, body: bytes, message: str, param: str | None
) -> None:
    status, answer = served.post(f"/v1/{route}", body)
    assert (status, answer["error"]["type"], answer["error"]["param"]) == (400, "invalid_request_error", param)
    assert message in answer["error"]["message"]


def test_a_body_that_is_too_large_keeps_nobody_waiting(served: Served) -> None:
    """Neither does one that is as large as it may be."""
    most = (1 << 20) + 32 * 2048
    bodies = [
        b'{"prompt": [' + b"1," * (20 << 20) + b"1]}",
        b'{"model": "sharp", "prompt": [%s1]}' % (b"1," * (most // 2 - 99)),
    ]
    answers: list[tuple[int, Any]] = []
    senders = [
        threading.Thread(target=lambda body=body: answers.append(served.post("/v1/completions", body)))
        for body in bodies
    ]
    for sender in senders:
        sender.start()
    slowest = 0.0
    while any(sender.is_alive() for sender in senders):
        begin = time.monotonic()
        served.get("/health")
        slowest = max(slowest, time.monotonic() - begin)
    assert slowest < 1
    by_status = {status: answer["error"]["message"] for status, answer in answers}
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
        wait_for(lambda: served.metric("kv_bytes") > 0)
    wait_for(lambda: served.metric("kv_bytes") == 0)
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
    wait_for(lambda: any(line["received"] > before for line in lines(served, "requests")))
    (request,) = [line for line in lines(served, "requests") if line["received"] > before]
    assert (request["prompt_tokens"], request["generated"], request["outcome"]) == (8, 3, "finished")
    assert before < request["received"] < request["first"] < request["last"]
    steps = [line for line in lines(served, "steps") if line["ended"] > before and line["batch"]]
    assert [step["prompt_tokens"] for step in steps] == [8, 0, 0]
    assert [step["generated"] for step in steps] == [1, 1, 1]
    assert all(step["kv_bytes"] > 0 and 0 < step["tree_s"] < step["overhead_s"] < step["s"] for step in steps)


def test_a_full_queue_is_429_and_sigterm_answers_what_runs(checkpoint: Path, tmp_path: Path) -> None:
    """The disk of its log is full, which changes nothing."""
    (tmp_path / "log").mkdir()
    for name in ("steps.jsonl", "requests.jsonl"):
        (tmp_path / "log" / name).symlink_to("/dev/full")
    limits = ["--max-batch", "1", "--max-waiting", "1", "--dtype", "float32", "--served-name", "sharp"]
    with serve(tmp_path / "log", str(checkpoint), *limits) as server:
        long = {"model": "sharp", "prompt": PROMPT, "max_tokens": 600, "temperature": 0, "ignore_eos": True}
        answers: list[tuple[int, Any]] = []
        clients = [threading.Thread(target=lambda: answers.append(server.post("/v1/completions", long))) for _ in "ab"]
        clients[0].start()
        wait_for(lambda: server.metric("requests_running") == 1)
        clients[1].start()
        wait_for(lambda: server.metric("requests_waiting") == 1)
        status, body = server.post("/v1/completions", long)
        assert (status, body["error"]["code"]) == (429, "queue_full")
        assert server.stop() == 0
        for client in clients:
            client.join()
        assert [status for status, _ in answers] == [200, 200]
        assert all(answer["usage"]["completion_tokens"] == 600 for _, answer in answers)
        errors = (tmp_path / "log.err").read_text()
        assert errors.count("steps.jsonl ends here: No space left on device") == 1
        assert errors.count("requests.jsonl ends here: No space left on device") == 1


@pytest.mark.slow
def test_transformers_behind_the_same_front(checkpoint: Path, tmp_path: Path, client: openai.OpenAI) -> None:
    options = ["--engine", "transformers", "--dtype", "float32", "--served-name", "sharp", "--kv-memory", "4MiB"]
    with serve(tmp_path / "log", str(checkpoint), *options) as server:
        theirs = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
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


@pytest.mark.skipif(vllm_python() is None, reason="`make vllm-environment` installs vLLM's client")
def test_vllm_bench_serve_works(served: Served, checkpoint: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    sizes = ["--random-input-len", "40", "--random-output-len", "6", "--num-prompts", "5", "--ignore-eos"]
    command = [str(vllm_python()), "-c", BENCH_SERVE, "--backend", "openai"]
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
        (["small-llama", "--kv-memory", "1KiB", "--layers", "1"], "does not hold one chunk"),
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


def lines(served: Served, name: str) -> list[dict[str, Any]]:
    text = (served.log / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def wait_for(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_a_checkpoint_is_served_under_the_name_of_its_folder(tmp_path: Path) -> None:
    names = {"models/Llama-3.2-1B/": "Llama-3.2-1B", "small-llama": "small-llama", "shapes/tiny.json": "tiny"}
    names |= {"shapes/Llama-3.2-1B.json": "Llama-3.2-1B", "models/Llama-3.2-1B/config.json": "Llama-3.2-1B"}
    names |= {
        "m\udcff": "m\ufffd",
        "mine-1.0": "mine-1.0",
        "odd.json": "odd.json",
        "mine-1.0/../mine-1.0/.": "mine-1.0",
    }
    (tmp_path / "odd.json").mkdir()
    (tmp_path / "mine-1.0").symlink_to(tmp_path / "odd.json")
    with contextlib.chdir(tmp_path):
        assert {model: ModelChoice(model, torch.float32).name for model in names} == names
