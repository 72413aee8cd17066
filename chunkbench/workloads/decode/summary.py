"""What sharing gains at one point, in two sentences."""

from __future__ import annotations

from chunkbench.bench.analysis.derive import Row
from chunkbench.llama import LlamaShape
from chunkbench.report.cells import NOISY_MARK
from chunkbench.report.layout import Report
from chunkbench.report.numbers import count, significant, times
from chunkbench.report.statuses import noise_line
from chunkbench.workloads.decode.headline import matches

_ALONE = "paged_attn"
"""The implementation that keeps every sequence in blocks of its own."""


def gains(report: Report, shape: LlamaShape) -> list[str]:
    """Memory and time of the run's first point, with K/V of all layers of the model. Says what is missing."""
    if not report.groups:
        return ["nothing was measured"]
    group = report.groups[0]
    ours = group.rows.get(report.baseline)
    alone = group.rows.get(_ALONE)
    lines = []
    if ours is not None and alone is not None and ours.kv_bytes and alone.kv_bytes:
        layers, dtype = shape.num_hidden_layers, ours.facts.dtype
        apart, shared = (size * layers / 1e9 for size in (alone.kv_bytes, ours.kv_bytes))
        why = "saved" if apart >= shared else "more, because it holds whole chunks"
        lines.append(
            f"memory  K/V of all {layers} layers in {dtype}: {significant(apart, 3)} GB, with shared prefixes "
            f"{significant(shared, 3)} GB, {significant(abs(apart - shared), 3)} GB {why}"
        )
    if alone is not None and alone.derived.ratio_to_baseline is not None:
        speedup = _mark(ours, alone) + times(alone.derived.ratio_to_baseline)
        name = report.columns.name(alone.facts.implementation)
        lines.append(f"time    decode attention is {speedup} as fast as without sharing ({name})")
    compared = matches([group], report.baseline, report.columns)
    if compared:
        best = compared[0]
        doubt = "; this is not significantly different from 1" if best.doubtful else ""
        rated = [row for row in group.rows.values() if row.derived.ratio_to_baseline is not None]
        others = count(len(rated) - 1, "other implementation")
        strongest = report.columns.name(best.strongest.facts.implementation)
        mark = _mark(ours, best.strongest)
        lines.append(
            f"        it is {mark}{times(best.speedup)} as fast as {strongest}, the strongest of {others} here{doubt}"
        )
        lines += [f"{line}. Run it again when the machine has nothing else to do" for line in noise_line([group])]
    return lines or ["ChunkAttn was not measured beside another implementation; the report says why"]


def _mark(*rows: Row | None) -> str:
    """The mark of a figure that rests on a noisy row."""
    return NOISY_MARK if any(row is not None and row.facts.status == "noisy" for row in rows) else ""
