"""Server processes: they start, fail with their last words, and leave nothing behind. Real processes."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from chunkbench.bench.contract import YES, Answer
from chunkbench.llama import SHAPES
from chunkbench.workloads.serving.servers.process import ServerFailed, start_server
from chunkbench.workloads.serving.servers.system import Launch, Setting, System

SETTING = Setting(SHAPES["small-llama"], 2, 300, 64, "float32", "cpu", 4, 1 << 20, 1)
LISTED = {"data": [{"id": "m"}]}
SERVER = f"""
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{json.dumps(LISTED)}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Scripted(System):
    """Runs a Python program with the port as its argument."""

    label = "scripted"

    def __init__(self, program: str, ready_s: float = 30) -> None:
        self.program = program
        self.ready_s = ready_s

    def availability(self, device: str) -> Answer:
        return YES

    def package_version(self) -> str:
        return "scripted 1"

    def launch(self, setting: Setting, folder: Path, port: int) -> Launch:
        return Launch([sys.executable, "-c", self.program, str(port)], {"GREETING": "hello"})


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_and_its_children_end_together(tmp_path: Path) -> None:
    server = start_server(Scripted(SERVER), SETTING, tmp_path)
    assert server.target.model == "m"
    assert server.died == ""
    child = int((tmp_path / "server.log").read_text().split()[1])
    assert alive(child)
    server.stop()
    limit = time.monotonic() + 10
    while alive(child) and time.monotonic() < limit:  # on a busy machine Linux takes a moment
        time.sleep(0.05)
    assert not alive(child)
    assert server.died.startswith("the server was killed by SIGTERM: ")


def test_a_server_that_ends_says_its_last_words(tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['GREETING']); print('no memory left'); sys.exit(3)"
    with pytest.raises(ServerFailed, match=r"exited with code 3: hello \| no memory left"):
        start_server(Scripted(program), SETTING, tmp_path)


def test_a_server_that_never_listens_is_ended(tmp_path: Path) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(ServerFailed, match=r"did not answer within 2 s"):
        start_server(Scripted(program, ready_s=2), SETTING, tmp_path)
    assert not alive(int((tmp_path / "server.log").read_text()))


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Even if that process is killed and cannot clean up."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            server = start_server(Scripted(SERVER), SETTING, tmp_path)
            assert server._process is not None
            os.write(writing, str(server._process.pid).encode())
            time.sleep(600)
        finally:
            os._exit(1)
    os.close(writing)
    pid = int(os.read(reading, 100))
    assert alive(pid)
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(pid)


def test_the_configuration_is_that_of_the_shape(tmp_path: Path) -> None:
    config = json.loads((SETTING.model_folder(tmp_path / "new") / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (2048, 2, 300)
    assert SETTING.token_bytes == 2 * 2 * 32 * 128 * 4
    assert replace(SETTING, checkpoint=tmp_path).model_folder(tmp_path / "new") == tmp_path
