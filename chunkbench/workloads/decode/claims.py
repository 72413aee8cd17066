"""Claims on decode attention: ChunkAttention's Table 3, Figures 3 and 4 and abstract, and what papers on trees of
prompts state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from math import inf
from statistics import fmean, geometric_mean, median
from typing import Any

from chunkbench.bench.analysis.derive import Row
from chunkbench.bench.analysis.points import measured as timed
from chunkbench.bench.analysis.statistics import spread
from chunkbench.report.claims.evidence import PAGED, STAR, Evidence, Judge
from chunkbench.report.claims.judgement import (
    ABOVE_1,
    ClaimVerdict,
    Figure,
    Judgement,
    Stated,
    absent,
    decided,
    judged,
    listed,
)
from chunkbench.report.claims.judges import bounded, each_reached, largest
from chunkbench.report.printed import printed_of_trees

CHUNK = "chunk_attn"
_LENGTHS = (1024, 2048, 4096)
_HERE = "this machine's ratio of arithmetic to bandwidth, and its PagedAttn kernel, differ from the paper's A100"
_SLOWER = f"above 1, but below the paper's: {_HERE}"
_OTHERS = ("naive", "xformers", "flash_attn")
_AGNOSTIC = (*_OTHERS, *PAGED)

FLAT, CASCADE = "plan_flat", "plan_cascade"
NODE_WISE, TREE_FUSED, PACK = "plan_node_wise", "plan_tree_fused", "plan_pack"
_FASTTREE, _PAT, _DEFT = "trees-fasttree", "trees-pat", "trees-deft"
_TENSORRT, _FLASHINFER = "trees-tensorrt", "trees-flashinfer"
_ANY = dict.fromkeys(("n_p", "n_c", "batch_size", "tree", "heads", "kv_heads", "chunk_size"), ...)
_KERNELS = "the paper compares kernels on a GPU; here only the plan differs, and nodes are whole chunks of 64 tokens"
_COPIED = ", and all read the same K and V, while the paper's baselines have a copy for each query"


def _at_any_length(judge: Callable[..., Judgement], **stated: Any) -> Judge:
    """The judge of a cost per step, which texts state for n_c = 64. Where nobody measured 64, the n_c with the most
    points counts, and the reason says so: it only moves the length of the context at which the cost is asked.
    """

    def judged_there(evidence: Evidence) -> Judgement:
        first = judge(evidence, **stated)
        if first.verdict != "not measured":
            return first
        for n_c in evidence.completions:
            found = judge(evidence.after(n_c), **stated)
            if found.verdict != "not measured":
                return replace(found, reason=f"{found.reason}; at n_c = {n_c}, because 64 was not measured")
        return first

    return judged_there


def _all_shared(evidence: Evidence, slow: tuple[str, ...]) -> list[Figure]:
    """Latency of the faster of these implementations over ChunkAttn's, at each length with the whole prompt shared."""
    found = (evidence.ratios(slow, CHUNK, "over {of} at {n_p}", n_p=n_p, n_s=n_p) for n_p in _LENGTHS)
    return list(chain(*found))


def over_star(evidence: Evidence, stated: Stated) -> Judgement:
    """Latency of the faster PagedAttn* over ChunkAttn's, with the whole prompt shared."""
    needs = "ChunkAttn and PagedAttn* at n_s = n_p", "table3"
    return bounded(_all_shared(evidence, STAR), stated, "{each}", needs, "{:.2f}x", _SLOWER, 1)


def abstract(evidence: Evidence, stated: Stated) -> Judgement:
    """Latency of the faster PagedAttn, which the abstract names, over ChunkAttn's. PagedAttn* is only reported."""
    star = listed(_all_shared(evidence, STAR), "{:.2f}x") or "not measured"
    words = (
        f"PagedAttn, which the text names, decides: {{each}}. PagedAttn*: {star}. The paper's own Table 3 gives 6.35 "
        "to 6.79 over PagedAttn and 2.76 to 3.22 over PagedAttn*"
    )
    needs = "ChunkAttn and PagedAttn at n_s = n_p", "table3"
    return bounded(_all_shared(evidence, PAGED), stated, words, needs, "{:.2f}x", _SLOWER, 1)


