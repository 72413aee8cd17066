"""Claims of papers on decode attention over prefix trees: FastTree, PAT, DeFT, and cascades of FlashInfer.

Their figures compare GPU kernels. Here planners run over one kernel and one copy of K and V, so only the plan differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, geometric_mean
from typing import Any

from chunkbench.report.claims.evidence import Evidence, Judge
from chunkbench.report.claims.judgement import Figure, Judgement, Stated, absent, decided
from chunkbench.report.claims.judges import bounded, fixed, largest
from chunkbench.report.printed import printed_of_trees

FLAT, CASCADE = "plan_flat", "plan_cascade"
NODE_WISE, TREE_FUSED, PACK = "plan_node_wise", "plan_tree_fused", "plan_pack"
_FASTTREE, _PAT, _DEFT = "trees-fasttree", "trees-pat", "trees-deft"
_TENSORRT, _FLASHINFER = "trees-tensorrt", "trees-flashinfer"
_ANY = dict.fromkeys(("n_p", "n_c", "batch_size", "tree", "heads", "kv_heads", "chunk_size"), ...)
_KERNELS = "the paper compares kernels on a GPU; here only the plan differs, and nodes are whole chunks of 64 tokens"
_COPIED = ", and all read the same K and V, of which its baselines have a copy per query"


def fasttree(evidence: Evidence, slow: str, stated: Stated, cause: str = _KERNELS) -> Judgement:
    """FastTree's plan against another one over all its trees. It does not say which mean it prints."""
    return _average(evidence, _FASTTREE, slow, TREE_FUSED, stated, cause)


def greedy(evidence: Evidence, stated: Stated) -> Judgement:
    """The tree that gains most from FastTree's greedy split over one item per node."""
    found = _ratios(evidence, _FASTTREE, NODE_WISE, TREE_FUSED)
    words, needs = "{least:.2f}x to {most:.2f}x over {count} points", (f"{NODE_WISE} beside {TREE_FUSED}", _FASTTREE)
    cause = "the paper's kernel pads queries to tiles of a GPU's matrix units"
    return bounded(found, stated, words, needs, cause=cause, cause_above=1, order=largest)


def pat(evidence: Evidence, slow: str, stated: Stated, one_root: bool = False) -> Judgement:
    """Latency that PAT's plan saves, mean over trees that share, as its scripts form it: of the savings."""
    found = _ratios(evidence, _PAT, PACK, slow, tree=lambda tree: _shares(tree) and (not one_root or len(tree) == 1))
    saved, needs = [mean.saved for mean in _mean(fmean, found)], (f"{slow} beside {PACK}", _PAT)
    return bounded(saved, stated, "{each}", needs, "{:.1%} less time", _KERNELS, 0)


def pat_naive(evidence: Evidence, stated: Stated) -> Judgement:
    """One item per node over PAT's plan, with the heads of Llama3-8B."""
    return _average(evidence, _PAT, NODE_WISE, PACK, stated, _KERNELS, heads=32, kv_heads=8)


def pat_no_sharing(evidence: Evidence, stated: Stated) -> Judgement:
    """PAT's plan over reading per sequence where nothing is shared; the worst point decides."""
    found = _ratios(evidence, _PAT, PACK, FLAT, tree=lambda tree: not _shares(tree))
    needs = f"{PACK} beside {FLAT} on trees without sharing", _PAT
    return bounded(found, stated, "at most {most:.2f} times the latency over {count} points", needs, order=largest)


def deft_node(evidence: Evidence) -> Judgement:
    """Reading per sequence over each node once, for branches behind 4000 tokens; DeFT-Node is slower there."""
    papers = {b: _printed("deft", "radix_attention", "deft_node", where=f"few-shot {b}") for b in (20, 30, 50)}
    found: list[Figure] = []
    for b, paper in papers.items():
        place = f"with {b} sequences ({paper:.2f} there)"
        found += _ratios(evidence, _DEFT, FLAT, NODE_WISE, place, tree=((4000, b),))[-1:]
    stated = Stated("at most", round(max(papers.values()), 2), 2)
    needs = f"{FLAT} beside {NODE_WISE} with 20, 30 or 50 sequences behind 4000 tokens", _DEFT
    cause = "the paper's kernel leaves a node uncut; here long items are cut for all threads, whatever the plan"
    return bounded(found, stated, "{each}", needs, "{:.2f}x", cause, order=largest)


def tensorrt(evidence: Evidence) -> Judgement:
    """The cascade's speed-up by prefix; the one that is furthest below the printed one decides."""
    points = evidence.of(_TENSORRT).points(CASCADE, **_ANY)
    ratios = {point.axes["tree"][0][0]: point.ratio(FLAT, CASCADE) for point in points}
    found = {prefix: ratio for prefix, ratio in sorted(ratios.items()) if ratio}
    if not found:
        return absent(f"{CASCADE} beside {FLAT} with 128 beams", _TENSORRT)
    papers = {prefix: printed_of_trees("tensorrt", where=str(prefix), quantity="speedup") for prefix in found}
    words = ", ".join(f"{found[n].value:.2f}x behind {n:,} tokens ({papers[n]:g} there)" for n in found)
    worst = min(found, key=lambda n: found[n].value / papers[n])
    wins = next((n for n in found if found[n].low > 1), None)
    words += f"; it is faster from {wins:,} tokens on (256 there)" if wins else "; it is never faster"
    cause = "the GPU's cascade takes 84 to 93 us behind all of them, and a CPU computes for every beam"
    return decided(found[worst], Stated("at least", papers[worst], 2), words, found.values(), cause, 1)


