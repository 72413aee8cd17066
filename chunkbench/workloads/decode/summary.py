"""What sharing gains at one point, in two sentences."""

from __future__ import annotations

from chunkbench.experiment.llama import LlamaShape
from chunkbench.report.numbers import count, times
from chunkbench.report.report import Report
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
        lines.append(
            f"memory  K/V of all {layers} layers in {dtype}: {apart:.2f} GB, with shared prefixes {shared:.2f} GB, "
            f"{abs(apart - shared):.2f} GB {'saved' if apart >= shared else 'more'}"
        )
    if alone is not None and alone.derived.ratio_to_baseline is not None:
        lines.append(
            f"time    decode attention is {times(alone.derived.ratio_to_baseline)} as fast as without sharing "
            f"({report.columns.name(alone.facts.implementation)})"
        )
    compared = matches([group], report.baseline, report.columns)
    if compared:
        best = compared[0]
        doubt = "; this is not significantly different from 1" if best.doubtful else ""
        rated = [row for row in group.rows.values() if row.derived.ratio_to_baseline is not None]
        others = count(len(rated) - 1, "other implementation")
        strongest = report.columns.name(best.strongest.facts.implementation)
        lines.append(
            f"        it is {times(best.speedup)} as fast as {strongest}, the strongest of {others} here{doubt}"
        )
    return lines or ["ChunkAttn and another implementation were not measured side by side; the report says why"]
