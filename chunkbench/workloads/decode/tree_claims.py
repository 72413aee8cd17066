"""Claims of papers on decode attention over prefix trees: FastTree, PAT, DeFT, and cascades of FlashInfer.

Their figures compare GPU kernels. Here planners run over one kernel and one copy of K and V, so only the plan differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, geometric_mean

from chunkbench.paper.claims.evidence import Evidence, MeasuredPoint
from chunkbench.paper.claims.judgement import Figure, Judge, Judgement, Stated, absent, decided
from chunkbench.paper.printed import printed_of_trees

FLAT, CASCADE = "plan_flat", "plan_cascade"
NODE_WISE, TREE_FUSED, PACK = "plan_node_wise", "plan_tree_fused", "plan_pack"
_FASTTREE, _PAT, _DEFT = "trees-fasttree", "trees-pat", "trees-deft"
_TENSORRT, _FLASHINFER = "trees-tensorrt", "trees-flashinfer"
_AXES = ("n_p", "n_c", "batch_size", "tree", "heads", "kv_heads", "chunk_size")
_KERNELS = "the paper compares kernels on a GPU; here only the plan differs, and nodes are whole chunks of 64 tokens"
_COPIED = ", and all read the same K and V, of which its baselines have a copy per query"
_DEFT_BRANCHES = (20, 30, 50)


def fasttree(evidence: Evidence, slow: str, against: str) -> Judgement:
    """FastTree's plan against another one over all its trees. It does not say which mean it prints."""
    paper = printed_of_trees("fasttree", implementation="fasttree", against=against)
    cause = _KERNELS + (_COPIED if slow == FLAT else "")
    return _average(evidence, _FASTTREE, slow, TREE_FUSED, Stated("at least", paper, 1), cause)


def greedy(evidence: Evidence) -> Judgement:
    """The tree that gains most from FastTree's greedy split over one item per node."""
    found = _ratios(_points(evidence, _FASTTREE, TREE_FUSED), NODE_WISE, TREE_FUSED)
    if not found:
        return absent(f"{NODE_WISE} beside {TREE_FUSED}", _FASTTREE)
    best, least = (end(found, key=lambda figure: figure.value) for end in (max, min))
    words = f"{least.value:.2f}x to {best.value:.2f}x over {len(found)} points"
    stated = Stated("at least", printed_of_trees("fasttree", against="fasttree_without_greedy"), 1)
    return _gain(best, stated, words, found, "the paper's kernel pads queries to tiles of a GPU's matrix units")


def pat(evidence: Evidence, slow: str, against: str, one_root: bool = False) -> Judgement:
    """Latency that PAT's plan saves, mean over trees that share, as its scripts form it: of the savings."""
    points = [point for point in _points(evidence, _PAT, PACK) if _shares(point)]
    ratio = _mean(_ratios([one for one in points if not one_root or len(one.axes["tree"]) == 1], PACK, slow), fmean)
    if ratio is None:
        return absent(f"{slow} beside {PACK}", _PAT)
    saved = Figure(1 - ratio.value, 1 - ratio.high, 1 - ratio.low, ratio.rows)
    stated = Stated("at least", printed_of_trees("pat", against=against, quantity="mean_cut"), 3)
    cause = _KERNELS if saved.high > 0 else ""
    return decided(saved, stated, f"{saved.value:.1%} less time{_over(saved)}", [], cause)


def pat_naive(evidence: Evidence) -> Judgement:
    """One item per node over PAT's plan, with the heads of Llama3-8B."""
    stated = Stated("at least", printed_of_trees("pat", against="pat_naive"), 3)
    return _average(evidence, _PAT, NODE_WISE, PACK, stated, _KERNELS, heads=32, kv_heads=8)


def pat_no_sharing(evidence: Evidence) -> Judgement:
    """PAT's plan over reading per sequence where nothing is shared; the worst point decides."""
    found = _ratios([point for point in _points(evidence, _PAT, PACK) if not _shares(point)], PACK, FLAT)
    if not found:
        return absent(f"{PACK} beside {FLAT} on trees without sharing", _PAT)
    worst = max(found, key=lambda figure: figure.value)
    words = f"at most {worst.value:.2f} times the latency over {len(found)} points"
    return decided(worst, Stated("at most", 1.0, 2), words, found)


def deft_node(evidence: Evidence) -> Judgement:
    """Reading per sequence over each node once, for branches behind 4000 tokens; DeFT-Node is slower there."""
    ratios = {point.axes["tree"]: point.ratio(FLAT, NODE_WISE) for point in _points(evidence, _DEFT, NODE_WISE)}
    found = {b: ratio for b in _DEFT_BRANCHES if (ratio := ratios.get(((4000, b),)))}
    if not found:
        return absent(f"{FLAT} beside {NODE_WISE} with 20, 30 or 50 sequences behind 4000 tokens", _DEFT)
    papers = {b: _printed("deft", "radix_attention", "deft_node", where=f"few-shot {b}") for b in _DEFT_BRANCHES}
    words = ", ".join(f"{found[b].value:.2f}x with {b} sequences ({papers[b]:.2f} there)" for b in found)
    best = max(found.values(), key=lambda figure: figure.value)
    cause = "the paper's kernel leaves a node uncut; here long items are cut for all threads, whatever the plan"
    return decided(best, Stated("at most", round(max(papers.values()), 2), 2), words, list(found.values()), cause)


