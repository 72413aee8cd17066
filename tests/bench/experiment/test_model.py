"""The model: bundled experiments, cases and their keys, tolerance, expectations, schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from chunkbench.baselines.registry import LATENT_FORMS, ROWS
from chunkbench.bench import workload
from chunkbench.bench.experiment import AXES, bundled_experiments, json_schema, load_experiment
from chunkbench.bench.experiment.point import AttentionPoint, Case
from chunkbench.bench.experiment.sweep import read_filter, selects
from chunkbench.latent import LatentShape
from chunkbench.llama import shape_of
from chunkbench.report.printed import table3
from chunkbench.workloads.answers.result import AnswersPoint
from chunkbench.workloads.decode.spec import DecodeExperiment
from chunkbench.workloads.modules.result import ModulesPoint
from chunkbench.workloads.replay.result import ReplayPoint
from chunkbench.workloads.serving.result import ServingPoint
from tests.invented_runs import POINTS

ROOT = Path(__file__).parents[3]


def experiment(**fields: Any) -> DecodeExperiment:
    return DecodeExperiment.model_validate(
        {"name": "x", "implementations": ["naive", "chunk_attn"], "sweep": [{"n_p": 64, "n_s": 0}], **fields}
    )


@pytest.mark.parametrize(("name", "kv_heads", "paper"), [("table3", 32, "table3"), ("table3-llama3", 8, None)])
def test_table3(name: str, kv_heads: int, paper: str | None) -> None:
    loaded = load_experiment(name)
    points = loaded.points("cpu", "bfloat16")
    assert [(point.n_p, point.n_s) for point in points] == POINTS
    for point in points:
        assert (point.n_c, point.batch_size, point.heads, point.head_dim, point.chunk_size) == (64, 32, 32, 128, 64)
        assert point.kv_heads == kv_heads
    assert loaded.paper == paper
    assert loaded.budget_s == 300
    assert {column for _, _, column in table3()} < {*loaded.implementations}


def test_smoke_covers_every_implementation_and_every_kind_of_shape() -> None:
    loaded = load_experiment("smoke")
    points = loaded.points("cpu", "float32")
    # Some need a GPU; the authors' kernel is not part of set-up.
    elsewhere = {
        id_ for name in ("gpu-kernels", "table3-gpu", "authors") for id_ in load_experiment(name).implementations
    }
    # Rows of latent attention have points of their own.
    assert set(loaded.implementations) | elsewhere | set(LATENT_FORMS) == {row.id for row in ROWS}
    assert any(point.tree for point in points)
    assert any(point.prompts > 1 for point in points)
    assert any(isinstance(point.n_p, tuple) for point in points)
    assert any(point.kv_heads < point.heads for point in points)
    assert loaded.budget_s == 20
    # K and V of all sequences, nothing shared, are small enough for a run of seconds.
    for point in points:
        longest = point.n_p if isinstance(point.n_p, int) else point.n_p[1]
        assert point.batch_size * (longest + point.n_c) * point.token_bytes < 4 << 20


@pytest.mark.parametrize("name", bundled_experiments())
def test_a_dumped_experiment_loads_unchanged(name: str) -> None:
    loaded = load_experiment(name)
    again = type(loaded).model_validate(json.loads(loaded.model_dump_json()))
    assert again == loaded.model_copy(update={"source": "", "path": "", "order": None})


def test_the_fields_of_points_are_axes_and_the_device_and_each_axis_has_a_kind() -> None:
    kinds = {kind.point for kind in workload.all_kinds()}
    assert {AttentionPoint, ModulesPoint, ServingPoint, ReplayPoint} <= kinds
    for kind in kinds:
        assert set(kind.model_fields) == {*kind.axes(), "device"}
    assert {axis for kind in kinds for axis in kind.axes()} == set(AXES)


POINT = AttentionPoint(
    n_p=1024, n_s=512, n_c=64, batch_size=32, heads=32, kv_heads=8, head_dim=128, chunk_size=64, block_size=32,
    dtype="bfloat16", device="cpu",
)  # fmt: skip


def test_key_depends_on_every_axis_and_on_nothing_else() -> None:
    base = experiment()
    (point,) = base.points("cpu", "float32")
    keys = [case.key for case in base.cases(point)]
    assert len(set(keys)) == len(keys) == 2
    for other in (experiment(seed=7), experiment(budget_s=9.0), experiment(title="t"), experiment(precision=0.5)):
        assert [case.key for case in other.cases(point)] == keys
    changes: dict[str, Any] = {
        "n_p": 65, "n_s": 1, "n_c": 2, "batch_size": 3, "heads": 64, "kv_heads": 4, "head_dim": 64, "chunk_size": 5,
        "block_size": 6, "dtype": "float16", "device": "cuda", "threads": 1, "prompts": 2, "tree": ((1, 2),),
        "retrieval": 50, "window": 9, "kv_share": 35, "compensation": "mean", "kv_dtype": "int8",
        "latent": LatentShape(kv_rank=32, rope=16, nope=16, v=16), "projections": "timed",
        "query_rows": 2, "draft": "1 1",
    }  # fmt: skip
    assert changes.keys() == AttentionPoint.model_fields.keys()
    changed = {Case(point.model_copy(update={k: v}), "naive").key for k, v in changes.items()}
    assert len(changed | {keys[0]}) == len(changes) + 1


@pytest.mark.parametrize("kind", [ModulesPoint, ServingPoint, ReplayPoint, AnswersPoint])
def test_keys_of_other_kinds_depend_on_every_axis(kind: Any) -> None:
    changes = {
        "model": shape_of("llama3-8b"), "n_p": 65, "n_s": 1, "n_c": 2, "batch_size": 3, "prompts": 2,
        "tree": ((1, 2),), "chunk_size": 5, "block_size": 6, "dtype": "bfloat16", "device": "cuda", "threads": 1,
        "load": 50, "rate": 60, "clients": 2, "forced": 50, "traffic": "chat", "memory": 9000, "schedule": "prefix",
        "samples": 2, "beams": 2, "window": 9, "kv_dtype": "int8",
    }  # fmt: skip
    base = kind(model=shape_of("llama2-7b"), n_p=64, dtype="float32", device="cpu")
    points = [base, *(base.model_copy(update={name: changes[name]}) for name in kind.model_fields)]
    assert len({Case(point, "naive").key for point in points}) == len(points)


def test_cases_follow_protocol_cache_and_mode() -> None:
    both = experiment(protocols=["strict", "paper"], modes=["eager", "graph"])
    (cpu,) = both.points("cpu", "float32")
    assert [(case.protocol, case.cache, case.mode, case.implementation) for case in both.cases(cpu)] == [
        ("strict", "cold", "eager", "naive"),
        ("strict", "cold", "eager", "chunk_attn"),
        ("paper", "warm", "eager", "naive"),
        ("paper", "warm", "eager", "chunk_attn"),
    ]
    (cuda,) = both.points("cuda", "float16")
    assert len(both.cases(cuda)) == 8
    stated = experiment(protocols="strict", caches=["cold", "warm"])
    assert [case.cache for case in stated.cases(cpu)] == ["cold", "cold", "warm", "warm"]


def test_expectation_selects_points() -> None:
    expect = [{"metric": "roofline_fraction", "bar": 0.5, "where": {"n_s": ["n_p", "1/4 n_p"], "n_p": [64, 128]}}]
    loaded = experiment(sweep=[{"n_p": [64, 128, 256], "n_s": [0, 32, "n_p"]}], expect=expect)
    accepted, _ = read_filter(loaded.expect[0].where, ())
    selected = [(p.n_p, p.n_s) for p in loaded.points("cpu", "float32") if selects(accepted, dict(p))]
    assert selected == [(64, 64), (128, 32), (128, 128)]
    assert loaded.expect[0].implementation == "chunk_attn"


def test_an_expectation_that_matches_no_point_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "implementations: chunk_attn\nsweep: [{n_p: 64, n_s: 0}]\n"
        "expect:\n  - {metric: plan_us, bar: 9, where: {n_p: 65}}\n"
    )
    with pytest.raises(ValueError, match=r"x\.yaml:4:38: where: matches no point of the sweep"):
        load_experiment(file)
    assert load_experiment(file, {"n_p": "32"}).expect  # an override may leave expectations without points


def test_schema_accepts_bundled_experiments_and_refuses_mistakes() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    assert schema["$defs"]["axes"]["properties"].keys() == AXES.keys()
    assert {"budget", "case_limit"} < schema["properties"].keys()
    assert not {"budget_s", "source", "path"} & schema["properties"].keys()
    valid = Draft202012Validator(schema).is_valid
    good = {"implementations": "naive", "sweep": [{"n_p": 64, "n_s": "0.5 n_p"}]}
    assert all(valid(yaml.safe_load(file.read_text())) for file in bundled_experiments().values())
    assert valid(good)
    assert valid({"sweep": [{"n_p": 1, "model": "llama2-7b"}], "kind": "modules"})
    for mistake in (
        {"titel": "x"},
        {"sweep": [{"n_p": 64, "ns": 0}]},
        {"sweep": [{"n_p": 64, "n_s": "half"}]},
        {"sweep": [{"n_p": {"low": 64}, "n_s": 0}]},
        {"sweep": [{"n_p": 64, "tree": [[8]]}]},
        {"sweep": []},
        {"budget": 300},
        {"tolerance": {"fp16": 0.1}},
    ):
        assert not valid({**good, **mistake}), mistake
    assert not valid({"sweep": good["sweep"]})


def test_loading_needs_neither_torch_nor_any_adapter() -> None:
    code = (
        "import sys; from chunkbench import workloads; workloads.register(); "
        "from chunkbench.bench.experiment import load_experiment; load_experiment('table3'); "
        "print(*sorted(m for m in sys.modules if m == 'torch' or m.startswith('chunkbench.baselines.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["chunkbench.baselines.registry"]


@pytest.mark.parametrize(
    ("filter_", "points"),
    [
        ({"latent": "deepseek-v3"}, 3),
        ({"latent": {"kv_rank": 512, "rope": 64, "nope": 128, "v": 128}}, 24),
        ({"latent": "deepseek-v2-lite", "projections": "apart"}, 18),
        ({"projections": "timed"}, 2),
    ],
)
def test_filters_of_latent_attention(filter_: dict[str, Any], points: int) -> None:
    accepted, findings = read_filter(filter_, ())
    assert not findings
    found = load_experiment("mla").points("cpu", "bfloat16")
    assert (
        sum(selects(accepted, {name: getattr(point, name) for name in AXES if hasattr(point, name)}) for point in found)
        == points
    )


def test_apart_is_the_default_of_projections() -> None:
    (one,), (other,) = (
        experiment(sweep=[{"latent": "kimi-k2", "n_p": 64, "n_s": 0, **more}]).points("cpu", "float32")
        for more in ({}, {"projections": "apart"})
    )
    assert one == other
    assert (one.heads, one.kv_heads, one.head_dim) == (64, 1, 576)
