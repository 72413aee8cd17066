"""A server as scripts start and end it: odd environments, closed streams, addresses, clients that do not read."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from chunkbench.workloads.serving.servers.process import free_port

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
        for _ in range(100):
            if "too many open files" in errors.read_text():
                break
            time.sleep(0.1)
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
