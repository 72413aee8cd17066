"""Claims on K/V memory (section 3.1)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache

from chunkbench.attention.tree import PrefixTree
from chunkbench.bench.store.results import DecodeResult
from chunkbench.report.claims.evidence import Evidence, Judge
from chunkbench.report.claims.judgement import Figure, Judgement, absent, held, judged
from chunkbench.report.claims.judges import largest
from chunkbench.workloads.memory.result import CONTIGUOUS, PAKV, MemoryResult, saving
from chunkbench.workloads.replay import claims as managers

_ABOUT = 0.15
"""Tolerance for "about" in the claim: whole chunks, and a prefix that ends inside a chunk, cost some percent."""
_SEQUENCES = 200


def waste(evidence: Evidence) -> Judgement:
    """Empty slots as a share of their bound (c - 1) / n; the highest share decides."""
    caches = [
        (memory.empty, memory.bound, row)
        for row in evidence.rows
        if row.facts.implementation == PAKV
        and isinstance(row.facts, DecodeResult | MemoryResult)
        and (memory := saving(None, row.facts))
        and memory.empty is not None
    ]
    if not caches:
        return absent("bytes of the prefix-aware cache", "memory")
    figures = [Figure.counted(empty / bound if bound else 0.0, row) for empty, bound, row in caches]
    worst, exceeded = largest(figures)[0], any(empty > bound + 1e-9 for empty, bound, _ in caches)
    reason = f"at {len(caches)} points the empty slots reach at most {worst.value:.0%} of (c - 1) / n"
    return judged(held(not exceeded), reason, [worst])


def sharing(evidence: Evidence) -> Judgement:
    """Bytes that one more sequence takes without sharing, over those with sharing: this ratio decides how many
    sequences fit.

    Without a run that measured bytes, the judgement compares how many sequences fit in replays.
    """
    best: tuple[float, Figure] | None = None
    for run in evidence.runs:
        by_axes = {
            tuple(axes[name] for name in ("n_p", "n_s", "n_c", "chunk_size", "batch_size")): point.rows
            for point in run.groups
            if (axes := point.axes)["prompts"] == 1
            and axes["tree"] is None
            and isinstance(axes["n_p"], int)
            and axes["n_s"]
        }
        for (n_p, n_s, n_c, chunk, b), larger in by_axes.items():
            fewer = [other for other in by_axes if other[:4] == (n_p, n_s, n_c, chunk) and other[4] < b]
            smaller = by_axes[max(fewer, key=lambda other: other[4])] if fewer else {}
            pairs = [(larger[name], smaller[name]) for name in (CONTIGUOUS, PAKV) if name in larger and name in smaller]
            if len(pairs) < 2 or any(not row.kv_bytes for pair in pairs for row in pair):
                continue
            one_more = [(big.kv_bytes or 0) - (small.kv_bytes or 0) for big, small in pairs]
            value, limit = one_more[0] / one_more[1], (n_p + n_c) / (n_p + n_c - n_s)
            if best is None or limit > best[0]:
                best = limit, Figure.counted(value, *(row for pair in pairs for row in pair))
    if best is None:
        return managers.sharing(evidence) or absent("bytes of two batch sizes that share a prefix", "memory")
    limit, figure = best
    times = f"{figure.value:.2f} times less memory with sharing"
    reason = f"one more sequence takes {times}; 1 / (1 - r) = {limit:.2f} here"
    return judged(held(abs(figure.value / limit - 1) <= _ABOUT), reason, [figure])


@cache
def contiguity() -> Judgement:
    """Check contiguity under random joins, appends and leaves: after each, every chunk's range is compared with the
    sequences whose paths hold the chunk.
    """
    rng, tree = random.Random(0), PrefixTree(4)
    roots = [[rng.randrange(3) for _ in range(24)] for _ in range(3)]
    checked = 0
    for _ in range(_SEQUENCES):
        if len(tree) > 12:
            tree.leave(rng.choice(tree.sequences))
        start = rng.choice(roots)[: rng.randrange(25)]
        tree.join([*start, *(rng.randrange(3) for _ in range(rng.randrange(1, 9)))])
        tree.append([rng.randrange(3) for _ in tree.sequences])
        plan = tree.plan()
        in_order = [set(tree.path(tree.sequences[row])) for row in plan.order]
        for segment in plan.segments:
            for chunk in segment.chunks.tolist():
                holders = [position for position, path in enumerate(in_order) if chunk in path]
                if holders != list(range(segment.begin, segment.end)):
                    return Judgement("does not hold", f"chunk {chunk} serves positions {holders} of the order")
                checked += 1
    reason = (
        f"{checked:,} chunks of a forest with {_SEQUENCES} random changes, each compared with the paths that hold it"
    )
    return Judgement("holds", reason, float(checked))


JUDGES: Mapping[str, Judge] = {
    "S3-waste": waste,
    "S3-sharing": sharing,
    "S3-contiguity": lambda _: contiguity(),
}
