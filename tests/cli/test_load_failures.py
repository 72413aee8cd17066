"""`chunkbench load` where a server or this machine fails, and what the command refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.cli.main import cli
from tests.server.conftest import MISSING

if MISSING:
    pytest.skip(f"{', '.join(MISSING)} is not installed", allow_module_level=True)

NOBODY = "http://127.0.0.1:9"


@contextmanager
def server(*finishes: str | None) -> Iterator[str]:
    """Chats of two tokens, which end with these reasons in turn; None: they just end."""
    left = list(finishes)
    taking = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send(json.dumps({"data": [{"id": "m"}]}) if self.path == "/v1/models" else "")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with taking:
                left.append(left.pop(0))
                finish = left[-1]
            choices = [{"index": 0, "delta": {"content": text}} for text in "ab"]
            choices += [{"index": 0, "delta": {}, "finish_reason": finish}] if finish else []
            self.send("".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices))

        def send(self, body: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 300

    made = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{made.server_port}"
    finally:
        made.shutdown()
        made.server_close()


def load(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["load", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


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


def test_more_reasons_than_are_printed() -> None:
    with server(*"cdefgh") as url:
        printed = load(url, *TEXTS)[1]
    assert printed.count(f"failed, {BROKEN_OFF}") == 5
    assert "failed for 1 other reasons: --format json names all" in printed


def test_no_answer_at_all_is_a_sentence_without_a_table() -> None:
    with server(None) as url:
        code, printed = load(url, *TEXTS)
        numbers = json.loads(load(url, *TEXTS, "--format", "json")[1])
    lines = [line.strip() for line in printed.splitlines() if line.strip() and "bottleneck" not in line]
    assert (code, lines[1:]) == (3, ["No request was answered", f"failed, {CUT_OFF} (6 of 6)"])
    assert re.fullmatch(r"0 of 6 requests answered in \d+\.\d s", lines[0])
    assert numbers["failures"] == {CUT_OFF: 6}


def test_without_failures_there_are_no_reasons() -> None:
    with server("stop") as url:
        code, printed = load(url, *TEXTS, "--format", "json")
    assert (code, json.loads(printed)["failures"]) == (0, {})


def limited(soft: int, hard: int | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where so many files may be open."""
    limits = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({soft}, {hard})); "
    code = f"{limits}import sys; from chunkbench.cli.main import cli; cli(['load', *sys.argv[1:]])"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", [("--clients", "200"), ("--rate", "20000")])
def test_too_few_files_are_one_message_about_the_client(how: tuple[str, str]) -> None:
    with server("stop") as url:
        ended = limited(64, 64, url, *how, "--requests", "400", "--warm-up", "0", "--n-c", "2")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "chunkbench load: the client is at its limit, not the server: it may not open more files, and each connection "
        "is one: raise the hard limit (ulimit -Hn), or use fewer clients or a lower rate\n"
    )


def test_a_soft_limit_of_files_is_raised() -> None:
    with server("stop") as url:
        words = (url, "--clients", "200", "--requests", "200", "--warm-up", "0", "--n-c", "2", "--format", "json")
        ended = limited(64, "r.getrlimit(r.RLIMIT_NOFILE)[1]", *words)
    assert (ended.returncode, ended.stderr, json.loads(ended.stdout)["answered"]) == (0, "", 200)


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