def order(evidence: Evidence, stated: Stated) -> Judgement:
    """Latency ratios of each implementation without sharing: over ChunkAttn, and over the faster PagedAttn*. They are
    taken at all points with shared tokens.
    """
    found = (
        point.ratio(of, base, "for {of} over {against} at {n_p} / {n_s}")
        for point in evidence.points(n_p=_LENGTHS.__contains__, n_s=bool)
        for base in (CHUNK, STAR)
        for of in (*_OTHERS, PAGED)
    )
    words = "{least:.2f} to {most:.2f} times the latency, {count} pairs; the worst is {it:.2f} {where}"
    needs = "implementations that do not share beside ChunkAttn and PagedAttn*, at n_s > 0", "table3"
    return bounded(filter(None, found), stated, words, needs)


def plan(evidence: Evidence, stated: Stated) -> Judgement:
    """Mean time of planning a step over mean time of the kernel, in each round of each point."""
    found = []
    for point in evidence.points(n_p=_LENGTHS.__contains__, n_s=...):
        row = point.rows[CHUNK]
        rounds = zip(row.timed.plan_samples_us, row.timed.samples_us, strict=False) if row.timed else ()
        # The only step of a round shows no spreading.
        if shares := [fmean(plans) / fmean(steps) for plans, steps in rounds if len(plans) > 1]:
            found.append(Figure.of_repeats(shares, [row], "at {n_p} / {n_s}".format(**point.axes)))
    words = "planning takes {least:.2%} to {most:.2%} of the kernel's time at {count} points; the worst is {where}"
    return bounded(found, stated, words, ("the planning time of ChunkAttn", "table3"))


def naive(evidence: Evidence, over_chunk: float, over_star: float) -> Judgement:
    """Latency of Naive over that of ChunkAttn and of the faster PagedAttn*, at 4096 shared tokens."""
    point = evidence.point(n_p=4096, n_s=4096)
    chunk, star = (point.ratio("naive", base, "over {against}") if point else None for base in (CHUNK, STAR))
    if chunk is None or star is None:
        return absent("Naive, PagedAttn* and ChunkAttn at n_p = n_s = 4096", "table3")
    return _reached((chunk, over_chunk), (star, over_star))


def hardware_cache(evidence: Evidence, stated: Stated) -> Judgement:
    """Share of PagedAttn's latency that PagedAttn* saves with the same kernel. As in the other claims, the faster
    PagedAttn decides.
    """
    point = evidence.point(n_p=4096, n_s=4096)
    pairs = [point.ratio(*kernel, "for {of}") for kernel in zip(STAR, PAGED, strict=True)] if point else []
    by_paged = sorted(filter(None, pairs), key=lambda pair: pair.rows[1].derived.latency_us or inf)
    savings = [pair.saved for pair in by_paged]
    if not savings:
        return absent("PagedAttn and PagedAttn* at n_p = n_s = 4096", "table3")
    words = " and ".join(f"{saving.value:.0%} {saving.place}" for saving in savings)
    reason = f"physical sharing alone reduces the latency by {words}; the paper's Table 3 has 53%, and 57% at 1024"
    return decided(savings[0], stated, reason, savings, f"less than the paper's: {_HERE}", 0)


def no_regression(evidence: Evidence, stated: Stated) -> Judgement:
    """Latency of ChunkAttn over that of the faster PagedAttn*, at each length with nothing shared."""
    found = chain(*(evidence.ratios(CHUNK, STAR, "at n_p = {n_p}", n_p=n_p, n_s=0) for n_p in _LENGTHS))
    words = "latency of ChunkAttn over that of the faster PagedAttn*: {each}"
    return bounded(found, stated, words, ("ChunkAttn and PagedAttn* at n_s = 0", "table3"))


