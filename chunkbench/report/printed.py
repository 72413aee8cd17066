"""Reads numbers that papers print, and finds the latency in Table 3 for a measured case."""

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
    "kv_dtype": "same",
}
"""Axes that have the same value in all rows of Table 3 (sections 4 and 4.1 of the paper)."""

STANDS_FOR: Mapping[str, str] = {
    "vllm_paged_attn": "paged_attn",
    "vllm_paged_attn_star": "paged_attn_star",
}
"""Id of an implementation -> id of the paper's column that it is compared with. For an implementation that is not
listed here, both ids are the same."""

PaperTable = Mapping[tuple[int, int, str], float]
"""(n_p, n_s, id of the implementation) -> microseconds for one decode step."""


def paper_rows(table: str) -> list[dict[str, str]]:
    """Read the rows of `results/paper/TABLE.csv`, which holds printed numbers."""
    text = files("chunkbench.results").joinpath("paper", f"{table}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def table3() -> PaperTable:
    return {
        (int(row["n_p"]), int(row["n_s"]), row["implementation"]): float(row["latency_us"])
        for row in paper_rows("table3")
    }


@cache
def table4() -> Mapping[tuple[int, int, str], Mapping[str, str]]:
    """(n_p, n_s, id of the system) -> row of Table 4."""
    return {(int(row["n_p"]), int(row["n_s"]), row["system"]): row for row in paper_rows("table4")}


class RingDevice(NamedTuple):
    """A row of Table 2 in the RingAttention paper: rates of a device, and its smallest block and sequence in units of
    1000 tokens."""

    name: str
    tflops: float
    gb_per_s: float
    block: float
    sequence: float


def ring_devices() -> list[RingDevice]:
    """Table 2 of the RingAttention paper (arXiv 2310.01889)."""
    return [RingDevice(row.pop("device"), *map(float, row.values())) for row in paper_rows("ring_table2")]


PAGED_ATTENTION_SETUP = ("llama2-13b", 15_728)
"""The setup of replays that stand for the paper's OPT-13B with 12 GB of K/V memory: the model, and the K/V memory in
tokens. With this model, 15,728 tokens take 12 GB."""


@cache
def paged_attention() -> tuple[Mapping[str, str], ...]:
    """Numbers that the PagedAttention paper (SOSP 2023) prints in its text and above bars."""
    return tuple(paper_rows("paged_attention"))


@cache
def printed_of_trees(paper: str, **named: str) -> float:
    """A printed number of `results/paper/trees.csv`, in the unit of its row. `paper` and `named` must select exactly
    one row.

    The papers are about kernels over prefix trees. Their numbers come from texts, not from plots: FastTree (MLSys 2025)
    and PAT (ASPLOS 2026) from conversions of the papers, DeFT (ICLR 2025) from its poster and repository.
    """
    wanted = {"set": paper, **named}
    (row,) = (row for row in paper_rows("trees") if all(row[name] == value for name, value in wanted.items()))
    return float(row["value"])


class StatedRate(NamedTuple):
    implementation: str
    n_p: int
    n_s: int
    n_c: int
    batch_size: int
    tokens_per_s: float


@cache
def stated_token_rates(figure: str) -> tuple[StatedRate, ...]:
    """The token rates that the paper's text states for `figure3` or `figure4`. For Figure 4 it does not state n_p; we
    assume 2048."""
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
    """The paper's latency at the point of this case, in microseconds for one decode step. None if Table 3 does not have
    the point.

    `implementation`: if given, its column is read instead of the column of the case's implementation. The paper's dtype
    is float16. The dtype of the case may differ, because some CPUs lack float16. The footer of reports states such a
    difference.
    """
    if not isinstance(case, AttentionPoint) or not isinstance(case.n_p, int) or case.n_s is None:
        return None
    if any(getattr(case, name) != value for name, value in SETUP.items()):
        return None
    name = implementation or case.implementation
    return table3().get((case.n_p, case.n_s, STANDS_FOR.get(name, name)))


def paper_ratio(case: Result, baseline: str) -> float | None:
    """The paper's latency of the case's implementation divided by that of the baseline, at the same point."""
    own, base = paper_us(case), paper_us(case, baseline)
    return None if own is None or base is None else own / base


def rows(cases: Sequence[Result], baseline: str, confidence: float) -> list[Row]:
    """Derive a row from each case, in the same order, and add the paper's latency and ratio."""
    return [_with_paper(row, baseline) for row in derive(cases, baseline, confidence)]


def _with_paper(row: Row, baseline: str) -> Row:
    printed, ratio = paper_us(row.facts), paper_ratio(row.facts, baseline)
    return replace(row, derived=replace(row.derived, paper_us=printed, paper_ratio=ratio))
