"""Points: their short description."""

from __future__ import annotations

from chunkbench.bench.experiment import load_experiment


def test_the_points_of_the_smoke_experiment_have_distinct_descriptions() -> None:
    points = load_experiment("smoke").points("cpu", "float32")
    descriptions = [point.brief for point in points]
    assert len(set(descriptions)) == len(points)
    assert "n_p=96 n_s=0 b=4" in descriptions
    assert "n_p=96 n_s=0 b=4 kv_heads=2" in descriptions
    assert "n_p=256 n_s=128 b=4 prompts=2" in descriptions
    assert "n_p=192 tree=64x(64x2 0x1) 0x1 b=4" in descriptions
