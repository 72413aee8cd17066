"""Runs of `kind: serving`: real servers of a tiny model, and closed-loop clients of a server that answers at once."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from click.testing import CliRunner

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli
from chunkbench.report.build import build
from chunkbench.report.formats import render
from chunkbench.run_error import CannotRunError, RunError
from chunkbench.workloads import register
from chunkbench.workloads.serving import plan
from chunkbench.workloads.serving.layout import saved_by_sharing
from chunkbench.workloads.serving.plan import draw_id
from chunkbench.workloads.serving.result import ServingResult
from tests.conftest import MISSING
from tests.workloads.made import drawn

if MISSING:
    pytest.skip(f"{', '.join(MISSING)} is not installed", allow_module_level=True)

from aiohttp import web

from tests.server.engine.models import write_byte_tokenizer

SYSTEMS = ("vllm", "chunk_llama_no_sharing", "chunk_llama")
EXPERIMENT = """
title: tiny servers
kind: serving
implementations: [vllm, chunk_llama_no_sharing, chunk_llama]
dtype: float32
budget: 10h  # of the default one a stall of a minute leaves nothing to the last points
requests: 6
arrival_seeds: 2
vocabulary: 300
defaults: {model: %s, n_p: 200, n_c: 4, batch_size: 4}
sweep: %s
"""
SEVERAL = "{n_s: 0, clients: 2, samples: 2}, {n_s: 0, clients: 2, beams: 2}"
SWEEP = f"[{{n_s: 0, load: [50, 150]}}, {{n_s: n_p, load: 50}}, {SEVERAL}]"
POINTS = [(0, 50), (0, 150), (200, 50)]
"""n_s and load."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The experiment's file and its run."""
    folder = tmp_path_factory.mktemp("serving")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = folder / "config.json"
    config.write_text(json.dumps({**sizes, "num_key_value_heads": 2, "head_dim": 16, "model_type": "llama"}))
    file = folder / "tiny.yaml"
    file.write_text(EXPERIMENT % (config, SWEEP))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHUNKBENCH_VLLM_PYTHON", str(folder / "no-python"))
        result = CliRunner().invoke(cli, ["run", str(file), "--out", str(folder / "run")])
        assert result.exit_code == 0, result.output
        yield file, folder / "run"


def facts(path: Path) -> dict[tuple[str, int | None, int | None], ServingResult]:
    """The cases with one answer to a prompt."""
    return {(case.implementation, case.n_s, case.load): case for case in cases(path) if case.answers == 1}


def cases(path: Path) -> list[ServingResult]:
    register()
    return [case for case in open_run(path).cases if isinstance(case, ServingResult)]


def test_every_system_has_a_row_at_every_point(run: tuple[Path, Path]) -> None:
    assert not (run[1] / "servers").exists()
    rows = facts(run[1])
    assert set(rows) == {(system, n_s, load) for system in SYSTEMS for n_s, load in POINTS}
    for (system, _, _), row in rows.items():
        if system == "vllm":
            assert (row.status, row.measurements) == ("unavailable", ())
            assert "CHUNKBENCH_VLLM_PYTHON names no file" in row.reason
        else:
            assert row.status in ("ok", "noisy"), row.reason


def test_all_requests_are_kept_and_answered(run: tuple[Path, Path]) -> None:
    for (system, n_s, _), row in facts(run[1]).items():
        if system == "vllm":
            continue
        assert [measurement.arrival_seed for measurement in row.measurements] == [0, 1]
        assert len(row.us_per_token) == 2
        for measurement in row.measurements:
            # Above capacity requests grow with the load, so that they arrive for as long.
            assert [request.tokens for request in measurement.requests] == [4] * (9 if row.load == 150 else 6)
            assert {request.prompt_tokens for request in measurement.requests} == {200}
            server = measurement.server
            assert server is not None
            assert server.peak_kv_bytes
            steps = server.every_step
            assert len(steps) == server.steps > 0
            assert max(batch for _, batch, _, _ in steps) == server.peak_batch
            assert sum(tokens for _, _, tokens, _ in steps) == server.computed_tokens
            assert fmean(took for *_, took in steps) == pytest.approx(server.step_s, abs=1e-4)
            if n_s == 0 or system == "chunk_llama_no_sharing":
                assert sum(request.cached_tokens or 0 for request in measurement.requests) == 0


