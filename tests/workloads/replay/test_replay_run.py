"""Runs of replays."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.runner.passes import Budget
from chunkbench.bench.runner.target import resolve_target
from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli
from chunkbench.report.build import build
from chunkbench.report.formats import render
from chunkbench.workloads.replay import measure
from chunkbench.workloads.replay.job import Answered, ReplayJob, compute
from chunkbench.workloads.replay.result import ReplayPoint
from chunkbench.workloads.replay.spec import ReplayExperiment
from chunkbench.workloads.replay.step_time import Constant
from tests.workloads.made import drawn

HEAD = "kind: replay\nrequests: 12\narrival_seeds: 2\nbudget: 1m\n"


def chunkbench(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def run(folder: Path, text: str, *options: str) -> tuple[Path, Result]:
    """Run an experiment; its directory and the result."""
    file, out = folder / "mine.yaml", folder / "run"
    file.write_text(HEAD + text)
    return out, chunkbench("run", str(file), "--out", str(out), *options)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "cases.jsonl").read_text().splitlines()]


def claims(out: Path) -> dict[str, dict[str, Any]]:
    return {claim["id"]: claim for claim in json.loads(chunkbench("claims", str(out), "--format", "json").output)}


@pytest.fixture(scope="module")
def table4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = (
        "implementations: [paged, prefix_tree]\ndefaults: {n_c: 512, memory: 60000}\n"
        "sweep:\n  - {n_p: 1024, n_s: [0, n_p], rate: [60, 240]}\n"
    )
    out, done = run(tmp_path_factory.mktemp("table4"), text)
    assert done.exit_code == 0, done.output
    assert "2 replayed; 2 arrival seeds" in done.output
    return out


def test_facts_of_a_replay(table4: Path) -> None:
    found = {(line["implementation"], line["n_s"], line["rate"]): line for line in lines(table4)}
    tree, paged = found["prefix_tree", 1024, 60], found["paged", 1024, 60]
    assert (tree["status"], tree["capacity"], tree["block_tokens"], tree["token_bytes"]) == ("ok", 59968, 64, 524288)
    for seed in tree["replays"]:
        assert (seed["requests"], seed["prompt_tokens"], seed["refused"]) == (12, 12 * 1024, 0)
        assert seed["computed_tokens"] + seed["cached_tokens"] == seed["prompt_tokens"]
        assert seed["distinct_tokens"] == 1024
        assert all(sum(moment[3:9]) == tree["capacity"] for moment in seed["timeline"])
    assert all(seed["cached_tokens"] == 0 for seed in paged["replays"])
    assert paged["us_per_token"][0] > 1.1 * tree["us_per_token"][0]


def test_the_papers_table_4_stands_beside(table4: Path) -> None:
    recorded = open_run(table4)
    text = " ".join(render(build(recorded), "table").split())
    for part in (
        "the same, paper (measured) 14.07 20.80",
        "a replay: requests, a scheduler and a cache manager on a virtual clock; nothing was measured",
        "Rates sustained below 40 ms/token in the replay",
        "4 ms of the host in each step, fitted to Table 4",
        "replayed on cpu",
    ):
        assert part in text
    assert "standard normal" not in text
    assert drawn(recorded).axes[0].get_ylabel() == "normalized latency, ms/token"


def test_contiguous_memory_is_wasted_and_the_claim_says_so(tmp_path: Path) -> None:
    text = (
        "implementations: [contiguous_max, paged]\nbaseline: paged\nlongest: 2048\nstep_time: paged-attention\n"
        "sweep:\n  - {traffic: sharegpt, rate: 120, memory: 15728, batch_size: 256, model: llama2-13b}\n"
    )
    out, done = run(tmp_path, text)
    assert done.exit_code == 0, done.output
    waste = claims(out)["PA-waste"]
    assert 0.1 < waste["measured"] < 0.35
    assert waste["verdict"] == "replayed"
    assert drawn(open_run(out)).axes[0].get_ylabel() == "share of the memory taken, %"


def test_answers_of_one_prompt_and_swaps_and_cut_prompts(tmp_path: Path) -> None:
    text = (
        "implementations: [contiguous_exact, paged, paged_swap]\nbaseline: contiguous_exact\nlongest: 2048\n"
        "step_time: paged-attention\ntruncate_prompt_tokens: 64\n"
        "defaults: {model: llama2-13b, memory: 15728, batch_size: 256, block_size: 16, traffic: chat, rate: 60}\n"
        "sweep:\n  - {}\n  - {samples: 2}\n  - {beams: 2}\n"
    )
    out, done = run(tmp_path, text)
    assert done.exit_code == 0, done.output
    found = {(row["implementation"], row["samples"], row["beams"]): row for row in lines(out)}
    assert len(found) == 9
    assert all(12 <= seed["prompt_tokens"] <= 12 * 64 for row in found.values() for seed in row["replays"])
    assert "this machine copies pieces of swapped blocks of 160 KiB at" in found["paged_swap", None, None]["step_time"]
    assert "copies" not in found["paged", None, None]["step_time"]
    for answers in ((2, None), (None, 2)):
        row = found["paged_swap", *answers]
        assert row["status"] == "unsupported"
        assert row["reason"].startswith("swapping is known only for requests with one answer;")
        assert all(seed["prompt_share"] > 0 for seed in found["paged", *answers]["replays"])
    judged = claims(out)
    assert (judged["PA-parallel"]["verdict"], judged["PA-waste"]["verdict"]) == ("replayed", "not measured")
    shown = render(build(open_run(out)), "table")
    assert "requests have several answers of one length to one prompt" in shown
    assert "Replayed latency" in shown


def test_answers_of_a_shared_prompt_do_not_say_how_many_sequences_fit(tmp_path: Path) -> None:
    text = (
        "implementations: [paged, prefix_tree]\nbaseline: paged\n"
        "defaults: {n_p: 64, n_s: n_p, n_c: 8, rate: 60, memory: 4096}\n"
        "sweep:\n  - {samples: 2}\n  - {beams: 2}\n  - {memory: 64}\n"
    )
    out, done = run(tmp_path, text)
    assert done.exit_code == 0, done.output
    assert claims(out)["S3-sharing"]["verdict"] == "not measured"
    (small,) = (row for row in lines(out) if (row["implementation"], row["memory"]) == ("paged", 64))
    assert (small["status"], small["replays"][0]["refused"]) == ("unsupported", 12)
    assert "72 tokens need 3 blocks" in small["reason"]


def test_a_trace_file_and_a_damaged_one(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}
    requests = [json.dumps({**line, "timestamp": 1000 * n}) for n in range(6)]
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text("\n".join(requests))
    bad.write_text("\n".join([*requests, "{}"]))
    text = (
        "implementations: [radix_tree, belady]\nbaseline: radix_tree\ncase_limit: 60s\n"
        f"sweep:\n  - {{traffic: [{good}, {bad}], chunk_size: 512, block_size: 512, batch_size: 1}}\n"
    )
    out, done = run(tmp_path, text)
    assert done.exit_code == 3, done.output
    found = {row["traffic"]: row for row in lines(out)}
    assert found[str(good)]["status"] == "ok"
    assert found[str(good)]["replays"][0]["cached_tokens"] == 5 * 512
    assert found[str(bad)]["status"] == "error"
    assert "bad.jsonl:7: has no 'input_length'" in found[str(bad)]["reason"]
    text = render(build(open_run(out)), "table")
    (shares,) = [line.split() for line in text.splitlines() if "cached, of the optimum  " in line]
    assert shares[-2:] == ["100%", "100%"]
    good.unlink()
    refused = chunkbench("validate", str(tmp_path / "mine.yaml"))
    assert f"traffic: there is no file '{good}' here" in refused.output


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ({}, "batch_size 1, not 32"),
        ({"batch_size": 1, "schedule": "shortest"}, "schedule fcfs, not shortest"),
        ({"batch_size": 1, "samples": 2}, "leave out samples and beams"),
        ({"batch_size": 1, "schedule": "fcfs"}, ""),
    ],
)
def test_an_optimum_is_only_known_one_request_at_a_time(axes: dict[str, Any], reason: str) -> None:
    given = {"traffic": "alpaca", "rate": 60, "memory": 96, "device": "cpu", "dtype": "float16", **axes}
    point = ReplayPoint(**ReplayPoint.completed(given) | given)
    answered = compute(ReplayJob("belady", point, "0", 0, 9, None, 512, None, Constant(0.02)))
    assert reason in answered.reason
    if reason:
        assert answered.replay is None
    else:  # what never fits is refused, and the optimum does not count on it
        assert answered.replay is not None
        assert 0 < answered.replay.refused < 9


def test_a_replay_that_takes_too_long_is_a_timeout(tmp_path: Path) -> None:
    text = "implementations: [prefix_tree]\ncase_limit: 1s\nsweep:\n  - {n_p: 64, n_s: 0, n_c: 100000, rate: 60}\n"
    out, done = run(tmp_path, text)
    assert done.exit_code == 3, done.output
    (line,) = lines(out)
    assert line["status"] == "timeout"
    assert "longer than 1 s" in line["reason"]


def test_step_times_from_a_recorded_run(tmp_path: Path) -> None:
    recorded = Path(__file__).parents[3] / "results/recorded/xeon-amx-2-cores/table4-caching"
    text = f"implementations: [prefix_tree]\nstep_time: {recorded}\nsweep:\n  - {{n_p: 64, n_s: 0, n_c: 8, rate: 60}}\n"
    out, done = run(tmp_path, text)
    assert done.exit_code == 0, done.output
    (line,) = lines(out)
    assert line["step_time"].startswith("fitted to 1372 measured steps")


TEXT = """\
kind: replay
requests: 2
arrival_seeds: 2
implementations: [paged, prefix_tree]
sweep: [{n_p: 64, n_s: 64, n_c: 2, rate: 60}]
"""


class Pool:
    """Stands for the pool of processes and computes in this one. The first pool is broken: a process was lost while it
    computed, or before (`at_once`). So is every later one that gets a replay of the manager `deadly`."""

    def __init__(self, broken: bool, at_once: bool, deadly: str) -> None:
        self._broken, self._at_once, self._deadly = broken, at_once, deadly
        self._processes: dict[int, object] = {}

    def submit(self, compute: Callable[[ReplayJob], Answered], job: ReplayJob) -> Future[Answered]:
        if self._broken and self._at_once:
            raise BrokenProcessPool
        future: Future[Answered] = Future()
        if self._broken or job.manager == self._deadly:
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(compute(job))
        return future

    def shutdown(self, wait: bool, cancel_futures: bool) -> None:
        """Nothing."""


@pytest.mark.parametrize("deadly", ["paged", ""])
def test_replays_whose_process_is_lost_are_found_and_the_others_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadly: str
) -> None:
    (tmp_path / "x.yaml").write_text(TEXT)
    experiment = cast(ReplayExperiment, load_experiment(tmp_path / "x.yaml"))
    target = resolve_target(experiment)
    (point,) = experiment.points(target.device, target.dtype)
    made: list[Pool] = []

    def make(*_: object) -> Pool:
        assert len(made) < 9, "the same replays are tried again and again"
        made.append(Pool(not made, not deadly, deadly))
        return made[-1]

    monkeypatch.setattr(measure, "ProcessPoolExecutor", make)
    measurer = measure.ReplayMeasurer(experiment, target)
    results = measurer.measure([point], {point: experiment.cases(point)}, Budget(1.0), lambda _: None)[point]
    found = {row.implementation: row for row in results}
    lost = ("crashed", "the process of the replay died") if deadly else ("ok", "")
    assert (found["paged"].status, found["paged"].reason) == lost
    assert found["prefix_tree"].status == "ok"
    assert len(found["prefix_tree"].us_per_token) == 2
