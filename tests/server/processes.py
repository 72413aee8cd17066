"""Servers in processes of their own, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.server.engine.models import MERGES, write_byte_tokenizer, write_checkpoint

START_S = 120


@dataclass
class Served:
    """A running `chunkbench serve`."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def get(self, path: str, **headers: str) -> str:
        asked = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return str(answer.read().decode())

    def post(self, path: str, body: object) -> tuple[int, Any]:
        """Status and JSON of an answer. A body that is no JSON type but bytes is sent as it is."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def metric(self, name: str) -> float:
        """Value of a metric without labels, or with the labels as written."""
        found = re.search(rf"^chunkbench_{re.escape(name)} (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert found, name
        return float(found[1])

    def wait_until_idle(self, seconds: float = 20) -> None:
        """Until it has noticed that the last clients went away. Raises AssertionError."""
        deadline = time.monotonic() + seconds
        names = ("kv_bytes", "requests_running", "requests_waiting")
        while left := {name: value for name in names if (value := self.metric(name))}:
            assert time.monotonic() < deadline, f"nobody asks for anything any more, but the server has {left}"
            time.sleep(0.02)

    def stop(self) -> int:
        """End it by SIGTERM. Returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextlib.contextmanager
def serve(log: Path, *arguments: str) -> Iterator[Served]:
    """Start a server on a free port and wait until it listens."""
    command = [sys.executable, "-m", "chunkbench", "serve", *arguments, "--port", "0", "--log", str(log)]
    with (log.parent / f"{log.name}.err").open("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+(?=/v1)", line)
            if not found:
                errors.seek(0)
                raise AssertionError(f"no server: {line}{errors.read()}")
            yield Served(process, found[0], log)
        finally:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


@contextlib.contextmanager
def serve_small(*arguments: str) -> Iterator[Served]:
    """A server with a random small model and a tokenizer of bytes, called sharp; it must stop when asked to."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_byte_tokenizer(write_checkpoint("llama-grouped", Path(folder) / "model"), MERGES)
        words = [str(checkpoint), "--served-name", "sharp", "--dtype", "float32", *arguments]
        with serve(Path(folder) / "log", *words) as server:
            yield server
            assert server.stop() == 0, "the server does not stop"


def resident_bytes(pid: int) -> int:
    """Memory of a process that lies in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