def issue595(evidence: Evidence, stated: Stated) -> Judgement:
    """With 1 KV head the cascade's time over that without it, with 8 the other way round: both are above 1 there."""
    cases = ((1, CASCADE, FLAT), (8, FLAT, CASCADE))
    found = [_ratios(evidence, _FLASHINFER, *pair, heads=8, kv_heads=kv_heads)[-1:] for kv_heads, *pair in cases]
    if not all(found):
        return absent(f"{CASCADE} beside {FLAT} with 1 and with 8 KV heads", _FLASHINFER)
    (ratio_of_one,), (ratio_of_eight,) = found
    one = _printed("flashinfer", "flashinfer_cascade", "flashinfer", kv_heads="1")
    eight = _printed("flashinfer", "flashinfer", "flashinfer_cascade", kv_heads="8")
    words = (
        f"with 1 KV head the cascade takes {ratio_of_one.value:.2f} times as long as reading per sequence "
        f"({one:.2f} there), with 8 the latter takes {ratio_of_eight.value:.2f} times as long ({eight:.2f})"
    )
    worst = min(ratio_of_one, ratio_of_eight, key=lambda ratio: ratio.value)
    cause = "a GPU's cascade is three launches, which take longer than one KV head; here it is one call"
    return decided(worst, stated, words, [ratio_of_one, ratio_of_eight], cause)


def _ratios(evidence: Evidence, experiment: str, of: str, against: str, place: str = "", **axes: Any) -> list[Figure]:
    """The ratio at each point of an experiment, whatever the tree."""
    return evidence.of(experiment).ratios(of, against, place, **{**_ANY, **axes})


def _mean(mean: Callable[[Sequence[float]], float], found: Sequence[Figure]) -> list[Figure]:
    """Mean of ratios, if there are any. Its ends are the means of their ends: wider than needed, as if all erred to one
    side."""
    if not found:
        return []
    value, low, high = (mean([getattr(one, name) for one in found]) for name in ("value", "low", "high"))
    rows = tuple(row for one in found for row in one.rows)
    return [Figure(value, low, high, rows, f"on average over {len(found)} points")]


def _average(
    evidence: Evidence, experiment: str, slow: str, fast: str, stated: Stated, cause: str, **axes: Any
) -> Judgement:
    """A speed-up that has to reach the paper's: the geometric mean over trees that share. Below 1 nothing but the plan
    explains it."""
    found = _mean(geometric_mean, _ratios(evidence, experiment, slow, fast, tree=_shares, **axes))
    each = f"{{:.{stated.decimals + 1}f}}x"
    return bounded(found, stated, "{each}", (f"{slow} beside {fast}", experiment), each, cause, 1)


def _printed(paper: str, slow: str, fast: str, **named: str) -> float:
    """Ratio of two printed latencies."""
    return printed_of_trees(paper, implementation=slow, **named) / printed_of_trees(paper, implementation=fast, **named)


def _at_least(paper: str, against: str, quantity: str, decimals: int) -> Stated:
    """What a plan has to reach: the paper's figure over another kernel."""
    return Stated("at least", printed_of_trees(paper, against=against, quantity=quantity), decimals)


def _shares(tree: Sequence[tuple[int, Any]]) -> bool:
    """Whether anything is shared: sequences without shared tokens stand behind a root of 0 tokens."""
    return any(tokens for tokens, _ in tree)


JUDGES: Mapping[str, Judge] = {
    "FT-flat": partial(
        fasttree, slow=FLAT, stated=_at_least("fasttree", "flashinfer", "mean_speedup", 1), cause=_KERNELS + _COPIED
    ),
    "FT-cascade": partial(fasttree, slow=NODE_WISE, stated=_at_least("fasttree", "cascade", "mean_speedup", 1)),
    "FT-greedy": partial(greedy, stated=_at_least("fasttree", "fasttree_without_greedy", "largest_speedup", 1)),
    "PAT-flat": partial(pat, slow=FLAT, stated=_at_least("pat", "flashinfer", "mean_cut", 3)),
    "PAT-cascade": partial(pat, slow=NODE_WISE, stated=_at_least("pat", "cascade", "mean_cut", 3), one_root=True),
    "PAT-naive": partial(pat_naive, stated=_at_least("pat", "pat_naive", "mean_speedup", 3)),
    "PAT-no-sharing": partial(pat_no_sharing, stated=Stated("at most", 1.0, 2)),
    "DF-node": deft_node,
    "DF-speedup": fixed(
        "not measured", "it needs a GPU: no plan here cuts K and V evenly across nodes, as DeFT-Flatten does"
    ),
    "TRT-cascade": tensorrt,
    "FI-595": partial(issue595, stated=Stated("at least", 1.0, 2)),
    "FI-31x": fixed("not measured", "it needs a GPU: the figure is a GPU kernel's over vLLM's of 2024"),
}
