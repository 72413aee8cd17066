"""Points with closed-loop clients, on a running server that answers at once."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli
from chunkbench.report.build import build
from chunkbench.report.formats import render
from chunkbench.workloads import register
from chunkbench.workloads.serving.result import ServingResult
from tests.conftest import MISSING
from tests.workloads.made import drawn

if MISSING:
    pytest.skip(f"{', '.join(MISSING)} is not installed", allow_module_level=True)

from aiohttp import web

from tests.server.engine.models import write_byte_tokenizer

WAIT_S = 0.04
EXPERIMENT = """
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
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
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
    file.write_text(EXPERIMENT % f"http://127.0.0.1:{addresses[0][1]}")
    result = CliRunner().invoke(cli, ["run", str(file), "--out", str(folder / "run")])
    assert result.exit_code == 0, result.output
    yield folder, busy, f"http://127.0.0.1:{addresses[0][1]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def test_each_client_sends_two_requests_as_soon_as_it_has_an_answer(run: Served) -> None:
    register()
    folder, busy, _ = run
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


def test_a_closed_loop_has_a_plan_a_table_and_a_figure(run: Served) -> None:
    folder, _, _ = run
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


def test_answers_that_break_their_constraint_are_incorrect(run: Served, tmp_path: Path) -> None:
    _, busy, url = run
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps({**shape, "model_type": "llama", "vocab_size": 256}))
    (tmp_path / "m" / "model.safetensors").write_bytes(b"")  # so that it is a checkpoint
    write_byte_tokenizer(tmp_path / "m")
    text = EXPERIMENT.replace("model: small-llama, n_p: 20", f"model: {tmp_path / 'm'}, n_p: 90") % url
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