def agnostic(evidence: Evidence, stated: Stated) -> Judgement:
    """Spread of the latency over n_s for each implementation and each n_p: (largest - smallest) / smallest.

    Points with different n_s are measured minutes apart. Meanwhile the machine's speed may change, which calibration
    kernels show. If their times changed by at least the low end of the spread's interval, that may explain the
    spread.
    """
    spreads: list[tuple[Figure, float]] = []  # the second value: how much the machine's own speed changed
    for n_p in _LENGTHS:
        points = list(evidence.points(n_p=n_p, n_s=...))
        for name in _AGNOSTIC:
            timed_points = [point for point in points if name in point.rows and timed(point.rows[name].facts)]
            rows = [point.rows[name] for point in timed_points]
            if len(rows) < 2:
                continue
            latencies = [row.derived.latency_us or 0.0 for row in rows]
            lows, highs = [row.derived.low_us or 0.0 for row in rows], [row.derived.high_us or 0.0 for row in rows]
            ends = max(0.0, max(lows) / min(highs) - 1), max(highs) / min(lows) - 1
            place = f"{timed_points[0].label(name)} at {n_p}"
            spreads.append((Figure(spread(latencies), *ends, tuple(rows), place), _drift(rows)))
    if not spreads:
        return absent("implementations that do not share, at several n_s", "table3")
    worst, drift = max(spreads, key=lambda entry: entry[0].value)
    words = f"the latencies differ by up to {worst.value:.0%} over n_s ({worst.place})"
    cause = f"the machine's own speed changed by {drift:.0%} between these points" if drift >= worst.low else ""
    return decided(worst, stated, words, [figure for figure, _ in spreads], cause)


def _drift(rows: Sequence[Row]) -> float:
    """Spread of the calibration kernels' times over these cases: how much the machine's speed changed. 0 without
    calibration.
    """
    by_case = [row.timed.calibration if row.timed else () for row in rows]
    if not all(by_case):
        return 0.0
    arithmetic = [median(entry.arithmetic_us for entry in rounds) for rounds in by_case]
    memory = [median(entry.memory_us or 0.0 for entry in rounds) for rounds in by_case]
    return max(spread(arithmetic), spread(memory) if all(memory) else 0.0)


def figure3(evidence: Evidence, n_c: int, over_paged: float, over_star: float) -> Judgement:
    """ChunkAttn's token rate over that of the faster PagedAttn, and over that of the faster PagedAttn*."""
    point = evidence.point(n_p=2048, n_s=2048, n_c=n_c)
    paged, star = (point.ratio(column, CHUNK, "over {of}") if point else None for column in (PAGED, STAR))
    if paged is None or star is None:
        return absent(f"ChunkAttn, PagedAttn and PagedAttn* at n_p = n_s = 2048 up to n_c = {n_c}", "figure3")
    return _reached((star, over_star), (paged, over_paged))


def decay(evidence: Evidence) -> Judgement:
    """Whether the speed-up over the faster PagedAttn* shrinks from one n_c to the next."""
    points = sorted(evidence.points(n_p=2048, n_s=2048, n_c=...), key=lambda point: point.axes["n_c"])
    speedups = [speedup for point in points if (speedup := point.ratio(STAR, CHUNK, "at {n_c}"))]
    if len(speedups) < 3:
        return absent("ChunkAttn and PagedAttn* at n_p = n_s = 2048, at three or more n_c", "figure3")
    words, first, last = listed(speedups, "{:.2f}x"), speedups[0], speedups[-1]
    grows = any(after.low > before.high for before, after in pairwise(speedups))
    if grows or last.low >= first.high:
        return judged("does not hold", words, [last, *speedups])
    return judged("holds" if last.high < first.low else "cannot tell", words, [last, *speedups])


