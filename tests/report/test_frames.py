"""`chunkbench.load` gives a run as a table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import chunkbench
from chunkbench.bench.store import RunWriter

ROOT = Path(__file__).parents[2]


def test_a_table_has_every_fact_and_figure(facts, tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", {"experiment": {"baseline": "chunk_attn"}})
    writer.append([facts(), facts("xformers", status="unavailable", samples_us=(), steps=())])
    writer.close()
    table = chunkbench.load(tmp_path / "run")
    assert list(table["implementation"]) == ["chunk_attn", "xformers"]
    assert {"samples_us", "kv_bytes", "peaks", "latency_us", "roofline_fraction", "ratio_to_baseline"} <= set(table)
    assert table["latency_us"][0] == 15.0
    assert table["paper_us"][0] == 198.87
    assert math.isnan(table["latency_us"][1])


def test_the_table_of_an_empty_run_has_all_columns(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "run", {}).close()
    assert {"key", "latency_us"} <= set(chunkbench.load(tmp_path / "run").columns)


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code cells, one after the other, in the top folder of the checkout."""
    import matplotlib as mpl

    monkeypatch.chdir(ROOT)
    mpl.use("agg")
    notebook = json.loads((ROOT / "examples" / "analyse-a-run.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert len(names["ratios"]) == 12
    assert set(names["slower"].index) == {(1024, 0), (4096, 0)}
    assert names["figure"].get_ylabel() == "times as long as ChunkAttn"


def test_the_public_names_can_be_completed() -> None:
    assert {"ChunkAttention", "LayeredChunkAttention", "load"} <= set(dir(chunkbench))
