"""Points: axes, units, sweeps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.bench.experiment import Experiment, ExperimentError, load_experiment, parse_duration
from chunkbench.bench.experiment.values import Share, parse_percent

HEAD = "implementations: [naive, chunk_attn]\n"


def load(folder: Path, text: str, overrides: dict[str, str] | None = None) -> Experiment:
    file = folder / "x.yaml"
    file.write_text(HEAD + text)
    return load_experiment(file, overrides or {}, "--set")


def refusal(folder: Path, text: str, overrides: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ExperimentError) as caught:
        load(folder, text, overrides)
    return [line.replace(str(folder / "x.yaml"), "x.yaml") for line in str(caught.value).splitlines()]


def shapes(experiment: Experiment, *axes: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(point, axis) for axis in axes) for point in experiment.points("cpu", "float32")]


@pytest.mark.parametrize(
    ("text", "axes", "expected"),
    [
        (
            "sweep: [{n_p: [64, 128], n_s: [0, n_p]}, {n_s: 0, n_p: [128, 32]}]",
            "n_p n_s",
            [(64, 0), (64, 64), (128, 0), (128, 128), (32, 0)],
        ),
        (
            "defaults: {n_p: 64, n_s: 0, heads: [4, 8]}\nsweep: [{}, {heads: 16, kv_heads: 2}]",
            "heads kv_heads",
            [(4, 4), (8, 8), (16, 2)],
        ),
        (
            "sweep: [{n_p: [64, 128], n_s: [0, 0.5 n_p, 64]}]\n"
            "exclude: [{n_s: n_p}, {n_p: 128, n_s: [32, 64], kv_heads: 32}]",
            "n_p n_s",
            [(64, 0), (64, 32), (128, 0)],
        ),
        (
            "sweep: [{n_p: [64, 128], n_s: [0, 100]}]\nexclude: [{n_p: 64, n_s: 100}]",
            "n_p n_s",
            [(64, 0), (128, 0), (128, 100)],
        ),
        ("sweep: [{n_p: 1000, n_s: [0.3 n_p, 3/8 n_p, 0.001n_p, n_p]}]", "n_s", [(300,), (375,), (1,), (1000,)]),
    ],
    ids=["lists multiply", "defaults", "exclude", "excluded conflicts", "shares"],
)
def test_points_of_a_sweep(tmp_path: Path, text: str, axes: str, expected: list[tuple[int, ...]]) -> None:
    assert shapes(load(tmp_path, f"{text}\n"), *axes.split()) == expected


def test_a_filter_on_an_axis_of_another_kind_is_refused(tmp_path: Path) -> None:
    text = "sweep: [{n_p: 64, n_s: [0, 32]}]\nexclude: [{n_s: 0, load: 50}]\n"
    assert refusal(tmp_path, text) == ["x.yaml:3:20: load: is only for `kind: serving`; leave it out"]


def test_tree_sets_batch_size_and_displaces_default_n_s_and_prompts(tmp_path: Path) -> None:
    text = """
defaults: {n_p: 64, n_s: 32, prompts: 2}
sweep:
  - tree: [[16, [[8, 3], [0, 1]]], [64, 2]]