def figure4_peak(evidence: Evidence, stated: int) -> Judgement:
    """The batch size at which the token rate of implementations without sharing is highest. All batches are of one
    experiment, and some of them are larger than `stated`; otherwise a peak there could not be seen.
    """
    own = evidence.of("figure4")
    points = sorted(own.points(n_p=2048, n_s=2048, batch_size=...), key=lambda point: point.axes["batch_size"])
    peaks: list[Figure] = []
    verdicts: list[ClaimVerdict] = []
    for name in _AGNOSTIC:
        cases = {p.axes["batch_size"]: p for p in points if name in p.rows and p.rows[name].derived.token_rate}
        if len(cases) > 2 and stated in cases and max(cases) > stated:
            rows = {size: point.rows[name] for size, point in cases.items()}
            best, verdict = _peak({size: _rates(row) for size, row in rows.items()}, stated)
            place = f"{cases[stated].label(name)} at {best}{_PEAKS[verdict].format(stated)}"
            peaks.append(Figure.counted(best, *rows.values(), place=place))
            verdicts.append(verdict)
    if not peaks:
        return absent(
            f"implementations that do not share, at n_p = n_s = 2048 and three batch sizes up to more than {stated}",
            "figure4",
        )
    reason = f"the token rate is highest for {', '.join(peak.place for peak in peaks)}"
    keys = tuple(dict.fromkeys(key for peak in peaks for key in peak.keys))
    least, most = (float(end(peak.value for peak in peaks)) for end in (min, max))
    worst = min(verdicts, key=list(_PEAKS).index)
    reason += f"; {_HERE}" if worst == "different here" else ""
    return Judgement(worst, reason, least if least == most else None, least, most, keys)


_PEAKS: Mapping[ClaimVerdict, str] = {
    "does not hold": " (at no larger batch is it clearly lower)",
    "different here": "",
    "cannot tell": " (the interval at {} overlaps it)",
    "holds": "",
}
"""Verdict on a peak -> the words that follow the peak's place in the text. The worst verdict comes first."""


def _peak(rates: Mapping[int, tuple[float, float, float]], stated: int) -> tuple[int, ClaimVerdict]:
    """(Batch size with the highest rate, verdict); `rates`: batch size -> (low, value, high). Without a fall after the
    highest rate there is no peak to be elsewhere.
    """
    best = max(rates, key=lambda size: rates[size][1])
    low, _, _ = rates[best]
    if best == stated:
        return best, "holds"
    if rates[stated][2] >= low:
        return best, "cannot tell"
    return best, "different here" if rates[max(rates)][2] < low else "does not hold"


def figure4_growth(evidence: Evidence, stated: Stated) -> Judgement:
    """ChunkAttn's token rate with 96 sequences over its rate with 16. The two cases are timed minutes apart."""
    points = [evidence.point(n_p=2048, n_s=2048, batch_size=b) for b in (16, 96)]
    rows = [point.rows[CHUNK] for point in points if point is not None]
    if len(rows) < 2:
        return absent("ChunkAttn with 16 and with 96 sequences at n_p = n_s = 2048", "figure4")
    (low, value, high), (low_many, value_many, high_many) = (_rates(row) for row in rows)
    figure = Figure(value_many / value, low_many / high, high_many / low, tuple(rows))
    cause = f"{_HERE}: 16 sequences already keep few cores busy"
    return decided(figure, stated, f"{figure.value:.2f} times the token rate", cause=cause, cause_above=1)


def _rates(row: Row) -> tuple[float, float, float]:
    """Token rate with its interval: (low, value, high)."""
    tokens, us = row.facts.batch_size * 1e6, row.derived.latency_us
    assert us is not None
    return tokens / (row.derived.high_us or us), tokens / us, tokens / (row.derived.low_us or us)


def _reached(*ratios: tuple[Figure, float]) -> Judgement:
    """Judge measured ratios. Each has to reach the paper's ratio, which is printed with one decimal."""
    words = listed((figure for figure, _ in ratios), "{:.2f}x")
    return each_reached([(figure, Stated("at least", paper, 1)) for figure, paper in ratios], words, _SLOWER, 1)


def fasttree(evidence: Evidence, slow: str, stated: Stated, cause: str = _KERNELS) -> Judgement:
    """Speed-up of FastTree's plan over another plan, mean over all trees that share. The paper does not say which mean
    it prints.
    """
    return _average(evidence, _FASTTREE, slow, TREE_FUSED, stated, cause)


def greedy(evidence: Evidence, stated: Stated) -> Judgement:
    """Largest speed-up, over trees, of FastTree's greedy split over one item per node."""
    found = _ratios(evidence, _FASTTREE, NODE_WISE, TREE_FUSED)
    words, needs = "{least:.2f}x to {most:.2f}x over {count} points", (f"{NODE_WISE} beside {TREE_FUSED}", _FASTTREE)
    cause = "the paper's kernel pads queries to tiles of a GPU's matrix units"
    return bounded(found, stated, words, needs, cause=cause, cause_above=1, order=largest)


