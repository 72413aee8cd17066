"""Claims on K/V memory (section 3.1)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import ceil

from chunkbench.attention.tree import PrefixTree
from chunkbench.bench.store.results import DecodeResult
from chunkbench.report.claims.evidence import Evidence, Judge
from chunkbench.report.claims.judgement import Figure, Judgement, Stated, absent, held, judged
from chunkbench.report.claims.judges import bounded, largest
from chunkbench.workloads.memory.result import CONTIGUOUS, PAKV, MemoryResult, saving
from chunkbench.workloads.replay import claims as managers

_ABOUT = 0.15
"""Tolerance for "about" in the claim: whole chunks, and a prefix that ends inside a chunk, cost some percent."""
_SEQUENCES = 200


def waste(evidence: Evidence) -> Judgement:
    """Empty slots per token, over their upper bound (c - 1) / n. The claim holds if no point exceeds the bound. The
    figure is the largest ratio."""
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
    """The saving by sharing, over the largest possible saving. A saving is bytes of K and V without sharing over bytes
    with sharing. The largest possible saving of b sequences is b n / (n_s + b (n - n_s)). For many sequences it
    approaches 1 / (1 - r).

    The point with the smallest ratio decides. A ratio below the stated one may have an explanation: chunks are
    allocated whole, and the private tokens of a sequence may fill only a part of a chunk.

    Without a run that measured bytes, the judgement compares how many sequences fit in replays.
    """
    found: list[Figure] = []
    explained = True
    for point in evidence.groups:
        axes, rows = point.axes, [point.rows[name] for name in (CONTIGUOUS, PAKV) if name in point.rows]
        plain = axes["prompts"] == 1 and axes["tree"] is None and isinstance(axes["n_p"], int)
        n_s, b, chunk = axes["n_s"], axes["batch_size"], axes["chunk_size"]
        without, shared = ([row.kv_bytes or 0 for row in rows] + [0, 0])[:2]
        if not (plain and n_s and b > 1 and without and shared):
            continue
        n = axes["n_p"] + axes["n_c"]
        value, possible = without / shared, b * n / (n_s + b * (n - n_s))
        explained &= value >= (1 - _ABOUT) * b * n / chunk / (n_s // chunk + b * (ceil(n / chunk) - n_s // chunk))
        place = f"{b} sequences take {value:.2f} times less memory, of {possible:.2f} possible (r = {n_s / n:.2f})"
        found.append(Figure.counted(value / possible, *rows, place=place))
    if not found:
        return managers.sharing(evidence) or absent("bytes of several sequences that share a prefix", "memory")
    stated = Stated("at least", 1 - _ABOUT, 2)
    near = sum(stated.verdict(figure.low, figure.high) == "holds" for figure in found)
    words = f"{near} of {{count}} points are within {_ABOUT:.0%} (our tolerance); at the worst, {{where}}"
    cause = "that is what whole chunks allow, because a sequence's own tokens fill a part of one" if explained else ""
    return bounded(found, stated, words, ("bytes", "memory"), cause=cause)


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


@cache
def beginning() -> Judgement:
    """Check two sets of prompts. Prompts with equal ends must share no chunk. Prompts with equal beginnings must share
    every chunk of the beginning.
    """
    own, same = [[prompt] * 16 for prompt in range(_PROMPTS)], [_PROMPTS] * 64
    ends = _shared_chunks([*one, *same] for one in own)
    begins = _shared_chunks([*same, *one] for one in own)
    reason = (
        f"{_PROMPTS} prompts that end with the same {len(same)} tokens share {ends} chunks of {_CHUNK}; prompts that "
        f"begin with them share {begins}"
    )
    return Judgement(held(not ends and begins == len(same) // _CHUNK), reason, float(ends))


_PROMPTS, _CHUNK = 8, 4


def _shared_chunks(prompts: Iterable[Sequence[int]]) -> int:
    tree = PrefixTree(_CHUNK)
    paths = [tree.path(tree.join(prompt).sequence) for prompt in prompts]
    readers = Counter(chunk for path in paths for chunk in path)
    return sum(count > 1 for count in readers.values())


JUDGES: Mapping[str, Judge] = {
    "S3-waste": waste,
    "S3-sharing": sharing,
    "S3-beginning": lambda _: beginning(),
    "S3-contiguity": lambda _: contiguity(),
}