"""
    (point,) = load(tmp_path, text).points("cpu", "float32")
    assert (point.batch_size, point.n_s, point.prompts) == (6, None, 1)
    assert point.tree == ((16, ((8, 3), (0, 1))), (64, 2))
    # 16 + 8 + 4 private tails of 40, 40, 40 and 48, then 64 shared by two.
    assert point.unique_prompt_tokens(0) == 16 + 8 + 3 * 40 + 48 + 64


def test_range_draws_ragged_prompts(tmp_path: Path) -> None:
    (point,) = load(tmp_path, "sweep: [{n_p: {low: 10, high: 20}, n_s: 10, batch_size: 50}]").points("cpu", "float32")
    lengths = point.prompt_lengths(7)
    assert point.n_p == (10, 20)
    assert len(lengths) == 50
    assert min(lengths) >= 10
    assert max(lengths) <= 20
    assert len(set(lengths)) > 3
    assert lengths == point.prompt_lengths(7) != point.prompt_lengths(8)


def test_the_dtype_of_the_file_replaces_auto(tmp_path: Path) -> None:
    text = "sweep: [{n_p: 64, n_s: 0, dtype: [auto, float16]}, {n_p: 64, n_s: 0}]\n"
    auto = load(tmp_path, text)
    assert [point.dtype for point in auto.points("cuda", "bfloat16")] == ["bfloat16", "float16"]
    assert {point.device for point in auto.points("cuda", "bfloat16")} == {"cuda"}
    fixed = load(tmp_path, f"dtype: float32\ndevice: cpu\n{text}")
    targets = [(point.device, point.dtype) for point in fixed.points("cuda", "bfloat16")]
    assert targets == [("cpu", "bfloat16"), ("cpu", "float16"), ("cpu", "float32")]


def test_overrides_replace_an_axis_in_every_block(tmp_path: Path) -> None:
    text = "sweep: [{n_p: 64, n_s: [0, 64]}, {n_p: 128, n_s: 0, batch_size: 4}]\n"
    experiment = load(tmp_path, text, {"n_s": "0,1/2 n_p", "batch_size": " 8 "})
    assert shapes(experiment, "n_p", "n_s", "batch_size") == [(64, 0, 8), (64, 32, 8), (128, 0, 8), (128, 64, 8)]
    assert shapes(load(tmp_path, text, {"n_p": "{low: 64, high: 96}"}), "n_p")[0] == ((64, 96),)
    assert shapes(load(tmp_path, "sweep: [{n_p: 64, tree: [[8, 2]]}]", {"tree": "[[16, 3]]"}), "batch_size") == [(3,)]


LARGER = "n_s: {} is larger than n_p = {}: shared tokens are part of the prompt"
NOT_BOTH = "--set n_s=4: n_s: cannot be used together with tree, which replaces it; keep one"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"n_s": "0,2048"}, f"--set n_s=0,2048: {LARGER.format(2048, 64)}"),
        ({"n_p": "32"}, f"x.yaml:2:24: {LARGER.format(64, 32)}"),
        ({"ns": "1"}, "--set ns=1: ns: unknown axis; did you mean n_s?"),
        ({"n_s": "4", "tree": "[[8, 2]]"}, NOT_BOTH),
        ({"tree": "[[8, 2]]", "n_s": "4"}, NOT_BOTH),
        ({"n_s": ""}, "--set n_s=: n_s: an empty list leaves no points; give a value or leave the key out"),
        ({"n_s": "010"}, "--set n_s=010: 010 is read as octal by some YAML readers and as decimal by others; write 10"),
    ],
)
def test_bad_overrides_are_reported(tmp_path: Path, overrides: dict[str, str], message: str) -> None:
    assert message in refusal(tmp_path, "sweep: [{n_p: 64, n_s: 64}]\n", overrides)


@settings(max_examples=60)
@given(st.text(max_size=20), st.sampled_from(["n_p", "n_s", "tree", "dtype", "batch_size"]))
def test_any_override_loads_or_is_refused(text: str, axis: str) -> None:
    try:
        load_experiment("smoke", {axis: text}, "--set")
    except ExperimentError as error:
        assert str(error)  # noqa: PT017


AXIS_VALUES = st.fixed_dictionaries(
    {"n_p": st.lists(st.integers(16, 99), min_size=1, max_size=3, unique=True)},
    optional={
        "n_c": st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
        "batch_size": st.lists(st.integers(1, 9), min_size=1, max_size=2, unique=True),
        "kv_heads": st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=3, unique=True),
        "head_dim": st.sampled_from([16, 256]),
        "dtype": st.lists(st.sampled_from(["float32", "float16", "bfloat16"]), min_size=1, unique=True),
    },
)


@settings(max_examples=60)
@given(blocks=st.lists(AXIS_VALUES, min_size=1, max_size=3))
def test_number_of_points(tmp_path_factory: pytest.TempPathFactory, blocks: list[dict[str, Any]]) -> None:
    # n_s differs between blocks, so that no two blocks have a common point.
    numbered = [{**block, "n_s": index} for index, block in enumerate(blocks)]
    text = "sweep: " + json.dumps(numbered)
    experiment = load(tmp_path_factory.getbasetemp(), text)
    sizes = [[len(values) for values in block.values() if isinstance(values, list)] for block in blocks]
    expected = sum(map(math.prod, sizes))
    points = experiment.points("cpu", "float32")
    assert len(points) == len(set(points)) == expected
    for index, block in enumerate(blocks):
        block_points = [point for point in points if point.n_s == index]
        assert {point.n_p for point in block_points} == set(block["n_p"])
    again = type(experiment).model_validate(json.loads(experiment.model_dump_json()))
    assert again.points("cpu", "float32") == points


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (parse_duration, {"5m": 300, "90s": 90, "1h30m": 5400, "0.5s": 0.5, "250ms": 0.25, "2m1ms": 120.001}),
        (parse_percent, {"2%": 0.02, "0.5 %": 0.005}),
        (lambda text: Share.read(text).of_n_p, {"n_p": 1, "0.5 n_p": 0.5, "3/4 n_p": 0.75, "0.1n_p": 0.1}),
    ],
    ids=["durations", "percentages", "shares"],
)
def test_values_with_a_unit(read: Callable[[str], float], values: dict[str, float]) -> None:
    assert {text: float(read(text)) for text in values} == pytest.approx(values)


@pytest.mark.parametrize(
    ("read", "texts", "message"),
    [
        (parse_duration, ["300"], "write 300s for seconds or 300m for minutes"),
        (parse_duration, ["5min", "1e3s"], "unknown unit"),
        (parse_duration, ["5 m", "-5m", "", "m", "5M"], "is not a duration"),
        (parse_duration, ["30s1h"], "the largest first"),
        (parse_duration, ["1m1m"], "once"),
        (parse_duration, ["0s"], "longer than zero"),
        (parse_percent, ["two%"], "not a percentage"),
        (Share.read, ["", "half", "0.5", "-1 n_p", "1/0 n_p", "0.5/2 n_p", "n_p n_p", "n_s"], "not a number of tokens"),
        (Share.read, ["2 n_p"], "more than the whole prompt"),
    ],
)
def test_bad_values_with_a_unit(read: Callable[[str], object], texts: list[str], message: str) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=message):
            read(text)
