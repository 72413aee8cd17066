"""Every kind of work: headlines, rules, figures of memory and modules."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.tree import PrefixTree
from chunkbench.bench import workload
from chunkbench.bench.experiment import AttentionPoint, load_experiment
from chunkbench.bench.store import Run, open_run
from chunkbench.bench.workers.worker import Worker
from chunkbench.cli.main import cli
from chunkbench.report.build import build
from chunkbench.workloads.memory.result import saving
from chunkbench.workloads.modules.layer_costs import MODULES
from tests.conftest import SERVING

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


def test_all_kinds_are_there_without_the_libraries_of_servers() -> None:
    hidden = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1:])); from chunkbench import workloads"
    done = subprocess.run([sys.executable, "-c", f"{hidden}; workloads.register()", *SERVING], stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()[-300:]


def test_an_implementation_without_sharing_reads_the_prefix_for_every_sequence() -> None:
    point = AttentionPoint(n_p=100, n_s=100, batch_size=4, heads=2, kv_heads=2, dtype="float32", device="cpu")
    once, repeated = (workload.get("decode").amounts(point, 0, "", shared, (1,)) for shared in (True, False))
    assert repeated.read_bytes[0] - once.read_bytes[0] == 300 * point.token_bytes
    assert once.read_bytes == once.unique_bytes == repeated.unique_bytes


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_modules_of_any_shape_are_checked_and_timed(dtype: str, tmp_path: Path) -> None:
    """The shapes: hidden size larger than heads * head_dim, grouped heads, one and several sequences. The model is that
    of the command line, and every step is timed."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    text = f"kind: modules\ndtype: {dtype}\nsweep: [{{model: llama2-7b, n_p: 40, n_c: 12, batch_size: [1, 3]}}]\n"
    words = ["--model", str(tmp_path / "config.json"), "--full"]
    run = measured(text, tmp_path, *words)
    assert [(case.implementation, case.batch_size) for case in run.cases] == [(m, b) for b in (1, 3) for m in MODULES]
    for case in run.cases:
        assert case.model is not None
        assert str(case.model) == "tiny"
        assert case.status in ("ok", "noisy"), case.reason
        assert case.max_error is not None
        assert (len(case.steps), len(case.samples_us)) == (12, 3)
        cost = MODULES[case.implementation](case.model, case.batch_size, 40, 4 if dtype == "float32" else 2)
        assert case.flops == (cost.flops,) * 12
        assert case.unique_bytes == (cost.bytes,) * 12
    assert any("shapes" in table.title for table in build(run).tables)
    both = CliRunner().invoke(cli, ["run", str(tmp_path / "experiment.yaml"), *words, "--budget", "5m"])
    assert both.exit_code == 2
    assert "leave --budget out" in both.output


