"""Systems that experiments can name, what of them fits into memory and time, and real processes of servers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiohttp")

from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.experiment.terms import Style
from chunkbench.llama import SHAPES
from chunkbench.traffic import PlannedRequest
from chunkbench.traffic.load import LoadOptions, send
from chunkbench.workloads.serving import methods
from chunkbench.workloads.serving.budget import Costs, Cut, Part, fit, took_s
from chunkbench.workloads.serving.memory import plan_memory
from chunkbench.workloads.serving.methods import SYSTEMS
from chunkbench.workloads.serving.result import ServerFacts, ServingPoint
from chunkbench.workloads.serving.servers.chunk_llama import StepLog
from chunkbench.workloads.serving.servers.endpoint import Endpoint
from chunkbench.workloads.serving.servers.llama_cpp import WHEEL, _module
from chunkbench.workloads.serving.servers.process import start_server
from chunkbench.workloads.serving.servers.system import Launch, ServerFailed, Setting, System
from tests.waiting import has_ended, wait_until

SETTING = Setting(SHAPES["small-llama"], 2, 300, 64, "float32", "cpu", "same", 4, 1 << 20, 1)
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


def test_a_server_and_its_children_end_together(tmp_path: Path) -> None:
    server = start_server(Scripted(SERVER), SETTING, tmp_path)
    assert server.target.model == "m"
    assert server.died == ""
    child = int((tmp_path / "server.log").read_text().split()[1])
    assert not has_ended(child)
    server.stop()
    wait_until(lambda: has_ended(child), 10)  # on a busy machine Linux takes a moment
    assert server.died.startswith("the server was killed by SIGTERM: ")


def test_a_server_that_ends_says_its_last_words(tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['GREETING']); print('no memory left'); sys.exit(3)"
    with pytest.raises(ServerFailed, match=r"exited with code 3: hello \| no memory left"):
        start_server(Scripted(program), SETTING, tmp_path)


def test_a_server_that_never_listens_is_ended(tmp_path: Path) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(ServerFailed, match=r"did not answer within 2 s"):
        start_server(Scripted(program, ready_s=2), SETTING, tmp_path)
    assert has_ended(int((tmp_path / "server.log").read_text()))


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
    assert not has_ended(pid)
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    wait_until(lambda: has_ended(pid), 10)


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


def test_openvino_runs_behind_our_server_in_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHUNKBENCH_OPENVINO_PYTHON", str(tmp_path / "none"))
    answer = SYSTEMS.load("openvino").availability("cpu")
    assert answer.reason == f"CHUNKBENCH_OPENVINO_PYTHON names no file: {tmp_path / 'none'}"
    assert "`make openvino-environment` makes one" in answer.remedy
    assert not SYSTEMS.load("openvino").availability("cuda").ok
    python = tmp_path / "python"
    python.touch()
    monkeypatch.setenv("CHUNKBENCH_OPENVINO_PYTHON", str(python))
    usual = ["chunk", "same", "live"]
    for name, changed in (
        ("openvino", ["openvino", "same", "live"]),
        ("openvino_prefix_caching", ["openvino", "same", "radix"]),
        ("openvino_u8", ["openvino", "uint8", "radix"]),
    ):
        words, ours = command(name, tmp_path), command("chunk_llama", tmp_path)
        assert words[0] == str(python)
        pairs = {(word, other) for word, other in zip(words[1:], ours[1:], strict=True) if word != other}
        assert pairs == {pair for pair in zip(changed, usual, strict=True) if pair[0] != pair[1]}, name
    assert [SYSTEMS.load(name).exact for name in ("openvino", "openvino_u8", "llama_cpp_packed")] == [
        True,
        False,
        False,
    ]


def test_llama_cpp_says_what_it_cannot_do() -> None:
    small = replace(SETTING, dtype="bfloat16")
    assert "no bfloat16 kernels" in SYSTEMS.load("llama_cpp").refusal(small)
    assert SYSTEMS.load("llama_cpp_native").refusal(small) == ""
    assert SYSTEMS.load("llama_cpp").refusal(SETTING) == ""
    assert "no weights in 4 bits" in SYSTEMS.load("llama_cpp_packed").refusal(SETTING)
    assert not SYSTEMS.load("llama_cpp").availability("cuda").ok


@pytest.mark.skipif(WHEEL.python is None, reason="`make llama-environment` installs llama.cpp")
def test_llama_cpp_serves_our_weights(tmp_path: Path) -> None:
    """Its greedy answer is that of transformers. Other logits than the expected ones stop the server."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape = SETTING.shape.model_copy(update=sizes | {"num_hidden_layers": 2, "head_dim": 32})
    setting, system = replace(SETTING, shape=shape), SYSTEMS.load("llama_cpp")
    prompt, answers = (3, 50, 7, 88, 21), []
    server = start_server(system, setting, tmp_path / "first")
    try:
        server.begin()
        plan = [PlannedRequest(0.0, prompt, 6)] * 3
        options = LoadOptions(2, gaps=True)
        done = asyncio.run(
            send(server.target, plan, options, lambda *told: answers.append(system.ids_of(told[3].text)))
        )
        peak = server.peak_bytes()
    finally:
        server.stop()
    assert [request.status for request in done.requests] == ["ok"] * 3
    assert [len(request.gaps) for request in done.requests] == [5] * 3
    assert peak is not None
    assert peak > 10**7
    module = _module(setting, tmp_path / "again")
    wanted = module.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=6, pad_token_id=0)
    assert answers == [wanted[0, len(prompt) :].tolist()] * 3
    expected = tmp_path / "float32.json"
    told = json.loads(expected.read_text())
    expected.write_text(json.dumps(told | {"prompt": told["prompt"][:-1]}))
    with pytest.raises(ServerFailed, match=r"its log-probabilities differ by .* from those of transformers"):
        start_server(system, setting, tmp_path / "second")


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


