"""Shows tables of the paper that no run of a book measures. Some titles name a command for a similar table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import itemgetter

from chunkbench.report.model import Column, Table
from chunkbench.report.printed import paper_rows
from chunkbench.report.sharing import paper_table

_SYSTEMS = {"vllm": "vLLM 0.2.7", "chunk_llama": "ChunkLlama"}


def tables(measured: Collection[str]) -> tuple[Table, ...]:
    """The paper's Table 2, Table 4, and numbers of Figure 5. Table 4 is left out if `measured` holds `table4`; Figure 5
    is left out if `measured` holds `figure5`."""
    served = {"table4": _table4, "figure5": _figure5}
    return paper_table(), *(table() for name, table in served.items() if name not in measured)


def _table4() -> Table:
    columns: tuple[Column[Mapping[str, str]], ...] = (
        Column("n_p", itemgetter("n_p")),
        Column("n_s", itemgetter("n_s")),
        Column("requests per second", itemgetter("rps"), ("requests", "per s")),
        Column("system", lambda row: _SYSTEMS[row["system"]], align="left"),
        Column("ms per token", itemgetter("normalized_latency_ms_per_token"), ("ms per", "token")),
        Column("peak K/V, GB", itemgetter("peak_kv_cache_gb"), ("peak", "K/V GB")),
        Column("peak batch", itemgetter("peak_batch_size"), ("peak", "batch")),
    )
    title = "The paper's Table 4: a 7B model served on an A100; `chunkbench run table4` measures a smaller one here"
    return Table(title, columns, paper_rows("table4"), keys=3, breaks=frozenset({3, 7}))


def _figure5() -> Table:
    columns: tuple[Column[Mapping[str, str]], ...] = (
        Column("n_p = n_s", itemgetter("n_p")),
        Column("system", lambda row: _SYSTEMS[row["implementation"]], align="left"),
        Column("requests per second below 40 ms per token", itemgetter("value"), ("requests", "per s")),
    )
    title = "The paper's Figure 5, as far as its text states points; `chunkbench run figure5` measures others here"
    return Table(title, columns, [row for row in paper_rows("figure_points") if row["figure"] == "figure5"])
