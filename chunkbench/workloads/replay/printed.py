"""What papers print of cache managers, beside replays of the same points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.numbers import times
from chunkbench.report.printed import PAGED_ATTENTION_SETUP, paged_attention, table4

SYSTEMS = {"paged": "vllm", "prefix_tree": "chunk_llama"}
"""Manager -> the system of the paper's Table 4 that has it."""


def rate_over_exact(axes: Mapping[str, Any], manager: str) -> str | None:
    """The rate over that of an allocator that knows all lengths, as the PagedAttention paper states it."""
    low, high, one = (
        stated_by_paged_attention(axes, manager, f"rate_over_exact{end}") for end in ("_low", "_high", "")
    )
    text = f"{low:g} to {high:g}x" if low and high else times(one) if one else None
    return f"{text}, translation" if text and axes["n_s"] else text


def stated_by_paged_attention(axes: Mapping[str, Any], manager: str, quantity: str) -> float | None:
    """What the PagedAttention paper prints for a system with this manager, in its setup of 12 GB beside OPT-13B."""
    if (str(axes["model"]), axes["memory"]) != PAGED_ATTENTION_SETUP:
        return None
    for row in paged_attention():
        same = all(str(axes[name] or "") == row[name] for name in ("traffic", "n_s", "samples", "beams"))
        if same and (row["manager"], row["quantity"]) == (manager, quantity) and row["rate"] in ("", str(axes["rate"])):
            return float(row["value"])
    return None


def printed(group: Group, row: Row, column: str) -> str | None:
    """What the paper's Table 4 prints for the system with this manager at this point; None if it has no such row."""
    axes = group.axes
    known = table4().get((axes["n_p"], axes["n_s"], SYSTEMS.get(row.facts.implementation, "")))
    if known is None or axes["rate"] is None or axes["batch_size"] != 32:
        return None
    same = axes["n_c"] == int(known["n_c"]) and axes["rate"] / 60 == float(known["rps"])
    return known[column] if same else None