GIB = 1 << 30
seconds = st.floats(0, 100)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    fewest_requests, fewest_seeds = draw(st.integers(1, 8)), draw(st.integers(0, 2))
    requests, seeds = fewest_requests + draw(st.integers(0, 40)), fewest_seeds + draw(st.integers(0, 3))
    return Part(requests, fewest_requests, seeds, fewest_seeds, draw(seconds), draw(seconds), draw(seconds))


@given(st.lists(parts(), max_size=6), st.floats(0, 20_000))
def test_what_is_kept_fits_and_is_cut_in_order(left: list[Part], left_s: float) -> None:
    cuts = fit(left, left_s)
    assert len(cuts) == len(left)
    kept = [number for number, cut in enumerate(cuts) if cut != Cut(0, 0)]
    assert kept == list(range(len(kept)))  # points go from the last on
    assert took_s(left, cuts) <= left_s or not kept
    for part, cut in zip(left[: len(kept)], cuts, strict=False):
        assert part.fewest_requests <= cut.requests <= part.requests
        assert part.fewest_seeds <= cut.seeds <= part.seeds
    chosen = list(zip(left, cuts, strict=True))[: len(kept)]
    if any(cut.seeds < part.seeds for part, cut in chosen):  # seeds go only when the fewest requests are too many
        assert took_s(left, [part.cut(0, 0) for part in left[: len(kept)]]) > left_s
    if len(kept) < len(left):  # and points only at the fewest requests and seeds
        assert took_s(left, [part.cut(0, part.seeds) for part in left[: len(kept) + 1]]) > left_s
    assert fit(left, 1e9) == [Cut(part.requests, part.seeds) for part in left]


@pytest.mark.parametrize(
    ("left_s", "cuts"),
    [(176, [(24, 3)] * 2), (80, [(8, 3)] * 2), (79, [(12, 2)] * 2), (60, [(8, 2)] * 2), (59, [(14, 3), (0, 0)])],
)
def test_the_order_of_cuts(left_s: float, cuts: list[tuple[int, int]]) -> None:
    """Two points; each request of a seed takes a second, each seed two more, each point ten more."""
    assert fit([Part(24, 8, 3, 2, once_s=10, seed_s=2, request_s=1)] * 2, left_s) == [Cut(*cut) for cut in cuts]


def point(load: int, n_s: int = 0) -> ServingPoint:
    return ServingPoint(n_p=100, n_s=n_s, n_c=8, load=load, batch_size=4, device="cpu", dtype="float32")


