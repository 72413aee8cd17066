"""`chunkbench load` from end to end, and what it says when something fails."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chunkbench.cli.main import cli
from tests.conftest import MISSING

if MISSING:
    pytest.skip(f"{', '.join(MISSING)} is not installed", allow_module_level=True)

from aiohttp import web

from tests.server.engine.models import write_byte_tokenizer, write_checkpoint
from tests.server.processes import Served, serve
from tests.traffic.load.scripted import chunk, in_turn, raw, server_in_a_thread, stream


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("load")
    checkpoint = write_byte_tokenizer(write_checkpoint("llama", folder / "tiny"))
    options = ["--dtype", "float32", "--kv-memory", "4MiB", "--cache", "radix"]
    with serve(folder / "log", str(checkpoint), *options) as server:
        yield server


def load(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["load", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


SMALL = ["--n-p", "40", "--n-c", "4", "--vocabulary", "300", "--requests", "6", "--warm-up", "1"]


def test_an_open_loop(served: Served, tmp_path: Path) -> None:
    out = tmp_path / "requests.jsonl"
    code, printed = load(served.url, *SMALL, "--rate", "20", "--objective", "1000", "--out", str(out))
    assert code == 0
    assert "6 of 6 requests answered" in printed
    assert "normalized latency, ms/token" in printed
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["tokens"] for line in lines] == [4] * 6
    assert {line["prompt_tokens"] for line in lines} == {40}


def test_a_closed_loop_as_json(served: Served) -> None:
    code, printed = load(served.url, *SMALL, "--clients", "3", "--n-s", "40", "--format", "json")
    numbers = json.loads(printed)
    assert code == 0
    assert (numbers["answered"], numbers["failed"], numbers["interrupted"]) == (6, 0, False)
    assert numbers["requests_per_s"] == pytest.approx(6 / numbers["seconds"])
    assert numbers["cached_share"] is not None


def test_a_trace(served: Served, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps({"prompt": [n, 2], "max_tokens": 2, "due": n / 10}) + "\n" for n in range(3)))
    code, printed = load(served.url, "--trace", str(trace), "--vocabulary", "300", "--format", "json")
    assert code == 0
    assert json.loads(printed)["answered"] == 3
    trace.write_text(json.dumps({"prompt": [1], "max_tokens": 2}) + "\n")
    code, printed = load(served.url, "--trace", str(trace))
    assert (code, "does not say when requests are due: give --rate or --clients" in printed) == (2, True)


def test_a_warm_cache_does_not_pass_for_speed(served: Served) -> None:
    """The same seed a second time finds all prompts; the control finds none, though it shares as much."""
    same = [served.url, *SMALL, "--n-p", "200", "--clients", "1", "--seed", "91"]
    warm = "The cache was warm"
    assert warm not in load(*same)[1]
    printed = load(*same)[1]
    assert warm in printed
    assert "shared by the requests themselves, and sent before (tokens)" in printed
    assert "computed by a server that shares nothing" in printed
    code, printed = load(*same, "--control", "--format", "json")
    found = json.loads(printed)["prompt_cache"]
    assert (code, found["prompt_tokens"], found["source"]) == (0, 1200, "usage")
    assert found["most_cached"] < 64


def test_texts(served: Served, tmp_path: Path) -> None:
    """Chats, text and a conversation; what its second turn repeats is found."""
    texts = tmp_path / "texts.jsonl"
    opening = [{"role": "system", "content": "x" * 300}]
    lines: list[dict[str, Any]] = [
        {"name": "long", "messages": opening},
        {"begin": "long", "messages": [{"role": "user", "content": "one"}]},
        {"begin": "long", "turns": [{"text": "two"}, {"text": "three", "delay": 0.01}]},
        {"text": "plain"},
    ]
    texts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    send = [served.url, "--texts", str(texts), "--clients", "1", "--n-c", "4", "--warm-up", "1"]
    code, printed = load(*send, "--format", "json")
    found = json.loads(printed)["prompt_cache"]
    assert (code, json.loads(printed)["answered"], found["unit"]) == (0, 4, "characters")
    assert 0.5 < found["shared"] < 0.7
    assert 2 * 256 <= found["cached_tokens"] < found["prompt_tokens"] * 0.7
    code, printed = load(*send, "--control")
    assert (code, "control fails" in printed, "warm" in printed) == (0, False, False)
    texts.write_text('{"text": ""}\n')
    code, printed = load(*send)
    assert (code, f"{texts}:1: text: " in printed) == (2, True)


def test_a_full_disk_loses_no_figures(served: Served) -> None:
    code, printed = load(served.url, *SMALL, "--clients", "2", "--out", "/dev/full")
    assert code == 2
    assert "6 of 6 requests answered" in printed
    assert "/dev/full cannot be written: No space left on device; it lacks 6 of 6 requests" in printed


def test_a_disk_that_fills_up_keeps_whole_lines(served: Served, tmp_path: Path) -> None:
    out = tmp_path / "requests.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))
    try:
        code, printed = load(served.url, *SMALL, "--clients", "1", "--out", str(out))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    assert code == 2
    assert "6 of 6 requests answered" in printed
    assert f"File too large; it lacks {6 - len(kept)} of 6 requests" in printed
    assert 0 < len(kept) < 6


def test_what_an_interrupt_cuts_is_no_failure(served: Served) -> None:
    """The interrupt comes when the server is at work; an answer has 2,000 tokens."""

    def interrupt() -> None:
        while b"chunkbench_requests_running 0" in urllib.request.urlopen(f"{served.url}/metrics").read():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    options = ["--n-p", "40", "--n-c", "2000", "--vocabulary", "300", "--rate", "9", "--warm-up", "0"]
    code, printed = load(served.url, *options, "--format", "json")
    numbers = json.loads(printed)
    assert code == 130
    assert (numbers["failed"], numbers["interrupted"]) == (0, True)
    assert 0 < numbers["cancelled"] < 30


def test_a_ladder(served: Served, tmp_path: Path) -> None:
    """Each step has prompts of its own, so that only the requests of a step share their prefix."""
    out, figure = tmp_path / "requests.jsonl", tmp_path / "ladder.svg"
    options = ["--clients", "6,1,3", "--n-s", "40", "--objective", "ttft=60s", "--objective", "latency=60s"]
    files = ["--out", out, "--figure", figure]
    code, printed = load(served.url, *SMALL, *options, "--seed", "7", *files, "--format", "json")
    assert code == 0, printed
    told = json.loads(printed)
    steps = told["steps"]
    assert [step["clients"] for step in steps] == [1, 3, 6][: len(steps)]
    assert len(steps) == 3 or told["saturated"]
    for step in steps:
        assert (step["answered"], step["goodput_per_s"]) == (6, step["requests_per_s"])
        assert step["prompt_cache"]["cached_tokens"] <= 5 * 40
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["clients"] for line in lines] == [1] * 6 + [3] * 6 + [6] * 6 * (len(steps) - 2)
    assert max(len(line["gaps"]) for line in lines) <= 3
    assert "answered requests per second" in figure.read_text()


def test_an_interrupted_ladder_keeps_its_finished_steps(tmp_path: Path) -> None:
    """A server that sends no usage; the ninth answer takes seconds, and an interrupt comes."""
    requests = itertools.count(1)

    async def answer(request: web.Request) -> web.StreamResponse:
        number = next(requests)
        if number < 9:
            return await stream(tell=False)(request)
        if number == 9:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        return await stream(tell=False, wait=1.0)(request)

    out = tmp_path / "requests.jsonl"
    with server_in_a_thread(answer, {"data": [{"id": "m"}]}) as url:
        options = ["--warm-up", "0", "--clients", "1,2,4", "--out", out, "--format", "json"]
        code, printed = load(url, *SMALL, *options)
    first, second = json.loads(printed)["steps"]
    assert code == 130
    assert (first["clients"], first["answered"], second["clients"], second["answered"]) == (1, 6, 2, 2)
    assert first["prompt_cache"]["cached_tokens"] is None
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["clients"], line["status"]) for line in lines].count((1, "ok")) == 6


def test_primed_prefixes_are_in_the_cache(served: Served) -> None:
    """Two prefixes of three chunks, each sent before the clock: the first requests find them, too."""
    shared = ["--n-p", "200", "--n-s", "192", "--prompts", "2", "--seed", "11", "--clients", "1", "--format", "json"]
    code, printed = load(served.url, *SMALL, *shared, "--prime", "2")
    told = json.loads(printed)
    assert code == 0
    assert told["prompt_cache"]["cached_tokens"] == 6 * 192
    assert told["prompt_cache"]["shared"] == pytest.approx(0.96, abs=0.01)
    assert told["hits"] == [{"of": "requests", "number": 6, "p10": 0.96, "p50": 0.96, "p90": 0.96}]


def test_an_objective_without_its_figure() -> None:
    """Answers of one token have no gaps."""
    with server_in_a_thread(raw(chunk("a", "stop")), {"data": [{"id": "m"}]}) as url:
        code, printed = load(url, "--texts", "questions", "--clients", "2", "--requests", "4", "--objective", "itl=1s")
    assert code == 2
    assert "--objective itl: this server's answers do not give this figure; leave it out" in printed


def test_a_failed_request_is_exit_code_3(served: Served) -> None:
    code, printed = load(served.url, *SMALL, "--rate", "20", "--vocabulary", "4000", "--warm-up", "0")
    assert code == 3
    assert "refused: status 400: token ids of the prompt must lie between 0 and 299" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --rate for an open loop, or --clients for a closed one"),
        (["--rate", "1", "--clients", "2"], "give --rate for an open loop or --clients for a closed one, not both"),
        (["--rate", "1", "--n-s", "2000"], "2000 shared tokens do not fit into prompts of n_p = 1024 tokens"),
        (["--rate", "1", "--n-p", "5000"], "requests have up to 5064 tokens, tiny takes 2048"),
        (["--rate", "1", "--texts", "no.jsonl"], "bundled sets are conversations, edits, questions"),
        (["--rate", "1", "--texts", "questions", "--trace", __file__], "give --trace or --texts, not both"),
        (["--rate", "1", "--model", "other"], "serves tiny, not other"),
        (["--clients", "1,4,1"], "1,4,1 has a value twice; each step has its own"),
        (["--clients", "1,x"], "'x' is not a valid integer range"),
        (["--clients", "1", "--figure", "a.svg"], "--figure draws a ladder: give several values"),
        (["--clients", "1,2", "--figure", "no/a.svg"], "--figure no/a.svg: there is no folder no"),
        (["--clients", "1,2", "--figure", "a.txt"], "a.txt: the ending must be .svg, .png or .pdf"),
        (["--clients", ",".join(map(str, range(1, 300))), "--texts", "questions"], "lines, too few for 299 steps"),
        (["--rate", "1", "--objective", "ttft=5"], "'ttft=5': write FIGURE=LIMIT with a unit"),
        (["--rate", "1", "--objective", "5ms"], "'5ms': write FIGURE=LIMIT with a unit"),
        (["--rate", "1", "--objective", "tfft=5ms"], "'tfft' is none of normalized, latency, ttft, tpot, itl"),
        (["--rate", "1", "--objective", "ttft=-1s"], "-1.0 is not in the range x>0"),
        (
            ["--rate", "1", "--objective", "itl=1s", "--objective", "itl=2s"],
            "--objective itl has two limits; give it once",
        ),
        (["--rate", "1", "--prime", "1"], "the prompts share no prefix of 16 tokens"),
    ],
)
def test_what_cannot_be_measured(served: Served, arguments: list[str], message: str) -> None:
    code, printed = load(served.url, *arguments)
    assert (code, message in printed) == (2, True), printed


NOBODY = "http://127.0.0.1:9"


def server(*finishes: str | None) -> AbstractContextManager[str]:
    """Answers of two tokens, which end with these reasons in turn; None: they just end."""
    last = [[chunk(finish=finish)] if finish else [] for finish in finishes]
    answers = [raw(chunk("a"), chunk("b"), *end) for end in last]
    return server_in_a_thread(in_turn(itertools.cycle(answers)), {"data": [{"id": "m"}]})


TEXTS = ("--texts", "questions", "--clients", "2", "--warm-up", "0", "--requests", "6")
CUT_OFF = "error: the stream ended without a finish_reason: the answer may be cut off"
BROKEN_OFF = "error: the server broke the answer off: finish_reason "


def test_failures_are_counted_by_reason() -> None:
    finishes = ("stop", None, "content_filter", "content_filter", "stop", "abort")
    failures = {BROKEN_OFF + "content_filter": 2, CUT_OFF: 1, BROKEN_OFF + "abort": 1}
    with server(*finishes) as url:
        code, printed = load(url, *TEXTS, "--format", "json")
        numbers = json.loads(printed)
        assert (code, numbers["answered"], numbers["failed"], numbers["failures"]) == (3, 2, 4, failures)
        code, printed = load(url, *TEXTS)
    assert (code, "2 of 6 requests answered" in printed, "mean" in printed) == (3, True, True)
    for reason, count in failures.items():
        assert f"failed, {reason} ({count} of 6)" in printed


@pytest.mark.parametrize("how", [("--clients", "200"), ("--rate", "20000")])
def test_too_few_files_are_one_message_about_the_client(how: tuple[str, str]) -> None:
    limits = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (64, 64)); "
    code = f"{limits}import sys; from chunkbench.cli.main import cli; cli(['load', *sys.argv[1:]])"
    with server("stop") as url:
        words = [url, *how, "--requests", "400", "--warm-up", "0", "--n-c", "2"]
        ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "chunkbench load: the client is at its limit, not the server: it may not open more files, and each connection "
        "is one: raise the hard limit (ulimit -Hn), or use fewer clients or a lower rate\n"
    )


@pytest.mark.parametrize("value", ["inf", "nan", "-inf"])
@pytest.mark.parametrize("option", ["--timeout", "--rate", "--spread", "--objective"])
def test_what_is_no_finite_number(option: str, value: str) -> None:
    code, printed = load(NOBODY, *(() if option == "--rate" else ("--rate", "1")), option, value)
    assert (code, f"Invalid value for '{option}': {value} is not " in printed) == (2, True), printed


ABSOLUTE = (
    "t.jsonl: the first request is due 1,700,000,000 s after the start, more than a day. `due` counts from the start "
    "of the load: subtract the first (jq -c '.due -= 1700000000.0' FILE > NEW), or give --rate"
)


@pytest.mark.parametrize(
    ("dues", "how", "message"),
    [
        ((1.7e9 + 1, 1.7e9), (), ABSOLUTE),
        ((1.7e9,), ("--clients", "1"), "nothing answers"),
        ((1.7e9,), ("--rate", "1"), "nothing answers"),
        ((86_400, 1.7e9), (), "nothing answers"),
        ((86_401,), (), "more than a day"),
    ],
)
def test_a_trace_with_the_times_of_a_clock(
    tmp_path: Path, dues: tuple[float, ...], how: tuple[str, ...], message: str
) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps({"prompt": [1], "max_tokens": 1, "due": due}) + "\n" for due in dues))
    code, printed = load(NOBODY, "--trace", trace, *how)
    assert (code, message in printed) == (2, True), printed
