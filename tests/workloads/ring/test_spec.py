"""Experiments of `kind: ring`: what they may say, and what is refused, with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chunkbench.bench import workload
from chunkbench.bench.experiment import ExperimentError, load_experiment
from chunkbench.workloads.ring.methods import CHOICES
from chunkbench.workloads.ring.result import RingPoint
from chunkbench.workloads.ring.spec import Accelerator, RingExperiment

HEAD = "kind: ring\nimplementations: [one_process, ring]\n"


def load(folder: Path, sweep: str, more: str = "") -> RingExperiment:
    file = folder / "x.yaml"
    file.write_text(f"{HEAD}{more}sweep:\n  - {sweep}\n")
    loaded = load_experiment(file)
    assert isinstance(loaded, RingExperiment)
    return loaded


def points(folder: Path, sweep: str, more: str = "") -> list[RingPoint]:
    return list(load(folder, sweep, more).points("cpu", "float32"))


@pytest.mark.parametrize(
    ("sweep", "key", "message"),
    [
        ("{n_p: 64, phase: prefil}", "prefil", "phase: 'prefil' is not known here; did you mean prefill?"),
        ("{n_p: 64, mask: causl}", "causl", "mask: 'causl' is not known here; did you mean causal?"),
        (
            "{n_p: {low: 4, high: 8}}",
            "{low",
            "n_p: a ring has contexts of one length; give a list for several",
        ),
        ("{n_p: [64, 62]}", "62", "n_p: 62 tokens do not divide into 2 equal parts for each of 2 ranks"),
        ("{n_p: 64, ranks: 3}", "64", "n_p: 64 tokens do not divide into 2 equal parts for each of 3 ranks"),
        (
            "{n_p: 64, n_s: 32}",
            "n_s",
            "n_s: is for phase: decode; a prefill is of one sequence, all of it split",
        ),
        (
            "{n_p: 64, batch_size: 2}",
            "2}",
            "batch_size: is 1 for phase: prefill, which is of one sequence; leave it out",
        ),
        (
            "{n_p: 64, phase: decode, mask: full}",
            "mask",
            "mask: is for phase: prefill; a decoded token attends to all before it",
        ),
        ("{n_p: 64, phase: decode, n_s: 65}", "65", "n_s: 65 is more than n_p = 64"),
        ("{n_p: 64, phase: decode, n_s: 33}", "33", "n_s: 33 shared tokens do not divide into 2 equal parts"),
        ("{n_p: 64, phase: decode, n_s: 0}", "0}", "n_s: 0 shared tokens do not divide into 2 equal parts"),
        (
            "{n_p: 64, phase: decode, n_s: 2, ranks: 4}",
            "2,",
            "n_s: 2 shared tokens do not divide into 4 equal parts",
        ),
        ("{n_p: 63, phase: decode}", "63", "n_p: 63 shared tokens do not divide into 2 equal parts"),
        ("{n_p: 64, heads: 8, kv_heads: 3}", "3}", "kv_heads: 8 heads do not divide into 3 K/V heads"),
        ("{n_p: 64, ranks: 0}", "0}", "ranks: 0 is outside 1 to 1024"),
        ("{n_p: 64, link: 0}", "0}", f"link: 0 is outside 1 to {1 << 50}"),
        ("{ranks: 2}", "{", "sweep: n_p is missing, here and under defaults"),
    ],
)
def test_conflicts_are_refused_at_their_place(tmp_path: Path, sweep: str, key: str, message: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        load(tmp_path, sweep)
    column = len("  - ") + sweep.index(key) + 1
    assert str(refused.value) == f"{tmp_path / 'x.yaml'}:4:{column}: {message}"


@pytest.mark.parametrize(
    ("more", "column", "message"),
    [
        ("rounds: 2\n", 9, "rounds: 2 should be greater than or equal to 3"),
        ("accelerators: [{name: X, tflops: 0, gb_per_s: 2}]\n", 34, "tflops: 0 should be greater than 0"),
        ("accelerators: [{name: X, tflops: 5}]\n", 16, "gb_per_s: is missing"),
        ("baseline: zigzag\n", 11, "baseline: zigzag is not among implementations"),
        ("defaults: {n_s: 32}\n", 12, "n_s: is for phase: decode"),
    ],
)
def test_other_keys_are_checked(tmp_path: Path, more: str, column: int, message: str) -> None:
    with pytest.raises(ExperimentError, match=f":3:{column}: {re.escape(message)}"):
        load(tmp_path, "{n_p: 64}", more)


def test_what_is_left_out(tmp_path: Path) -> None:
    prefill, decode = points(tmp_path, "{n_p: 64, phase: [prefill, decode]}")
    assert (prefill.ranks, prefill.mask, prefill.n_s, prefill.batch_size, prefill.link) == (2, "causal", None, 1, None)
    assert (prefill.heads, prefill.kv_heads, prefill.head_dim) == (32, 32, 128)
    assert (decode.mask, decode.n_s) == (None, 64)
    experiment = load(tmp_path, "{n_p: 64}")
    assert (experiment.baseline, experiment.ring_rounds) == ("one_process", 5)


def test_axes_multiply_and_shares_are_counted(tmp_path: Path) -> None:
    found = points(tmp_path, "{n_p: [64, 128], phase: decode, n_s: [n_p, 0.75 n_p], ranks: [2, 4], batch_size: 3}")
    assert {(point.n_p, point.n_s, point.ranks) for point in found} == {
        (n_p, n_s, ranks) for n_p in (64, 128) for n_s in (n_p, n_p * 3 // 4) for ranks in (2, 4)
    }


def test_devices_to_count_for(tmp_path: Path) -> None:
    text = "accelerators: [{name: X, tflops: 5, gb_per_s: 2}, {name: Z, tflops: 1e3, gb_per_s: 0.5}]\n"
    experiment = load(tmp_path, "{n_p: 64}", text)
    assert experiment.accelerators == (
        Accelerator(name="X", tflops=5, gb_per_s=2),
        Accelerator(name="Z", tflops=1000, gb_per_s=0.5),
    )


def test_the_bundled_experiment_has_a_scheme_for_every_point() -> None:
    experiment = load_experiment("ring")
    assert isinstance(experiment, RingExperiment)
    found = list(experiment.points("cpu", "float32"))
    assert {point.phase for point in found} == {"prefill", "decode"}
    assert any(point.link for point in found)
    for point in found:
        able = [name for name in experiment.implementations if not CHOICES[name].supports(point)]
        assert {"one_process", "ring"} < set(able)
    # Every scheme has a point, so none is named for nothing.
    for name in experiment.implementations:
        assert any(not CHOICES[name].supports(point) for point in found), name


@pytest.mark.parametrize(
    ("name", "axes", "reason"),
    [
        ("tree_decode", {}, "is for phase: decode"),
        ("striped", {"phase": "decode"}, "is for phase: prefill"),
        ("zigzag", {"mask": "full"}, "balances the work of a causal mask; there is none here"),
        ("torch_all_gather", {"mask": "full"}, "balances the work of a causal mask; there is none here"),
        ("all_gather", {"mask": "full"}, ""),
        ("torch_ring", {"link": 10**9}, "its transfers cannot be slowed down"),
        ("sdpa", {"link": 10**9}, ""),
        ("pytorch_ring", {"dtype": "bfloat16"}, "ring-attention-pytorch computes in float32"),
        ("pytorch_ring", {"n_p": 4096 + 64}, "needs a multiple of 1024 tokens for each rank"),
        ("pytorch_ring", {"n_p": 4096}, ""),
        (
            "pytorch_tree",
            {"phase": "decode", "n_s": 32},
            "has one context for all sequences, and as many K/V heads as query heads",
        ),
        (
            "pytorch_tree",
            {"phase": "decode", "kv_heads": 2},
            "has one context for all sequences, and as many K/V heads as query heads",
        ),
        ("pytorch_tree", {"phase": "decode"}, ""),
    ],
)
def test_what_a_scheme_cannot_do(name: str, axes: dict[str, object], reason: str) -> None:
    given = {"device": "cpu", "dtype": "float32", "n_p": 64, **axes}
    assert CHOICES[name].supports(RingPoint.model_validate(RingPoint.completed(given))) == reason


def test_schemes_have_labels_and_colours_of_their_own() -> None:
    registry = workload.get("ring").implementations()
    assert len({method.label for method in CHOICES.values()}) == len(CHOICES)
    looks = {(style.colour, style.marker, style.line) for style in map(registry.style, CHOICES)}
    assert len(looks) == len(CHOICES)
