"""A run of `kind: serving` with real servers of a tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli
from chunkbench.run_error import CannotRunError, RunError
from chunkbench.workloads import register
from chunkbench.workloads.serving import plan
from chunkbench.workloads.serving.plan import draw_id
from chunkbench.workloads.serving.result import ServingResult
from tests.conftest import MISSING

if MISSING:
    pytest.skip(f"{', '.join(MISSING)} is not installed", allow_module_level=True)

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
sweep:
  - {n_s: [0, n_p], load: [50, 150]}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The experiment's file and its run."""
    folder = tmp_path_factory.mktemp("serving")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = folder / "config.json"
    config.write_text(json.dumps({**sizes, "num_key_value_heads": 2, "head_dim": 16, "model_type": "llama"}))
    file = folder / "tiny.yaml"
    file.write_text(EXPERIMENT % config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHUNKBENCH_VLLM_PYTHON", str(folder / "no-python"))
        result = CliRunner().invoke(cli, ["run", str(file), "--out", str(folder / "run")])
        assert result.exit_code == 0, result.output
        yield file, folder / "run"


def facts(path: Path) -> dict[tuple[str, int | None, int | None], ServingResult]:
    register()
    cases = [case for case in open_run(path).cases if isinstance(case, ServingResult)]
    return {(case.implementation, case.n_s, case.load): case for case in cases}


def test_every_system_has_a_row_at_every_point(run: tuple[Path, Path]) -> None:
    assert not (run[1] / "servers").exists()
    rows = facts(run[1])
    assert set(rows) == {(system, n_s, load) for system in SYSTEMS for n_s in (0, 200) for load in (50, 150)}
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
            assert measurement.server is not None
            assert measurement.server.steps
            assert measurement.server.peak_batch
            assert measurement.server.peak_kv_bytes
            steps = measurement.server.every_step
            assert len(steps) == measurement.server.steps
            assert max(batch for _, batch, _, _ in steps) == measurement.server.peak_batch
            assert sum(tokens for _, _, tokens, _ in steps) == measurement.server.computed_tokens
            assert fmean(took for *_, took in steps) == pytest.approx(measurement.server.step_s, abs=1e-4)
            cached = sum(request.cached_tokens or 0 for request in measurement.requests)
            if n_s == 0 or system == "chunk_llama_no_sharing":
                assert cached == 0


def test_systems_get_the_same_requests_at_the_same_times(run: tuple[Path, Path]) -> None:
    rows = facts(run[1])
    for n_s in (0, 200):
        for load in (50, 150):
            ours, other = rows["chunk_llama", n_s, load], rows["chunk_llama_no_sharing", n_s, load]
            dues = [[[r.due for r in m.requests] for m in row.measurements] for row in (ours, other)]
            assert dues[0] == dues[1]
            assert dues[0][0] != dues[0][1]
            assert ours.requests_per_s == other.requests_per_s


def test_load_is_a_share_of_the_reference_that_runs(run: tuple[Path, Path]) -> None:
    """The reference, vllm, is not here: the first system that runs takes its place, and the facts say so."""
    rows = facts(run[1])
    half, over = rows["chunk_llama", 0, 50], rows["chunk_llama", 0, 150]
    assert half.reference == "chunk_llama_no_sharing"
    assert half.capacity_per_s == over.capacity_per_s
    assert half.requests_per_s == pytest.approx(0.5 * (half.capacity_per_s or 0))


def test_the_report_shows_it(run: tuple[Path, Path], tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["report", str(run[1]), "--detail"]).output
    for text in ("Latency under load", "What the servers did", "peak K/V, MB", "vLLM: n/a (unavailable)", "Chunk"):
        assert text in printed
    assert "load is a share of the capacity of chunk_llama_no_sharing" in " ".join(printed.split())
    svg = tmp_path / "figure.svg"
    written = CliRunner().invoke(cli, ["report", str(run[1]), "--out", str(svg)])
    assert written.exit_code == 0, written.output
    assert "requests per second" in svg.read_text()


def test_a_finished_run_is_not_measured_again(run: tuple[Path, Path]) -> None:
    before = (run[1] / "cases.jsonl").read_bytes()
    result = CliRunner().invoke(cli, ["run", str(run[0]), "--out", str(run[1]), "--resume"])
    assert result.exit_code == 0, result.output
    assert (run[1] / "cases.jsonl").read_bytes() == before


def test_dry_run(run: tuple[Path, Path]) -> None:
    result = CliRunner().invoke(cli, ["run", str(run[0]), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "4 points, 2 arrival seeds of 6 to 9 requests for each system" in result.output
    assert "unavailable: CHUNKBENCH_VLLM_PYTHON names no file" in result.output


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
    left_out = "left out: model=llama n_p=200 n_s=200 b=4 load=150: chunk_llama, chunk_llama_radix"
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
    file.write_text(
        text.replace("n_s: [0, n_p], load: [50, 150]", "n_s: 0, load: 50").replace("requests: 6", "requests: 2")
    )
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


def test_servers_that_do_not_fit_even_alone_are_refused(
    run: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "available_memory", lambda: 900_000_000)
    refused = CliRunner().invoke(cli, ["run", str(run[0]), "--out", str(tmp_path / "refused")])
    assert isinstance(refused.exception, CannotRunError)
    assert "no system of this experiment fits into memory: chunk_llama_no_sharing: needs 1.0 GB" in str(
        refused.exception
    )
    assert "are missing" in str(refused.exception)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("load: [50, 150]}", "load (percent of the reference's capacity) or rate (requests per minute) is missing"),
        ("load: 50, rate: 3}", "cannot be used together with rate"),
        ("load: 50, heads: 3}", "follows from model; leave it out"),
        ("load: 50}\ntexts: no.jsonl", "bundled sets are conversations, questions"),
        ("load: 50}\nprotocols: paper", "protocols: is only for `kind: decode`"),
    ],
)
def test_wrong_files_say_what_is_wrong(tmp_path: Path, change: str, message: str) -> None:
    text = EXPERIMENT % "small-llama"
    old = "load: [50, 150]}"
    file = tmp_path / "wrong.yaml"
    file.write_text(text.replace(f", {old}", "}") if change == old else text.replace(old, change))
    result = CliRunner().invoke(cli, ["validate", str(file)])
    assert result.exit_code == 2
    assert message in result.output


def test_texts_need_a_tokenizer(run: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(run[0].read_text() + "texts: questions\n")
    result = CliRunner().invoke(cli, ["run", str(tmp_path / "t.yaml"), "--dry-run"])
    assert "has no tokenizer for questions; give a checkpoint's folder" in str(result.exception)
    assert isinstance(result.exception, RunError)


def test_a_tree_of_prompts_does_not_set_the_batch(run: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    sweep = "tree: [[64, [[64, 1], [64, 1]]], [100, 1]], load: 50}"
    file.write_text(run[0].read_text().replace("n_s: [0, n_p], load: [50, 150]}", sweep))
    result = CliRunner().invoke(cli, ["run", str(file), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "n_p=200 tree=64x(64x1 64x1) 100x1 b=4 load=50" in result.output


def test_the_text_that_requests_are_drawn_from_stays(run: tuple[Path, Path], tmp_path: Path) -> None:
    """Other text would draw other requests when a recorded run is resumed."""
    file = tmp_path / "tree.yaml"
    sweep = "tree: [[64, [[64, 1], [64, 1]]], [100, 1]], load: 50}"
    file.write_text(run[0].read_text().replace("n_s: [0, n_p], load: [50, 150]}", sweep))
    (point,) = load_experiment(file).points("cpu", "float32")
    axes = "n_p=200 n_s=- n_c=4 batch_size=4 prompts=1"
    assert f"{axes} tree=64x(64x1 64x1) 100x1 load=50%" in draw_id(point)