def tensorrt(evidence: Evidence) -> Judgement:
    """The cascade's speed-up by prefix; the one that is furthest below the printed one decides."""
    ratios = {point.axes["tree"][0][0]: point.ratio(FLAT, CASCADE) for point in _points(evidence, _TENSORRT, CASCADE)}
    found = {prefix: ratio for prefix, ratio in sorted(ratios.items()) if ratio}
    if not found:
        return absent(f"{CASCADE} beside {FLAT} with 128 beams", _TENSORRT)
    papers = {prefix: printed_of_trees("tensorrt", where=str(prefix), quantity="speedup") for prefix in found}
    words = ", ".join(f"{found[n].value:.2f}x behind {n:,} tokens ({papers[n]:g} there)" for n in found)
    worst = min(found, key=lambda n: found[n].value / papers[n])
    wins = next((n for n in found if found[n].low > 1), None)
    words += f"; it is faster from {wins:,} tokens on (256 there)" if wins else "; it is never faster"
    cause = "the GPU's cascade takes 84 to 93 us behind all of them, and a CPU computes for every beam"
    return _gain(found[worst], Stated("at least", papers[worst], 2), words, list(found.values()), cause)


def issue595(evidence: Evidence) -> Judgement:
    """With 1 KV head the cascade's time over that without it, with 8 the other way round: both are above 1 there."""
    found: dict[int, Figure] = {}
    for kv_heads, slow, fast in ((1, CASCADE, FLAT), (8, FLAT, CASCADE)):
        for ratio in _ratios(_points(evidence, _FLASHINFER, CASCADE, heads=8, kv_heads=kv_heads), slow, fast):
            found[kv_heads] = ratio
    if len(found) < 2:
        return absent(f"{CASCADE} beside {FLAT} with 1 and with 8 KV heads", _FLASHINFER)
    one = _printed("flashinfer", "flashinfer_cascade", "flashinfer", kv_heads="1")
    eight = _printed("flashinfer", "flashinfer", "flashinfer_cascade", kv_heads="8")
    words = (
        f"with 1 KV head the cascade takes {found[1].value:.2f} times as long as reading per sequence "
        f"({one:.2f} there), with 8 the latter takes {found[8].value:.2f} times as long ({eight:.2f})"
    )
    worst = min(found.values(), key=lambda figure: figure.value)
    cause = "a GPU's cascade is three launches, which take longer than one KV head; here it is one call"
    return decided(worst, Stated("at least", 1.0, 2), words, list(found.values()), cause)


def needs_gpu(what: str) -> Judgement:
    """The judgement of a claim on a GPU's time that no plan here stands for."""
    return Judgement("not measured", f"it needs a GPU: {what}")


def _points(evidence: Evidence, experiment: str, implementation: str, **axes: int) -> list[MeasuredPoint]:
    """Points of an experiment with this implementation, whatever the tree."""
    return list(evidence.of(experiment).points(implementation, **{**dict.fromkeys(_AXES, ...), **axes}))


def _ratios(points: Sequence[MeasuredPoint], slow: str, fast: str) -> list[Figure]:
    return [figure for point in points if (figure := point.ratio(slow, fast)) is not None]


def _mean(found: Sequence[Figure], mean: Callable[[Sequence[float]], float]) -> Figure | None:
    """Mean of ratios. Its ends are the means of their ends: wider than needed, as if all erred to one side."""
    if not found:
        return None
    value, low, high = (mean([getattr(one, name) for one in found]) for name in ("value", "low", "high"))
    return Figure(value, low, high, tuple(row for one in found for row in one.rows))


def _over(mean: Figure) -> str:
    return f" on average over {len(mean.rows) // 2} points"


def _average(
    evidence: Evidence, experiment: str, slow: str, fast: str, stated: Stated, cause: str, **axes: int
) -> Judgement:
    """A geometric mean over trees that share, which has to reach the paper's."""
    points = [point for point in _points(evidence, experiment, fast, **axes) if _shares(point)]
    found = _mean(_ratios(points, slow, fast), geometric_mean)
    if found is None:
        return absent(f"{slow} beside {fast}", experiment)
    return _gain(found, stated, f"{found.value:.{stated.decimals + 1}f}x{_over(found)}", [], cause)


def _gain(figure: Figure, stated: Stated, words: str, figures: Sequence[Figure], cause: str) -> Judgement:
    """A speed-up that has to reach the paper's. Below 1 nothing but the plan explains it."""
    return decided(figure, stated, words, figures, cause if figure.high > 1 else "")


def _printed(paper: str, slow: str, fast: str, **named: str) -> float:
    """Ratio of two printed latencies."""
    return printed_of_trees(paper, implementation=slow, **named) / printed_of_trees(paper, implementation=fast, **named)


def _shares(point: MeasuredPoint) -> bool:
    """Whether anything is shared: sequences without shared tokens stand behind a root of 0 tokens."""
    return any(tokens for tokens, _ in point.axes["tree"])


JUDGES: Mapping[str, Judge] = {
    "FT-flat": partial(fasttree, slow=FLAT, against="flashinfer"),
    "FT-cascade": partial(fasttree, slow=NODE_WISE, against="cascade"),
    "FT-greedy": greedy,
    "PAT-flat": partial(pat, slow=FLAT, against="flashinfer"),
    "PAT-cascade": partial(pat, slow=NODE_WISE, against="cascade", one_root=True),
    "PAT-naive": pat_naive,
    "PAT-no-sharing": pat_no_sharing,
    "DF-node": deft_node,
    "DF-speedup": lambda _: needs_gpu("no plan here cuts K and V evenly across nodes, as DeFT-Flatten does"),
    "TRT-cascade": tensorrt,
    "FI-595": issue595,
    "FI-31x": lambda _: needs_gpu("the figure is a GPU kernel's over vLLM's of 2024"),
}
