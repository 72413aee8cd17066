"""Tables of the paper as printed, for those that no run of a book measures; their titles say what would."""

from __future__ import annotations

from collections.abc import Collection

from chunkbench.paper.printed import paper_rows
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.sharing import paper_table

_SYSTEMS = {"vllm": "vLLM 0.2.7", "chunk_llama": "ChunkLlama"}


def tables(measured: Collection[str]) -> tuple[Table, ...]:
    """Table 2, and what the paper states of Table 4 and Figure 5 unless their experiments are among `measured`."""
    served = {"table4": _table4, "figure5": _figure5}
    return paper_table(), *(table() for name, table in served.items() if name not in measured)


def _table4() -> Table:
    heads = (
        Column("n_p", ("n_p",)),
        Column("n_s", ("n_s",)),
        Column("requests per second", ("requests", "per s")),
        Column("system", ("system",), "left"),
        Column("ms per token", ("ms per", "token")),
        Column("peak K/V, GB", ("peak", "K/V GB")),
        Column("peak batch", ("peak", "batch")),
    )
    rows = tuple(
        (
            Cell(row["n_p"]),
            Cell(row["n_s"]),
            Cell(row["rps"]),
            Cell(_SYSTEMS[row["system"]]),
            Cell(row["normalized_latency_ms_per_token"]),
            Cell(row["peak_kv_cache_gb"]),
            Cell(row["peak_batch_size"]),
        )
        for row in paper_rows("table4")
    )
    title = "The paper's Table 4: a 7B model served on an A100; `chunkbench run table4` measures a smaller one here"
    return Table(title, heads, rows, keys=3, breaks=frozenset({3, 7}))


def _figure5() -> Table:
    heads = (
        Column("n_p = n_s", ("n_p = n_s",)),
        Column("system", ("system",), "left"),
        Column("requests per second below 40 ms per token", ("requests", "per s")),
    )
    rows = tuple(
        (Cell(row["n_p"]), Cell(_SYSTEMS[row["implementation"]]), Cell(row["value"]))
        for row in paper_rows("figure_points")
        if row["figure"] == "figure5"
    )
    return Table(
        "The paper's Figure 5, as far as its text states points; `chunkbench run figure5` measures others here",
        heads,
        rows,
        keys=1,
    )
