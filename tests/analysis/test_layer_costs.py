"""FLOPs, bytes and intensity of Table 1, in every digit that the paper prints."""

from __future__ import annotations

import csv
from importlib.resources import files

import pytest

from chunkbench.analysis.layer_costs import MODULES
from chunkbench.experiment.llama import shape_of

TABLE = list(
    csv.DictReader(files("chunkbench.results").joinpath("paper", "table1.csv").read_text(encoding="utf-8").splitlines())
)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['batch_size']}-{row['metric']}")
def test_every_printed_digit(row: dict[str, str], module: str) -> None:
    cost = MODULES[module](shape_of("llama2-7b"), int(row["batch_size"]), 2048)
    figures = {"flops": cost.flops / 1e6, "bytes": cost.bytes / 1e6, "arithmetic_intensity": cost.intensity}
    if row["metric"] in figures:
        assert f"{figures[row['metric']]:.2f}" == row[module]


def test_grouped_heads_read_less_and_compute_the_same() -> None:
    llama2, llama3 = (MODULES["self_attention"](shape_of(name), 8, 4096) for name in ("llama2-7b", "llama3-8b"))
    assert llama2.flops == llama3.flops
    assert 3 < llama2.bytes / llama3.bytes < 4
