"""Reads the numbers that papers print, and finds the number of Table 3 that belongs to a measured case."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from chunkbench.bench.analysis.derive import Row, derive
from chunkbench.bench.experiment.point import AttentionPoint

if TYPE_CHECKING:
    from chunkbench.bench.store.results import Result


SETUP: Mapping[str, object] = {
    "n_c": 64,
    "batch_size": 32,
    "heads": 32,
    "kv_heads": 32,
    "head_dim": 128,
    "chunk_size": 64,
    "prompts": 1,
    "tree": None,
}
"""Axis values that all rows of Table 3 share (sections 4 and 4.1)."""

STANDS_FOR: Mapping[str, str] = {
    "vllm_paged_attn": "paged_attn",
    "vllm_paged_attn_star": "paged_attn_star",
}
"""Id of an implementation -> id of the paper's column with which it is compared, if the two ids differ."""

PaperTable = Mapping[tuple[int, int, str], float]
"""(n_p, n_s, implementation) -> microseconds per decode step."""


def paper_rows(table: str) -> list[dict[str, str]]:
    """Rows of one of the paper's tables, as bundled in `results/paper/`."""
    text = files("chunkbench.results").joinpath("paper", f"{table}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def table3() -> PaperTable:
    """Table 3 as bundled in `results/paper/table3.csv`; the file is read once."""
    return {
        (int(row["n_p"]), int(row["n_s"]), row["implementation"]): float(row["latency_us"])
        for row in paper_rows("table3")
    }


@cache
def table4() -> Mapping[tuple[int, int, str], Mapping[str, str]]:
    """(n_p, n_s, system) -> the row of Table 4."""
    return {(int(row["n_p"]), int(row["n_s"]), row["system"]): row for row in paper_rows("table4")}


class RingDevice(NamedTuple):
    """A row of RingAttention's Table 2: a device's rates, and the smallest block and sequence in thousands of
    tokens."""

    name: str
    tflops: float
    gb_per_s: float
    block: float
    sequence: float


def ring_devices() -> list[RingDevice]:
    """Table 2 of RingAttention (arXiv 2310.01889)."""
    return [RingDevice(row.pop("device"), *map(float, row.values())) for row in paper_rows("ring_table2")]


PAGED_ATTENTION_SETUP = ("llama2-13b", 15_728)
"""Model and K/V memory, in tokens, of the replays that represent OPT-13B with 12 GB. In this model, the tokens take 12
GB."""


@cache
def paged_attention() -> tuple[Mapping[str, str], ...]:
    """Numbers that the PagedAttention paper (SOSP 2023) prints, in its text and as labels of bars."""
    return tuple(paper_rows("paged_attention"))


@cache
def printed_of_trees(paper: str, **named: str) -> float:
    """The only figure of `results/paper/trees.csv` with these names, in the unit of its row.

    The file has numbers that papers print on kernels over prefix trees; none is read from a plot: FastTree (MLSys 2025)
    and PAT (ASPLOS 2026) by conversions of their text, DeFT (ICLR 2025) by its poster and repository.
    """
    wanted = {"set": paper, **named}
    (row,) = (row for row in paper_rows("trees") if all(row[name] == value for name, value in wanted.items()))
    return float(row["value"])


class StatedRate(NamedTuple):
    """A token rate that the paper's text states."""

    implementation: str
    n_p: int
    n_s: int
    n_c: int
    batch_size: int
    tokens_per_s: float


@cache
def stated_token_rates(figure: str) -> tuple[StatedRate, ...]:
    """The stated rates of `figure3` or `figure4`. The paper does not state n_p of Figure 4; 2048 is assumed."""
    return tuple(
        StatedRate(
            row["implementation"],
            int(row["n_p"]),
            int(row["n_s"]),
            int(row["n_c"]),
            int(row["batch_size"]),
            float(row["value"]),
        )
        for row in paper_rows("figure_points")
        if row["figure"] == figure and row["quantity"] == "token_rate"
    )


def paper_us(case: Result, implementation: str | None = None) -> float | None:
    """The paper's latency at the point of this case, in microseconds per decode step; None for any other setup.

    `implementation` selects another column at the same point. The data type is not compared: the paper uses float16,
    which a CPU may not have. The footer of every report says so.
    """
    if not isinstance(case, AttentionPoint) or not isinstance(case.n_p, int) or case.n_s is None:
        return None
    if any(getattr(case, name) != value for name, value in SETUP.items()):
        return None
    name = implementation or case.implementation
    return table3().get((case.n_p, case.n_s, STANDS_FOR.get(name, name)))


def paper_ratio(case: Result, baseline: str) -> float | None:
    """The paper's latency in the case's column divided by its latency in the baseline's column, at the same point."""
    own, base = paper_us(case), paper_us(case, baseline)
    return None if own is None or base is None else own / base


def rows(cases: Sequence[Result], baseline: str, confidence: float) -> list[Row]:
    """One row per case, in the order given: its derived figures, and the paper's latency and ratio."""
    return [_with_paper(row, baseline) for row in derive(cases, baseline, confidence)]


def _with_paper(row: Row, baseline: str) -> Row:
    printed, ratio = paper_us(row.facts), paper_ratio(row.facts, baseline)
    return replace(row, derived=replace(row.derived, paper_us=printed, paper_ratio=ratio))
