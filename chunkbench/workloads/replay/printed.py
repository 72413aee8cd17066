"""Values that papers print for cache managers, and the rates that managers sustain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.numbers import times
from chunkbench.report.printed import PAGED_ATTENTION_SETUP, paged_attention, table4
from chunkbench.workloads.replay.result import ReplayResult
from chunkbench.workloads.serving.objective import SustainedRate, sustained_rate

SYSTEMS = {"paged": "vllm", "prefix_tree": "chunk_llama"}
"""Manager -> the system in the paper's Table 4 that uses such a manager."""

REPLAYED_AS = {"wmt16": "alpaca"}
"""Traffic whose lengths the PagedAttention paper does not print -> the traffic whose lengths are used."""


def rate_over_exact(axes: Mapping[str, Any], manager: str) -> str | None:
    """Sustained rate over that of an allocator that knows all lengths, from the PagedAttention paper. None if the paper
    states no such ratio.
    """
    low, high, one = (
        stated_by_paged_attention(axes, manager, f"rate_over_exact{end}") for end in ("_low", "_high", "")
    )
    text = f"{low:g} to {high:g}x" if low and high else times(one) if one else None
    return f"{text}, translation" if text and axes["n_s"] else text


def stated_by_paged_attention(axes: Mapping[str, Any], manager: str, quantity: str) -> float | None:
    """The value that the PagedAttention paper prints for a system with this manager. None if the paper prints no value,
    or if the replay does not stand for OPT-13B with 12 GB of K/V memory.
    """
    if (str(axes["model"]), axes["memory"]) != PAGED_ATTENTION_SETUP:
        return None
    for row in paged_attention():
        wanted = {**row, "traffic": REPLAYED_AS.get(row["traffic"], row["traffic"])}
        same = all(str(axes[name] or "") == wanted[name] for name in ("traffic", "n_s", "samples", "beams"))
        if same and (row["manager"], row["quantity"]) == (manager, quantity) and row["rate"] in ("", str(axes["rate"])):
            return float(row["value"])
    return None


def printed(group: Group, row: Row, column: str) -> str | None:
    """The value in the paper's Table 4 for the system with this manager at this point. None if the table has no such
    row.
    """
    axes = group.axes
    known = table4().get((axes["n_p"], axes["n_s"], SYSTEMS.get(row.facts.implementation, "")))
    if known is None or axes["rate"] is None or axes["batch_size"] != 32:
        return None
    same = axes["n_c"] == int(known["n_c"]) and axes["rate"] / 60 == float(known["rps"])
    return known[column] if same else None


OBJECTIVE_S = 0.1
"""Largest number of seconds per token at which a rate of generated or recorded traffic counts as sustained.

The value is our choice. The PagedAttention paper compares rates at similar latencies, on axes up to 1 s. The value is
large enough that some requests wait. At much longer latencies, the rate depends on how long the traffic lasts.
"""


def rates_by_seed(rows: Sequence[Row], objective_s: float) -> list[SustainedRate | None]:
    """Sustained requests per second of each arrival seed. The rows must belong to one manager and differ only in the
    rate.
    """
    facts = [row.facts for row in rows if isinstance(row.facts, ReplayResult) and row.facts.rate is not None]
    seeds = min((len(one.us_per_token) for one in facts), default=0)
    return [
        sustained_rate([((one.rate or 0) / 60, one.us_per_token[seed] / 1e6) for one in facts], objective_s)
        for seed in range(seeds)
    ]


def rate_ratios(rows: Sequence[Row], base_rows: Sequence[Row], objective_s: float) -> list[float]:
    """Sustained rate over that of another manager, for each arrival seed. Seeds at which a rate is only a lower bound
    are left out.
    """
    pairs = zip(rates_by_seed(rows, objective_s), rates_by_seed(base_rows, objective_s), strict=False)
    return [
        rate.per_s / base.per_s for rate, base in pairs if rate and base and not rate.at_least and not base.at_least
    ]