def pat(evidence: Evidence, slow: str, stated: Stated, one_root: bool = False) -> Judgement:
    """Share of the latency that PAT's plan saves: the mean of the savings over trees that share, as PAT's scripts
    compute it.
    """
    found = _ratios(evidence, _PAT, PACK, slow, tree=lambda tree: _shares(tree) and (not one_root or len(tree) == 1))
    saved, needs = [mean.saved for mean in _mean(fmean, found)], (f"{slow} beside {PACK}", _PAT)
    return bounded(saved, stated, "{each}", needs, "{:.1%} less time", _KERNELS, 0)


def pat_naive(evidence: Evidence, stated: Stated) -> Judgement:
    """Latency of one item per node over that of PAT's plan, with the heads of Llama3-8B."""
    return _average(evidence, _PAT, NODE_WISE, PACK, stated, _KERNELS, heads=32, kv_heads=8)


def pat_no_sharing(evidence: Evidence, stated: Stated) -> Judgement:
    """Latency of PAT's plan over that of reading per sequence, where nothing is shared. The worst point decides."""
    found = _ratios(evidence, _PAT, PACK, FLAT, tree=lambda tree: not _shares(tree))
    needs = f"{PACK} beside {FLAT} on trees without sharing", _PAT
    words = "{least:.2f} to {most:.2f} times the latency over {count} points; the worst is {it:.2f}"
    return bounded(found, stated, words, needs)


def deft_node(evidence: Evidence) -> Judgement:
    """Latency of reading per sequence over that of reading each node once, for branches after 4000 shared tokens. The
    paper's DeFT-Node is slower than reading per sequence.
    """
    papers = {b: _printed("deft", "radix_attention", "deft_node", where=f"few-shot {b}") for b in (20, 30, 50)}
    found: list[Figure] = []
    for b, paper in papers.items():
        place = f"with {b} sequences (printed: {paper:.2f})"
        found += _ratios(evidence, _DEFT, FLAT, NODE_WISE, place, tree=((4000, b),))[-1:]
    stated = Stated("at most", round(max(papers.values()), 2), 2)
    needs = f"{FLAT} beside {NODE_WISE} with 20, 30 or 50 sequences after 4000 shared tokens", _DEFT
    words = "{each}. The paper's kernel leaves a node uncut; here long items are cut for all threads, whatever the plan"
    return bounded(found, stated, words, needs, "{:.2f}x")


def on_a_gpu(evidence: Evidence, slow: str, fast: str, experiment: str, prefix: int, stated: Stated) -> Judgement:
    """Latency of `slow` over that of `fast` on a GPU, with 256 sequences after a shared prefix."""
    found = _ratios(evidence, experiment, slow, fast, tree=((prefix, 256),), device="cuda")[-1:]
    needs = f"{slow} beside {fast} on a GPU, with 256 sequences after {prefix:,} shared tokens", experiment
    return bounded(found, stated, "{each}", needs, "{:.2f}x", "both kernels are of another year and GPU", 1)


def tensorrt(evidence: Evidence) -> Judgement:
    """The cascade's speed-up for each prefix length. Each has to reach the printed one."""
    points = evidence.of(_TENSORRT).points(CASCADE, **_ANY)
    ratios = {point.axes["tree"][0][0]: point.ratio(FLAT, CASCADE) for point in points}
    speedups = {prefix: ratio for prefix, ratio in sorted(ratios.items()) if ratio}
    if not speedups:
        return absent(f"{CASCADE} beside {FLAT} with 128 beams", _TENSORRT)
    papers = {prefix: printed_of_trees("tensorrt", where=str(prefix), quantity="speedup") for prefix in speedups}
    words = ", ".join(f"{speedups[n].value:.2f}x after {n:,} tokens (printed: {papers[n]:g})" for n in speedups)
    wins = next((n for n in speedups if speedups[n].low > 1), None)
    words += (
        f"; the cascade is faster from {wins:,} tokens on (printed: 256)" if wins else "; the cascade is never faster"
    )
    cause = "the GPU's cascade takes 84 to 93 us after prefixes of every length; a CPU computes for every beam"
    return each_reached([(speedups[n], Stated("at least", papers[n], 2)) for n in speedups], words, cause, 1)


