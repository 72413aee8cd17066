"""Experiments on modules and on memory, and points that share a pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.bench import workload
from chunkbench.bench.experiment import AttentionPoint
from chunkbench.bench.store import Run, open_run
from chunkbench.cli.main import cli
from chunkbench.report import build
from chunkbench.workloads.modules.layer_costs import MODULES

CONFIG = {
    "model_type": "tiny",
    "hidden_size": 160,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "head_dim": 32,
}


def measured(text: str, folder: Path, *more: str) -> Run:
    (folder / "experiment.yaml").write_text(text)
    out = folder / "run"
    words = ["run", str(folder / "experiment.yaml"), "-q", "--out", str(out), *more]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return open_run(out)


def test_an_implementation_without_sharing_reads_the_prefix_for_every_sequence() -> None:
    point = AttentionPoint(n_p=100, n_s=100, batch_size=4, heads=2, kv_heads=2, dtype="float32", device="cpu")
    once, repeated = (workload.get("decode").amounts(point, 0, "", shared, (1,)) for shared in (True, False))
    assert repeated.read_bytes[0] - once.read_bytes[0] == 300 * point.token_bytes
    assert once.read_bytes == once.unique_bytes == repeated.unique_bytes


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_modules_of_any_shape_are_checked_and_timed(dtype: str, tmp_path: Path) -> None:
    """The shapes: hidden size larger than heads * head_dim, grouped heads, one and several sequences."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    run = measured(
        f"kind: modules\ndtype: {dtype}\nbudget: 1s\nmax_rounds: 3\n"
        f"defaults: {{model: {tmp_path / 'config.json'}, n_p: 40, n_c: 2}}\nsweep:\n  - batch_size: [1, 3]\n",
        tmp_path,
    )
    assert [(case.implementation, case.batch_size) for case in run.cases] == [(m, b) for b in (1, 3) for m in MODULES]
    for case in run.cases:
        assert case.model is not None
        assert case.status in ("ok", "noisy"), case.reason
        assert case.max_error is not None
        assert len(case.samples_us) >= 3
        cost = MODULES[case.implementation](case.model, case.batch_size, 40, 4 if dtype == "float32" else 2)
        assert case.flops == (cost.flops,) * 2
        assert case.unique_bytes == (cost.bytes,) * 2
    text = "\n".join(table.title for table in build(run).tables)
    assert "What the shapes say" in text


def test_a_wrong_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chunkbench.bench.experiment import load_experiment
    from chunkbench.bench.workers.worker import Worker
    from chunkbench.workloads.modules import implementations

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "experiment.yaml").write_text(
        f"kind: modules\nsweep:\n  - {{model: {tmp_path / 'config.json'}, n_p: 40, batch_size: 2}}\n"
    )
    (point,) = load_experiment(tmp_path / "experiment.yaml").points("cpu", "float32")
    monkeypatch.setattr(implementations.torch.nn.functional, "silu", lambda x, inplace: x)
    worker = Worker(workload.get("modules"))
    worker.open(point.as_json(), seed=0, probe_bytes=0)
    for module, right in (("qkv_projection", True), ("self_attention", True), ("mlp", False)):
        worker.prepare(module, needs=0)
        monkeypatch.undo()
        expected = worker._check(module, 1, 7, False)
        monkeypatch.setattr(implementations.torch.nn.functional, "silu", lambda x, inplace: x)
        out = worker._out(module)
        worker._sessions[module].append(*worker._opened().completion(1))
        worker._sessions[module].decode(expected.q, out)
        assert (expected.max_error(out) < 1e-5) is right


def test_memory_is_counted_and_checked_but_not_timed(tmp_path: Path) -> None:
    run = measured(
        "kind: memory\ndtype: float32\nimplementations: [naive, paged_attn, paged_attn_star, chunk_attn]\n"
        "defaults: {n_c: 3, heads: 2, head_dim: 32, chunk_size: 16, block_size: 16}\n"
        "sweep:\n  - {n_p: 64, n_s: [0, 64], batch_size: 4}\n",
        tmp_path,
    )
    token = 2 * 2 * 32 * 4
    held = {(case.n_s, case.implementation): case.kv_bytes for case in run.cases}
    assert all(case.status == "ok" and not case.rounds for case in run.cases)
    assert held[0, "naive"] == 4 * 67 * token
    assert held[0, "chunk_attn"] == held[0, "paged_attn"] == held[64, "paged_attn"] == 4 * 80 * token
    assert held[64, "chunk_attn"] == held[64, "paged_attn_star"] == (64 + 4 * 16) * token
    report = build(run)
    assert "2.09x less" in report.headline
    assert "nowhere exceeds" in report.headline
    assert dict(report.footer)["timing"].startswith("nothing was timed")


