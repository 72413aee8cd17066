"""Claims on K/V memory (section 3.1)."""

from __future__ import annotations

import random
from functools import cache

from chunkbench.analysis.derive import Row
from chunkbench.analysis.kv_memory import CONTIGUOUS, PAKV, saving
from chunkbench.analysis.points import group
from chunkbench.kvcache import PrefixTree
from chunkbench.paper.claims.evidence import Evidence
from chunkbench.paper.claims.judgement import Figure, Judgement, absent, judged

_ABOUT = 0.15
"""How far "about" reaches: whole chunks and a prefix that does not end with one cost some percent."""
_SEQUENCES = 200


def waste(evidence: Evidence) -> Judgement:
    """The worst case, as a share of its bound."""
    worst: Figure | None = None
    exceeded, count = 0, 0
    for row in _caches(evidence):
        one = saving(None, row.facts)
        if one is None or one.empty is None:
            continue
        count += 1
        share = one.empty / one.bound if one.bound else 0.0
        exceeded += one.empty > one.bound + 1e-9
        if worst is None or share > worst.value:
            worst = Figure(share, share, share, (row,))
    if worst is None:
        return absent("bytes of the prefix-aware cache", "memory")
    reason = f"at {count} points the empty slots come to at most {worst.value:.0%} of (c - 1) / n"
    return judged("does not hold" if exceeded else "holds", reason, [worst])


def sharing(evidence: Evidence) -> Judgement:
    """Bytes that one more sequence takes, without sharing over with it: what decides how many fit."""
    best: tuple[float, float, Figure] | None = None
    for rows in evidence.runs:
        known = {
            tuple(axes[name] for name in ("n_p", "n_s", "n_c", "chunk_size", "batch_size")): {
                case.implementation: case for case in cases
            }
            for axes, cases in group([row.facts for row in rows])
            if axes["prompts"] == 1 and axes["tree"] is None and isinstance(axes["n_p"], int) and axes["n_s"]
        }
        row_of = {id(row.facts): row for row in rows}
        for (n_p, n_s, n_c, chunk, b), here in known.items():
            fewer = [other for other in known if other[:4] == (n_p, n_s, n_c, chunk) and other[4] < b]
            if not fewer or not {CONTIGUOUS, PAKV} <= here.keys():
                continue
            there = known[max(fewer, key=lambda other: other[4])]
            pairs = [(here[name], there[name]) for name in (CONTIGUOUS, PAKV) if name in there]
            if len(pairs) < 2 or any(not case.kv_bytes for pair in pairs for case in pair):
                continue
            one_more = [(big.kv_bytes or 0) - (small.kv_bytes or 0) for big, small in pairs]
            value, limit = one_more[0] / one_more[1], (n_p + n_c) / (n_p + n_c - n_s)
            used = tuple(row_of[id(case)] for pair in pairs for case in pair)
            if best is None or limit > best[1]:
                best = (value, limit, Figure(value, value, value, used))
    if best is None:
        return absent("bytes of two batch sizes that share a prefix", "memory")
    value, limit, figure = best
    reason = f"one more sequence takes {value:.2f} times less than without sharing; 1 / (1 - r) = {limit:.2f} there"
    near = abs(value / limit - 1) <= _ABOUT
    return judged("holds" if near else "does not hold", reason, [figure])


@cache
def contiguity() -> Judgement:
    """Joins, appends and leaves by chance; then every chunk's range against the paths that really hold it."""
    dice, tree = random.Random(0), PrefixTree(4)
    roots = [[dice.randrange(3) for _ in range(24)] for _ in range(3)]
    checked = 0
    for _ in range(_SEQUENCES):
        if len(tree) > 12:
            tree.leave(dice.choice(tree.sequences))
        start = dice.choice(roots)[: dice.randrange(25)]
        tree.join([*start, *(dice.randrange(3) for _ in range(dice.randrange(1, 9)))])
        tree.append([dice.randrange(3) for _ in tree.sequences])
        plan = tree.plan()
        in_order = [set(tree.path(tree.sequences[row])) for row in plan.order]
        for segment in plan.segments:
            for chunk in segment.chunks.tolist():
                holders = [place for place, path in enumerate(in_order) if chunk in path]
                if holders != list(range(segment.begin, segment.end)):
                    return Judgement("does not hold", f"chunk {chunk} serves the sequences {holders}")
                checked += 1
    reason = (
        f"{checked:,} chunks of a forest that changed {_SEQUENCES} times by chance, each against the paths it is on"
    )
    return Judgement("holds", reason, float(checked))


def _caches(evidence: Evidence) -> list[Row]:
    return [
        row
        for rows in evidence.runs
        for row in rows
        if row.facts.implementation == PAKV and row.facts.kv_bytes and row.facts.model is None
    ]