@pytest.mark.slow
def test_the_profile_of_a_point(run: tuple[Path, Path]) -> None:
    words = ["profile", str(run[0]), "chunk_llama", "--where", "samples=2", "--format", "json", "-q"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["status"] in ("ok", "noisy")
    assert (told["samples"], len(told["measurements"])) == (2, 1)
    assert told["gap_s"] > 0


def test_several_answers_to_a_prompt(run: tuple[Path, Path]) -> None:
    """They share its K/V; a beam search has no first token before its last one."""
    sampled, searched = (
        {case.implementation: case for case in cases(run[1]) if case.measurements and getattr(case, axis) == 2}
        for axis in ("samples", "beams")
    )
    assert set(sampled) == set(searched) == {"chunk_llama", "chunk_llama_no_sharing"}
    for case in (*sampled.values(), *searched.values()):
        requests = [request for measurement in case.measurements for request in measurement.requests]
        assert [(one.status, one.answers, one.tokens) for one in requests] == [("ok", 2, 8)] * 8
        assert {one.first is None for one in requests} == {case.beams == 2}
        for seed, took in zip(case.measurements, case.us_per_token, strict=True):
            assert took == pytest.approx(fmean((one.last - one.due) / 4 for one in seed.requests) * 1e6)
    group = next(group for group in build(open_run(run[1])).groups if group.axes["samples"])
    assert saved_by_sharing(group, group.rows["chunk_llama"]) > 0.3


def test_systems_get_the_same_requests_at_the_same_times(run: tuple[Path, Path]) -> None:
    """The reference, vllm, is not here: the first system that runs takes its place, and the facts say so."""
    rows = facts(run[1])
    for n_s, load in POINTS:
        ours, other = rows["chunk_llama", n_s, load], rows["chunk_llama_no_sharing", n_s, load]
        dues = [[[r.due for r in m.requests] for m in row.measurements] for row in (ours, other)]
        assert dues[0] == dues[1]
        assert dues[0][0] != dues[0][1]
        assert ours.requests_per_s == other.requests_per_s
    half, over = rows["chunk_llama", 0, 50], rows["chunk_llama", 0, 150]
    assert half.reference == "chunk_llama_no_sharing"
    assert half.capacity_per_s == over.capacity_per_s
    assert half.requests_per_s == pytest.approx(0.5 * (half.capacity_per_s or 0))


def test_a_finished_run_is_not_measured_again(run: tuple[Path, Path]) -> None:
    before = (run[1] / "cases.jsonl").read_bytes()
    result = CliRunner().invoke(cli, ["run", str(run[0]), "--out", str(run[1]), "--resume"])
    assert result.exit_code == 0, result.output
    assert (run[1] / "cases.jsonl").read_bytes() == before


@pytest.mark.slow
def test_what_does_not_fit_is_named_before_and_left_out(run: tuple[Path, Path], tmp_path: Path) -> None:
    """The budget has no room: the first point has what a comparison needs, the others are rows that say why."""
    file = tmp_path / "short.yaml"
    text = run[0].read_text().replace("requests: 6", "requests: 12").replace("arrival_seeds: 2", "arrival_seeds: 3")
    file.write_text(text.replace("[vllm, chunk_llama_no_sharing, chunk_llama]", "[chunk_llama, chunk_llama_radix]"))
    short = ["run", str(file), "--budget", "1s"]
    told = CliRunner().invoke(cli, [*short, "--dry-run"]).output
    result = CliRunner().invoke(cli, [*short, "--out", str(tmp_path / "run"), "-q"])
    assert result.exit_code == 0, result.output
    assert "requests of an arrival seed: 8 in place of 12" in told
    assert "arrival seeds: 2 in place of 3" in told
    left_out = "left out: model=llama n_p=200 n_s=200 b=4 load=50: chunk_llama, chunk_llama_radix"
    assert left_out in told
    rows = facts(tmp_path / "run")
    measured = {key: [len(one.requests) for one in row.measurements] for key, row in rows.items() if row.measurements}
    assert measured == {(system, 0, 50): [8, 8] for system in ("chunk_llama", "chunk_llama_radix")}
    for key, row in rows.items():
        if key not in measured:
            assert row.status == "unsupported"
            assert row.reason.startswith("left out: the budget of 1 s ends before")


@pytest.mark.slow
def test_servers_that_do_not_fit_together_are_measured_in_groups(
    run: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "groups.yaml"
    text = run[0].read_text().replace("[vllm, chunk_llama_no_sharing,", "[chunk_llama_no_sharing, chunk_llama_radix,")
    file.write_text(text.replace(SWEEP, "[{n_s: 0, load: 50}]").replace("requests: 6", "requests: 2"))
    monkeypatch.setattr(plan, "available_memory", lambda: 2_200_000_000)
    result = CliRunner().invoke(cli, ["run", str(file), "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    told = "in groups, one after the other: chunk_llama, chunk_llama_no_sharing; chunk_llama, chunk_llama_radix"
    assert told in result.output
    rows = {system: row for (system, _, _), row in facts(tmp_path / "run").items()}
    seeds = {system: [one.arrival_seed for one in row.measurements] for system, row in rows.items()}
    assert seeds == {"chunk_llama_no_sharing": [0, 1], "chunk_llama_radix": [2, 3], "chunk_llama": [0, 1, 2, 3]}
    assert all(told in row.note for row in rows.values())
    assert {row.reference for row in rows.values()} == {"chunk_llama_no_sharing"}
    assert len({row.requests_per_s for row in rows.values()}) == 1


def test_servers_that_do_not_fit_even_alone_are_refused(run: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_text(
        run[0].read_text().replace("n_p: 200, n_c: 4, batch_size: 4", "n_p: 1000000, n_c: 4, batch_size: 4096")
    )
    refused = CliRunner().invoke(cli, ["run", str(file), "--out", str(tmp_path / "refused")])
    assert isinstance(refused.exception, CannotRunError)
    told = str(refused.exception)
    assert "no system of this experiment fits into memory: chunk_llama_no_sharing: needs " in told
    assert "are missing" in told


def test_texts_need_a_tokenizer(run: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(run[0].read_text() + "texts: questions\n")
    result = CliRunner().invoke(cli, ["run", str(tmp_path / "t.yaml"), "--dry-run"])
    assert "has no tokenizer for questions; give a checkpoint's folder" in str(result.exception)
    assert isinstance(result.exception, RunError)


def test_a_tree_of_prompts_does_not_set_the_batch(run: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text(run[0].read_text().replace(SWEEP, "[{tree: [[64, [[64, 1], [64, 1]]], [100, 1]], load: 50}]"))
    result = CliRunner().invoke(cli, ["run", str(file), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "1 points, 2 arrival seeds of 6 requests for each system" in result.output
    assert "unavailable: CHUNKBENCH_VLLM_PYTHON names no file" in result.output
    assert "n_p=200 tree=64x(64x1 64x1) 100x1 b=4 load=50" in result.output
    # Requests are drawn from this text: another one would draw others when a recorded run is resumed.
    (point,) = load_experiment(file).points("cpu", "float32")
    axes = "n_p=200 n_s=- n_c=4 batch_size=4 prompts=1"
    assert f"{axes} tree=64x(64x1 64x1) 100x1 load=50%" in draw_id(point)


WAIT_S = 0.04
CLOSED = """
kind: serving
implementations: [endpoint]
baseline: endpoint
endpoint: %s
dtype: float32
requests: 12
arrival_seeds: 2
vocabulary: 300
defaults: {model: small-llama, n_p: 20, n_s: 0, n_c: 3, batch_size: 8}
sweep: [{clients: [1, 4, 8]}]
"""


class Busy:
    """A server that counts how many requests it has at once."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.most: dict[int, int] = {}
        """Number of the request -> requests that were there when it came."""
        self._running = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked.append(asked)
        self._running += 1
        self.most[len(self.asked)] = self._running
        await asyncio.sleep(WAIT_S)
        self._running -= 1
        response = web.StreamResponse()
        await response.prepare(request)
        pieces = ["a"] * asked["max_tokens"]
        if "structured_outputs" in asked:
            regex = asked["structured_outputs"]["regex"]
            pieces = [re.sub(r"\[a-z \]\{(\d+)\}", lambda match: "x" * int(match[1]), regex).replace("\\", "")]
            pieces = pieces if "{" in pieces[0] else ["no, "]  # it knows JSON only
        for number, piece in enumerate(pieces, 1):
            choice = {"index": 0, "text": piece, "finish_reason": "stop" if number == len(pieces) else None}
            await response.write(f"data: {json.dumps({'id': 'r', 'choices': [choice]})}\n\n".encode())
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": len(pieces)}
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())
        return response


Served = tuple[Path, Busy, str]
"""A folder with a run, the server that it measured, and its address."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, busy = tmp_path_factory.mktemp("closed"), Busy()
    loop, listens = asyncio.new_event_loop(), threading.Event()
    addresses: list[Any] = []

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", busy.answer)
        app.router.add_get("/v1/models", listed)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        addresses.extend(runner.addresses)
        listens.set()

    async def listed(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    thread = threading.Thread(target=lambda: (loop.create_task(serve()), loop.run_forever()), daemon=True)
    thread.start()
    assert listens.wait(10)
    file = folder / "closed.yaml"
    file.write_text(CLOSED % f"http://127.0.0.1:{addresses[0][1]}")
    result = CliRunner().invoke(cli, ["run", str(file), "--out", str(folder / "run")])
    assert result.exit_code == 0, result.output
    yield folder, busy, f"http://127.0.0.1:{addresses[0][1]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def test_each_client_sends_two_requests_as_soon_as_it_has_an_answer(served: Served) -> None:
    register()
    folder, busy, _ = served
    rows = [case for case in open_run(folder / "run").cases if isinstance(case, ServingResult)]
    assert {row.clients: [len(m.requests) for m in row.measurements] for row in rows} == {
        1: [4, 4],
        4: [8, 8],
        8: [12, 12],  # no more than `requests`
    }
    assert {(row.status, row.reference, row.requests_per_s) for row in rows} <= {("ok", "", None), ("noisy", "", None)}
    place = 4  # behind the warm-up
    for row in rows:
        for measurement in row.measurements:
            numbers = range(place + 1, place + 1 + len(measurement.requests))
            assert max(busy.most[number] for number in numbers) == row.clients
            place = numbers[-1]
            dues = sorted(request.due for request in measurement.requests)
            assert dues[row.clients or 0 : (row.clients or 0) + 1] >= [WAIT_S]
    prompts = [tuple(asked["prompt"]) for asked in busy.asked]
    assert len(set(prompts)) == len(prompts) == place


def test_a_closed_loop_has_a_plan_a_table_and_a_figure(served: Served) -> None:
    folder, _, _ = served
    plan = CliRunner().invoke(cli, ["run", str(folder / "closed.yaml"), "--dry-run"])
    assert "3 points, 2 arrival seeds of 4 to 12 requests" in plan.output
    assert "n_p=20 n_s=0 b=8 clients=4" in plan.output
    found = open_run(folder / "run")
    text = " ".join(render(build(found), "table").split())
    assert "2 arrival seeds of 4 to 12 requests, closed loop" in text
    assert "requests answered per second" in text
    plot = drawn(found).axes[0]
    assert (plot.get_xlabel(), plot.get_ylabel()) == ("clients", "answers per second")
    (line,) = plot.get_lines()
    assert list(line.get_xdata()) == [1, 4, 8]


def test_answers_that_break_their_constraint_are_incorrect(served: Served, tmp_path: Path) -> None:
    _, busy, url = served
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps({**shape, "model_type": "llama", "vocab_size": 256}))
    (tmp_path / "m" / "model.safetensors").write_bytes(b"")  # so that it is a checkpoint
    write_byte_tokenizer(tmp_path / "m")
    text = CLOSED.replace("model: small-llama, n_p: 20", f"model: {tmp_path / 'm'}, n_p: 90") % url
    text = text.replace("clients: [1, 4, 8]", "clients: 4, forced: [0, 50]") + "constrained: share\n"
    (tmp_path / "share.yaml").write_text(text)
    begun = len(busy.asked)
    result = CliRunner().invoke(cli, ["run", str(tmp_path / "share.yaml"), "--out", str(tmp_path / "run")])
    assert result.exit_code == 3, result.output  # not all rows are ok
    rows = {case.forced: case for case in open_run(tmp_path / "run").cases if isinstance(case, ServingResult)}
    assert rows[50].status in ("ok", "noisy"), rows[50].reason
    first = rows[50].measurements[0]
    assert first.constrained is not None
    assert (first.constrained.valid, first.constrained.invalid) == (8, 0)
    assert {request.status for request in first.requests} == {"ok"}
    assert set(map(len, first.constrained.texts)) == {200}
    assert rows[0].status == "incorrect"
    assert rows[0].reason == "8 of 8 answers break their constraint: 'no, '"
    sent = [asked for asked in busy.asked[begun:] if "structured_outputs" in asked]
    assert len(sent) == 2 + 3 * 8  # one of each before the clock; no second seed of what failed
    assert not any("ignore_eos" in asked for asked in sent)
    (tmp_path / "share.yaml").write_text(text.replace("n_p: 90", "n_p: 30"))
    refused = CliRunner().invoke(cli, ["run", str(tmp_path / "share.yaml"), "--dry-run"])
    assert "n_p = 30 is the most; raise it" in str(refused.exception)