def test_costs_are_learned() -> None:
    costs = Costs({"a": 15, "b": 15}, lambda point: 2.0)
    assert costs.one_s("r", point(80)) == 2.0
    costs.learn_capacity("r", point(80), 2.0)  # four times as fast as assumed
    assert costs.one_s("r", point(80)) == 0.5
    assert costs.one_s("other", point(80)) == 0.5
    assert costs.gap_s("r", point(50)) == 1.0
    # A system that keeps up: a request adds the gap to the next one; the last answer takes as long as any.
    costs.learn_turn("a", "r", point(50), 8, last_due=7.0, took_s=9.0, fastest_s=2.0)
    assert costs.turn("a", "r", point(50)) == pytest.approx((2.0, 1.0))
    # One that does not: what it is behind at the end grows with the requests.
    costs.learn_turn("b", "r", point(200), 8, last_due=1.75, took_s=9.75, fastest_s=2.0)
    assert costs.turn("b", "r", point(200)) == pytest.approx((2.0, 1.0))
    # Elsewhere a system is as slow as it was seen, in requests of the reference.
    assert costs.turn("b", "other", point(200)) == pytest.approx((2.0, 1.0))
    costs.learn_capacity("other", point(200), 1.0)
    assert costs.turn("b", "other", point(200)) == pytest.approx((4.0, 2.0))


@pytest.mark.parametrize(
    ("room", "needed", "besides", "kv_gib", "groups"),
    [
        (20, 4, {"v": 1, "p": 1, "c": 1, "r": 1}, 4, (("v", "p", "c", "r"),)),
        # What a full batch does not need is cut for all alike.
        (14, 2, {"v": 1, "p": 1, "c": 1, "r": 1}, 2.5, (("v", "p", "c", "r"),)),
        # Groups share the baseline, and the first one has the reference.
        (16, 4, {"v": 1, "p": 1, "c": 1, "r": 1}, 4, (("c", "v", "r"), ("c", "p"))),
        (11, 4, {"p": 1, "v": 1, "c": 1}, 4, (("c", "v"), ("c", "p"))),
        (5, 4, {"c": 1, "e": None}, 4, (("c", "e"),)),  # a server elsewhere takes no memory
    ],
)
def test_servers_fit_together_or_in_groups(
    room: int, needed: int, besides: dict[str, int | None], kv_gib: float, groups: tuple[tuple[str, ...], ...]
) -> None:
    sizes = {name: None if size is None else size * GIB for name, size in besides.items()}
    found = plan_memory(sizes, 4 * GIB, needed * GIB, "c", "v", room * GIB)
    assert (round(found.kv_bytes / GIB, 3), found.groups, dict(found.too_large)) == (kv_gib, groups, {})
    assert bool(found.difference) == ((kv_gib, len(groups)) != (4, 1))


@given(
    st.lists(st.integers(0, 4 * GIB) | st.none(), min_size=1, max_size=6),
    st.integers(1, 8 * GIB),
    st.integers(1, 8 * GIB),
    st.integers(0, 40 * GIB),
)
def test_no_group_needs_more_than_there_is(sizes: list[int | None], asked: int, needed: int, room: int) -> None:
    besides = dict(zip("cvprst", sizes, strict=False))
    found = plan_memory(besides, asked, needed, "c", "v", room)
    assert min(asked, needed) <= found.kv_bytes <= asked
    for group in found.groups:
        assert sum(size + found.kv_bytes for name in group if (size := besides[name]) is not None) <= room
    measured = [name for group in found.groups for name in group if name != "c"]
    assert sorted([*measured, *(set(found.too_large) - {"c"})]) == sorted(set(besides) - {"c"})


def test_steps_in_a_window_and_the_idle_time_between_them(tmp_path: Path) -> None:
    steps = [(1.0, 1), (2.0, 2), (2.1, 3), (5.0, 4), (9.0, 5)]
    fields = {"s": 0.1, "overhead_s": 0.01, "tree_s": 0.002, "kv_bytes": 64}
    path = tmp_path / "steps.jsonl"
    told = [
        {**fields, "ended": ended, "batch": batch, "prompt_tokens": batch % 2, "parts": {"products": batch / 100}}
        for ended, batch in steps
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in told))
    moments = StepLog(path).between(1.5, 6.0)
    assert [(moment.at, moment.batch) for moment in moments] == [(2.0, 2), (2.1, 3), (2.1, 0), (4.9, 0), (5.0, 4)]
    assert [moment.kv_bytes for moment in moments] == [64, 64, 0, 0, 64]
    assert [moment.seconds for moment in moments] == [0.1, 0.1, None, None, 0.1]
    facts = ServerFacts.of(moments, 1.5, sampled=False)
    assert facts is not None
    assert (facts.steps, facts.overhead_s, facts.tree_s) == (3, 0.01, 0.002)
    assert facts.parts == {"products": 0.03}  # of the steps with batch 2 and 4, which compute no prompt