def issue595(evidence: Evidence, stated: Stated) -> Judgement:
    """Two ratios of latencies. 1 KV head: with the cascade over without the cascade. 8 KV heads: without the cascade
    over with the cascade. The issue reports more than 1 for both.
    """
    cases = ((1, CASCADE, FLAT), (8, FLAT, CASCADE))
    found = [_ratios(evidence, _FLASHINFER, *pair, heads=8, kv_heads=kv_heads)[-1:] for kv_heads, *pair in cases]
    if not all(found):
        return absent(f"{CASCADE} beside {FLAT} with 1 and with 8 KV heads", _FLASHINFER)
    (ratio_of_one,), (ratio_of_eight,) = found
    one = _printed("flashinfer", "flashinfer_cascade", "flashinfer", kv_heads="1")
    eight = _printed("flashinfer", "flashinfer", "flashinfer_cascade", kv_heads="8")
    words = (
        f"with 1 KV head the cascade takes {ratio_of_one.value:.2f} times as long as reading per sequence "
        f"(printed: {one:.2f}); with 8 KV heads reading per sequence takes {ratio_of_eight.value:.2f} times as long "
        f"(printed: {eight:.2f}). A GPU's cascade is three launches, which take longer than one KV head; here it is "
        "one call"
    )
    figures = stated.worst_first([ratio_of_one, ratio_of_eight])
    return decided(figures[0], stated, words, figures)


def _ratios(evidence: Evidence, experiment: str, of: str, against: str, place: str = "", **axes: Any) -> list[Figure]:
    """The ratio of latencies at each point of an experiment, for all trees unless `axes` says otherwise."""
    return evidence.of(experiment).ratios(of, against, place, **{**_ANY, **axes})


def _mean(mean: Callable[[Sequence[float]], float], found: Sequence[Figure]) -> list[Figure]:
    """Mean of ratios; empty if there are none. The interval runs from the mean of the low ends to the mean of the high
    ends. It is wider than needed, as if all ratios erred to the same side.
    """
    if not found:
        return []
    value, low, high = (mean([getattr(one, name) for one in found]) for name in ("value", "low", "high"))
    rows = tuple(row for one in found for row in one.rows)
    return [Figure(value, low, high, rows, f"on average over {len(found)} points")]


def _average(
    evidence: Evidence, experiment: str, slow: str, fast: str, stated: Stated, cause: str, **axes: Any
) -> Judgement:
    """Judge a speed-up against the paper's: the geometric mean over trees that share. Below 1, only the plan explains
    it.
    """
    found = _mean(geometric_mean, _ratios(evidence, experiment, slow, fast, tree=_shares, **axes))
    each = f"{{:.{stated.decimals + 1}f}}x"
    return bounded(found, stated, "{each}", (f"{slow} beside {fast}", experiment), each, cause, 1)


def eight_bits(evidence: Evidence, n_p: int, stated: Stated) -> Judgement:
    """Latency with K and V in the compute type over that with fp8, where no tokens are shared: of vLLM's kernels, which
    the text is about, else of ours."""
    pairs = (PAGED[1], f"{PAGED[1]}_fp8"), (CHUNK, f"{CHUNK}_fp8")
    for slow, fast in pairs:
        found = evidence.ratios(slow, fast, "at batch {batch_size}", n_p=n_p, n_s=0, batch_size=...)
        if found:
            break
    words = "{each} with " + ("our kernel" if slow == CHUNK else "vLLM's kernel")
    needs = "a kernel with K and V in fp8 beside the same one without", "kv8"
    return bounded(found, stated, words, needs, "{:.2f}x", "the text's CPU has matrix instructions (AMX)", 0)


def _printed(paper: str, slow: str, fast: str, **named: str) -> float:
    """Ratio of two printed latencies: that of `slow` over that of `fast`."""
    return printed_of_trees(paper, implementation=slow, **named) / printed_of_trees(paper, implementation=fast, **named)