def test_a_wrong_module_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "experiment.yaml").write_text(
        f"kind: modules\nsweep:\n  - {{model: {tmp_path / 'config.json'}, n_p: 40, batch_size: 2}}\n"
    )
    (point,) = load_experiment(tmp_path / "experiment.yaml").points("cpu", "float32")
    worker = Worker(workload.get("modules"))
    worker.open(point.as_json(), seed=0, probe_bytes=0)
    for module, right in (("qkv_projection", True), ("self_attention", True), ("mlp", False)):
        worker.prepare(module, needs=0)
        expected = worker._check(module, 1, 7, False)
        out = worker._out(module)
        worker._sessions[module].append(*worker._opened().completion(1))
        with mock.patch.object(torch.nn.functional, "silu", lambda x, inplace: x):
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
    assert "nowhere exceed" in report.headline
    assert dict(report.footer)["timing"].startswith("nothing was timed")
    # Such runs can be compared, but not measured beside another revision.
    refused = CliRunner().invoke(cli, ["regress", str(tmp_path / "experiment.yaml"), "--base", "HEAD"])
    assert refused.exit_code == 2
    assert "`kind: memory` times nothing" in refused.output
    shutil.copytree(run.path, tmp_path / "again")
    words = ["compare", str(run.path), str(tmp_path / "again"), "--metric", "kv_bytes", "--format", "json"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert {case["verdict"] for case in json.loads(done.stdout)["cases"]} == {"same"}


THREE_LENGTHS = """\
dtype: float32
implementations: [naive, chunk_attn]
budget: 1s
max_rounds: 3
defaults: {heads: 2, head_dim: 32, chunk_size: 16}
sweep:
  - {n_p: 32, n_s: 32, batch_size: 2, n_c: [2, 40, 12]}
"""


@pytest.fixture(scope="module")
def three_lengths(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return measured(THREE_LENGTHS, tmp_path_factory.mktemp("lengths"))


def test_a_pass_is_measured_again_as_a_whole(three_lengths: Run, tmp_path: Path) -> None:
    before = three_lengths
    shutil.copytree(before.path, tmp_path / "run")
    path = tmp_path / "run" / "cases.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    assert json.loads(first)["n_c"] == 2, "the first case is not of the longest point, whose steps all points share"
    path.write_text("".join([json.dumps(json.loads(first) | {"status": "oom"}) + "\n", *rest]))
    after = measured(THREE_LENGTHS, tmp_path, "--resume", "--retry", "oom")
    assert {case.key for case in after.cases} == {case.key for case in before.cases}
    assert len(after.cases) == len(before.cases) == 6
    old = {case.key: case.samples_us for case in before.cases}
    assert all(case.samples_us != old[case.key] for case in after.cases)


def test_points_that_differ_in_n_c_share_a_pass(three_lengths: Run) -> None:
    run = three_lengths
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


def at(make_case, n_s: int, **us: list[float]):
    return [make_case(name, n_s=n_s, us=means) for name, means in us.items()]


OURS = {"chunk_attn": [100.0]}


@pytest.mark.parametrize(
    ("points", "headline", "verdict"),
    [
        (
            {
                0: OURS | {"naive": [91.0], "flash_attn": [900.0], "chunk_attn_no_tpp": [50.0]},
                512: OURS | {"naive": [400.0], "flash_attn": [190.0], "chunk_attn_torch": [10.0]},
            },
            "ChunkAttn is 0.91x to 1.90x as fast as the strongest other implementation at each of 2 points, "
            "geometric mean 1.31x. Variants of ChunkAttn are not counted as others: chunk_attn_torch is faster at 1 "
            "point, ChunkAttn, no TPP is faster at 1 point.",
            None,
        ),
        ({0: OURS | {"naive": [200.0]}, 512: {"naive": [100.0]}}, "at one point", ""),
        ({0: OURS}, "At no point was", ""),
    ],
)
def test_headlines_and_losses(make_case, make_run, points, headline: str, verdict: str | None) -> None:
    report = build(make_run([case for n_s, us in points.items() for case in at(make_case, n_s, **us)]))
    assert headline in report.headline
    assert verdict is None or report.verdict == verdict


@pytest.mark.parametrize("status", ["incorrect", "error", "timeout", "crashed"])
def test_a_fast_wrong_answer_is_not_the_strongest(make_case, make_run, status: str) -> None:
    cases = at(make_case, 0, chunk_attn=[100.0], naive=[200.0])
    cases.append(make_case("flash_attn", n_s=0, us=[1.0], status=status, reason="because"))
    report = build(make_run(cases))
    assert "2.00x as fast as the strongest other" in report.headline


def test_an_implementation_without_a_common_memory_group_is_not_compared(make_case, make_run) -> None:
    cases = [
        make_case("chunk_attn", n_s=0, us=[100.0, 200.0], groups=(0, 1)),
        make_case("naive", n_s=0, us=[300.0], groups=(1,)),
        make_case("flash_attn", n_s=0, us=[10.0], groups=(2,)),
    ]
    report = build(make_run(cases))
    assert "is 1.50x as fast as the strongest other implementation at the one point" in report.headline


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture has no state
@given(
    n_s=st.integers(0, 70),
    private=st.integers(0, 40),
    n_c=st.integers(1, 20),
    b=st.integers(1, 5),
    prompts=st.integers(1, 3),
    c=st.sampled_from([1, 4, 16]),
)
def test_empty_slots_of_a_real_tree_stay_within_the_bound(
    n_s: int, private: int, n_c: int, b: int, prompts: int, c: int, facts
) -> None:
    n_p, prompts = max(1, n_s + private), min(prompts, b)
    pool = ChunkPool()
    tree = PrefixTree(c, pool)
    token = iter(range(1, 1 << 20))
    shared = [[next(token) for _ in range(n_s)] for _ in range(prompts)]
    for k in range(b):
        tree.join([*shared[k % prompts], *(next(token) for _ in range(n_p - n_s))])
    for _ in range(n_c):
        tree.append([next(token) for _ in range(b)])
    axes = {"n_p": n_p, "n_s": n_s, "n_c": n_c, "batch_size": b, "prompts": prompts, "chunk_size": c}
    memory = saving(None, facts(**axes, kv_bytes=pool.in_use * c * facts().token_bytes))
    assert memory is not None
    assert memory.empty is not None
    assert -1e-9 <= memory.empty <= memory.bound + 1e-9
    assert memory.at_batch <= memory.limit * (1 + 1e-9)
