"""The figures of the paper's Table 1 that follow from shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from chunkbench.analysis.layer_costs import MODULES, Cost
from chunkbench.paper.printed import paper_rows

FIGURES: Mapping[str, Callable[[Cost], float]] = {
    "flops": lambda cost: cost.flops / 1e6,
    "bytes": lambda cost: cost.bytes / 1e6,
    "arithmetic_intensity": lambda cost: cost.intensity,
}
"""Figures of a module that follow from the shapes, in the units of the paper's Table 1."""


class Printed(NamedTuple):
    """A figure as the paper prints it, with two decimals."""

    metric: str
    module: str
    batch_size: int
    text: str


def printed_figures() -> list[Printed]:
    """The figures of the paper's Table 1 that follow from the shapes: Llama2-7B, 2048 tokens, 16-bit numbers."""
    return [
        Printed(row["metric"], module, int(row["batch_size"]), row[module])
        for row in paper_rows("table1")
        if row["metric"] in FIGURES
        for module in MODULES
    ]