THREE_LENGTHS = """\
dtype: float32
implementations: [naive, chunk_attn]
budget: 1s
max_rounds: 3
defaults: {heads: 2, head_dim: 32, chunk_size: 16}
sweep:
  - {n_p: 32, n_s: 32, batch_size: 2, n_c: [2, 40, 12]}
"""


def test_a_pass_is_measured_again_as_a_whole(tmp_path: Path) -> None:
    before = measured(THREE_LENGTHS, tmp_path)
    path = before.path / "cases.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    assert json.loads(first)["n_c"] == 2, "the first case is not of the longest point, whose steps all points share"
    path.write_text("".join([json.dumps(json.loads(first) | {"status": "oom"}) + "\n", *rest]))
    after = measured(THREE_LENGTHS, tmp_path, "--resume", "--retry", "oom")
    assert {case.key for case in after.cases} == {case.key for case in before.cases}
    assert len(after.cases) == len(before.cases) == 6
    old = {case.key: case.samples_us for case in before.cases}
    assert all(case.samples_us != old[case.key] for case in after.cases)


def test_points_that_differ_in_n_c_share_a_pass(tmp_path: Path) -> None:
    run = measured(THREE_LENGTHS, tmp_path)
    by_length = {n_c: [case for case in run.cases if case.n_c == n_c] for n_c in (2, 12, 40)}
    assert [case.implementation for case in by_length[12]] == ["naive", "chunk_attn"]
    longest = by_length[40][1]
    for n_c in (2, 12):
        shorter = by_length[n_c][1]
        assert shorter.longest_n_c == 40
        assert shorter.kv_bytes is None
        assert shorter.steps[-1] == n_c
        assert set(shorter.steps) <= set(range(1, n_c + 1))
        places = [longest.steps.index(step) for step in shorter.steps if step in longest.steps]
        for samples, whole in zip(shorter.samples_us, longest.samples_us, strict=True):
            assert set(samples) >= {whole[place] for place in places}
        assert len(shorter.append_samples_us[0]) == n_c
    assert longest.longest_n_c is None
    assert longest.kv_bytes
    assert "pass to n_c = 40" in dict(build(run).footer)["timing"]


def test_memory_runs_can_be_compared_but_not_measured_beside_another_revision(tmp_path: Path) -> None:
    text = (
        "kind: memory\ndtype: float32\nimplementations: [naive, chunk_attn]\n"
        "defaults: {n_c: 1, heads: 2, head_dim: 32, chunk_size: 16}\nsweep:\n  - {n_p: 32, n_s: 32, batch_size: 2}\n"
    )
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        measured(text, tmp_path / name)
    spec = str(tmp_path / "one" / "experiment.yaml")
    refused = CliRunner().invoke(cli, ["regress", spec, "--base", "HEAD"])
    assert refused.exit_code == 2
    assert "`kind: memory` times nothing" in refused.output
    runs = [str(tmp_path / name / "run") for name in ("one", "two")]
    done = CliRunner().invoke(cli, ["compare", *runs, "--metric", "kv_bytes", "--format", "json"])
    assert done.exit_code == 0, done.output
    assert {case["verdict"] for case in json.loads(done.stdout)["cases"]} == {"same"}


def test_model_from_the_command_line_and_full_timing_of_every_step(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "experiment.yaml").write_text(
        "kind: modules\ndtype: float32\nsweep:\n  - {model: llama2-7b, n_p: 40, batch_size: 1, n_c: 12}\n"
    )
    words = ["run", str(tmp_path / "experiment.yaml"), "--model", str(tmp_path / "config.json"), "--full"]
    planned = CliRunner().invoke(cli, [*words, "--dry-run"])
    assert planned.exit_code == 0, planned.output
    assert "model=tiny" in planned.output
    done = CliRunner().invoke(cli, [*words, "-q", "--out", str(tmp_path / "run")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    run = open_run(tmp_path / "run")
    assert {len(case.steps) for case in run.cases} == {12}
    assert {len(case.samples_us) for case in run.cases} == {3}
    assert {str(case.model) for case in run.cases} == {"tiny"}
    both = CliRunner().invoke(cli, [*words, "--budget", "5m"])
    assert both.exit_code == 2
    assert "leave --budget out" in both.output
