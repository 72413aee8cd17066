"""Systems that experiments can name, and the processes of servers: real ones start, fail, and leave nothing behind."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

pytest.importorskip("aiohttp")

from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.experiment.terms import Style
from chunkbench.llama import SHAPES
from chunkbench.workloads.serving import methods
from chunkbench.workloads.serving.methods import SYSTEMS
from chunkbench.workloads.serving.servers.endpoint import Endpoint
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
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check_ends(pid: int) -> None:
    """On a busy machine Linux takes a moment."""
    limit = time.monotonic() + 10
    while alive(pid) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not alive(pid)


def test_a_server_and_its_children_end_together(tmp_path: Path) -> None:
    server = start_server(Scripted(SERVER), SETTING, tmp_path)
    assert server.target.model == "m"
    assert server.died == ""
    child = int((tmp_path / "server.log").read_text().split()[1])
    assert alive(child)
    server.stop()
    check_ends(child)
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
    check_ends(pid)


def test_the_configuration_is_that_of_the_shape(tmp_path: Path) -> None:
    config = json.loads((SETTING.model_folder(tmp_path / "new") / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (2048, 2, 300)
    assert SETTING.token_bytes == 2 * 2 * 32 * 128 * 4
    assert replace(SETTING, checkpoint=tmp_path).model_folder(tmp_path / "new") == tmp_path


def command(name: str, folder: Path, setting: Setting = SETTING) -> list[str]:
    launch = SYSTEMS.load(name).launch(setting, folder, 8000)
    assert launch is not None
    return list(launch.command)


def test_variants_of_our_engine_differ_in_their_options(tmp_path: Path) -> None:
    usual = command("chunk_llama", tmp_path)
    for name, option, value in (
        ("chunk_llama_no_tpp", "two-phase", "sequence-first"),
        ("chunk_llama_no_sharing", "two-phase", "no-sharing"),
        ("chunk_llama_radix", "live", "radix"),
        ("transformers", "chunk", "transformers"),
    ):
        assert command(name, tmp_path) == [value if word == option else word for word in usual], name


def test_systems_follow_constraints_in_their_own_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = command("chunk_llama", tmp_path)
    assert command("unconstrained", tmp_path) == usual
    assert SYSTEMS.load("unconstrained").constraint == "left out"
    assert SYSTEMS.load("transformers").constraint == "refused"
    for name in ("mask", "interleaved", "jump", "jump-retokenize", "forced-tokens"):
        given = command(f"chunk_llama_{name.replace('-', '_')}", tmp_path)
        assert given == [*usual, "--constrained", name]
    assert command("chunk_llama_jump_compiled", tmp_path) == [*usual, "--constrained", "jump", "--compiled", "0"]
    monkeypatch.setenv("CHUNKBENCH_VLLM_PYTHON", sys.executable)
    for name, backend in (("vllm", "xgrammar"), ("vllm_guidance", "guidance")):
        assert "--skip-tokenizer-init" in command(name, tmp_path)
        words = command(name, tmp_path, replace(SETTING, constrained=True))
        assert "--skip-tokenizer-init" not in words
        assert words[words.index("--structured-outputs-config") + 1] == f'{{"backend": "{backend}"}}'


def test_every_system_has_a_label_and_a_style() -> None:
    assert SYSTEMS.names() == sorted(SYSTEMS.names())
    loaded = [SYSTEMS.load(name) for name in SYSTEMS.names()]
    assert len({system.label for system in loaded}) == len(loaded)
    assert all(SYSTEMS.style(name) == system.style for name, system in zip(SYSTEMS.names(), loaded, strict=True))


class Other(Endpoint):
    label = "other"
    style = Style(marker="*")


ROW = Other()


def test_others_register_a_class_or_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs-1.dist-info").mkdir()
    (tmp_path / "theirs-1.dist-info/entry_points.txt").write_text(
        f"[{methods.GROUP}]\na_class = {__name__}:Other\nan_object = {__name__}:ROW\nvllm = gone:Gone\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    systems = methods.Registry({"vllm": SYSTEMS.load("vllm")}, methods.GROUP)
    for name in ("a_class", "an_object"):
        assert isinstance(systems.load(name), Other)
        assert systems.style(name) == Other.style
        assert systems.availability(name, "cpu")[0] == "other"
    assert systems.style("vllm") == SYSTEMS.style("vllm")  # the names of this package are taken