def _at_least(paper: str, against: str, quantity: str, decimals: int, upper: str = "") -> Stated:
    """The paper's printed speed-up over another kernel, as a bound that the plan has to reach. `upper`: the kernel with
    the upper end, if the plan stands beside two kernels.
    """
    printed = (printed_of_trees(paper, against=name, quantity=quantity) for name in (against, upper) if name)
    return Stated("at least", next(printed), decimals, next(printed, inf))


def _shares(tree: Sequence[tuple[int, Any]]) -> bool:
    """Whether sequences share any tokens; sequences that share none stand after a root of 0 tokens."""
    return any(tokens for tokens, _ in tree)


JUDGES: Mapping[str, Judge] = {
    "T3-star": _at_any_length(over_star, stated=Stated("at least", 2.8, 1, most=3.2)),
    "T3-order": _at_any_length(order, stated=ABOVE_1),
    "T3-naive": _at_any_length(naive, over_chunk=6.6, over_star=2.1),
    # The text's 52%, and the largest saving of Table 3.
    "T3-hwcache": _at_any_length(hardware_cache, stated=Stated("at least", 0.52, 3, most=0.565)),
    "T3-noregress": _at_any_length(no_regression, stated=Stated("at most", 1.0, 2)),
    # Our bounds: a spread over n_s that counts as none, and a plan that costs nothing.
    "T3-agnostic": _at_any_length(agnostic, stated=Stated("at most", 0.03, 2)),
    "T3-plan": _at_any_length(plan, stated=Stated("at most", 0.01, 3)),
    "ABS-speedup": _at_any_length(abstract, stated=Stated("at least", 3.2, 1, most=4.8)),
    "F3-512": partial(figure3, n_c=512, over_paged=3.6, over_star=2.0),
    "F3-2048": partial(figure3, n_c=2048, over_paged=2.3, over_star=1.5),
    "F3-decay": decay,
    "F4-peak": _at_any_length(figure4_peak, stated=16),
    "F4-growth": _at_any_length(figure4_growth, stated=Stated("at least", 1.45, 2)),
    "FT-flat": partial(
        fasttree,
        slow=FLAT,
        stated=_at_least("fasttree", "flashinfer", "mean_speedup", 1, "flash_attention"),
        cause=_KERNELS + _COPIED,
    ),
    "FT-cascade": partial(fasttree, slow=NODE_WISE, stated=_at_least("fasttree", "cascade", "mean_speedup", 1)),
    "FT-greedy": partial(greedy, stated=_at_least("fasttree", "fasttree_without_greedy", "largest_speedup", 1)),
    "PAT-flat": partial(pat, slow=FLAT, stated=_at_least("pat", "flashinfer", "mean_cut", 3, "flash_attention")),
    "PAT-cascade": partial(pat, slow=NODE_WISE, stated=_at_least("pat", "cascade", "mean_cut", 3), one_root=True),
    "PAT-naive": partial(pat_naive, stated=_at_least("pat", "pat_naive", "mean_speedup", 3)),
    "PAT-no-sharing": partial(pat_no_sharing, stated=Stated("at most", 1.0, 2)),
    "DF-node": deft_node,
    # On a GPU every plan's items are cut so that all multiprocessors get as many tokens, as DeFT-Flatten does.
    "DF-speedup": partial(
        on_a_gpu, slow=FLAT, fast=NODE_WISE, experiment=_DEFT, prefix=1000, stated=Stated("at least", 3.59, 2)
    ),
    "TRT-cascade": tensorrt,
    "FI-595": partial(issue595, stated=ABOVE_1),
    "KV-8k": partial(eight_bits, n_p=8192, stated=Stated("at least", 1.61, 2)),
    "KV-128": partial(eight_bits, n_p=128, stated=Stated("at least", 1.14, 2)),
    "FI-31x": partial(
        on_a_gpu,
        slow="vllm_paged_attn_star",
        fast="flashinfer_cascade",
        experiment="trees-gpu",
        prefix=32768,
        stated=Stated("at least", 31, 0),
    ),
}
