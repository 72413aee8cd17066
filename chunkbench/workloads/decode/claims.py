"""Claims on decode attention: Table 3, Figures 3 and 4, the abstract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import median

from chunkbench.analysis.derive import Row
from chunkbench.analysis.points import measured as timed
from chunkbench.analysis.statistics import spread
from chunkbench.paper.claims.evidence import PAGED, STAR, Evidence
from chunkbench.paper.claims.judgement import Figure, Judge, Judgement, Stated, absent, decided, judged

CHUNK = "chunk_attn"
_LENGTHS = (1024, 2048, 4096)
_HERE = "this machine's ratio of arithmetic to bandwidth, and its PagedAttn kernel, differ from the paper's A100"
_INDEPENDENT = Stated("at most", 0.03, 2)
"""Largest spread over n_s that still counts as independent of n_s."""
_SAVING = Stated("at most", 0.526, 3)
"""Of Table 3, from which the text's "up to 52%" is cut."""
_GROWTH = Stated("at least", 1.45, 2)
_AGNOSTIC = ("naive", "xformers", "flash_attn", *PAGED)


def star(evidence: Evidence) -> Judgement:
    """ChunkAttn against the faster PagedAttn*, with the whole prompt shared."""
    speedups = _over_star(evidence)
    return _at_least(speedups, 2.8) if speedups else _table3("ChunkAttn and PagedAttn* at n_s = n_p")


def abstract(evidence: Evidence) -> Judgement:
    """The figures of `star` against the abstract's range, which differs from the range of section 4.1."""
    speedups = _over_star(evidence)
    if not speedups:
        return _table3("ChunkAttn and PagedAttn* at n_s = n_p")
    judgement = _at_least(speedups, 3.2)
    paper = "the paper's own Table 3 gives 2.76 to 3.22 over PagedAttn* and 6.35 to 6.79 over PagedAttn"
    return replace(judgement, reason=f"{judgement.reason}; {paper}")


def naive(evidence: Evidence) -> Judgement:
    """Naive over ChunkAttn and over the faster PagedAttn*, at 4096 shared tokens."""
    point = evidence.point(n_p=4096, n_s=4096)
    over_chunk = point.ratio("naive", CHUNK) if point else None
    fastest_star = point.fastest(STAR, CHUNK) if point else None
    if point is None or over_chunk is None or fastest_star is None:
        return _table3("Naive, PagedAttn* and ChunkAttn at n_p = n_s = 4096")
    over_star = point.ratio("naive", fastest_star[0])
    if over_star is None:
        return _table3("Naive and PagedAttn*")
    return _ratios({"over ChunkAttn": (over_chunk, 6.6), f"over {point.label(fastest_star[0])}": (over_star, 2.1)})


def hardware_cache(evidence: Evidence) -> Judgement:
    """1 - PagedAttn* / PagedAttn of the same kernel; the kernel with the largest saving decides."""
    point = evidence.point(n_p=4096, n_s=4096)
    savings = []
    for shared, private in zip(STAR, PAGED, strict=True):
        ratio = point.ratio(shared, private) if point else None
        if point is not None and ratio is not None:
            saving = Figure(1 - ratio.value, 1 - ratio.high, 1 - ratio.low, ratio.rows)
            savings.append((point.label(shared), saving))
    if not savings:
        return _table3("PagedAttn and PagedAttn* at n_p = n_s = 4096")
    savings.sort(key=lambda pair: -pair[1].value)
    words = " and ".join(f"{figure.value:.0%} for {label}" for label, figure in savings)
    best, figures = savings[0][1], [figure for _, figure in savings]
    reason = f"physical sharing alone reduces the latency by {words}"
    if best.low <= 0:
        return judged("does not hold" if best.high <= 0 else "cannot tell", reason, figures)
    return decided(best, _SAVING, reason, figures, f"more than the paper's 52%: {_HERE}")


def no_regression(evidence: Evidence) -> Judgement:
    """ChunkAttn over the faster PagedAttn* with nothing shared; the length with the highest ratio decides."""
    ratios = []
    for n_p in _LENGTHS:
        point = evidence.point(n_p=n_p, n_s=0)
        fastest_star = point.fastest(STAR, CHUNK) if point else None
        ratio = point.ratio(CHUNK, fastest_star[0]) if point and fastest_star else None
        if ratio is not None:
            ratios.append((n_p, ratio))
    if not ratios:
        return _table3("ChunkAttn and PagedAttn* at n_s = 0")
    ratios.sort(key=lambda pair: -pair[1].value)
    words = ", ".join(f"{ratio.value:.2f} at n_p = {n_p}" for n_p, ratio in sorted(ratios))
    reason = f"latency of ChunkAttn over that of the faster PagedAttn*: {words}"
    return decided(ratios[0][1], Stated("at most", 1.0, 1), reason, [ratio for _, ratio in ratios])


def agnostic(evidence: Evidence) -> Judgement:
    """(largest - smallest) / smallest latency over n_s, of each implementation at each length.

    Points with different n_s are measured minutes apart: where the calibration kernels changed as much as the latency,
    the machine's speed may explain the figure.
    """
    spreads: list[tuple[str, Figure, float]] = []  # the last: how much the machine's own speed changed
    for n_p in _LENGTHS:
        points = list(evidence.points(n_p=n_p, n_s=...))
        for name in _AGNOSTIC:
            timed_points = [point for point in points if name in point.rows and timed(point.rows[name].facts)]
            rows = [point.rows[name] for point in timed_points]
            if len(rows) < 2:
                continue
            latencies = [row.derived.latency_us or 0.0 for row in rows]
            lows, highs = [row.derived.low_us or 0.0 for row in rows], [row.derived.high_us or 0.0 for row in rows]
            least = max(0.0, max(lows) / min(highs) - 1)
            value = Figure(spread(latencies), least, max(highs) / min(lows) - 1, tuple(rows))
            spreads.append((f"{timed_points[0].label(name)} at {n_p}", value, _drift(rows)))
    if not spreads:
        return _table3("implementations that do not share, at several n_s")
    where, worst, drift = max(spreads, key=lambda entry: entry[1].value)
    words = f"the latencies differ by up to {worst.value:.0%} over n_s ({where})"
    cause = f"the machine's own speed changed by {drift:.0%} between these points" if drift >= worst.low else ""
    return decided(worst, _INDEPENDENT, words, [figure for _, figure, _ in spreads], cause)


def _drift(rows: Sequence[Row]) -> float:
    """Spread of the calibration kernels over these cases: how much the machine's speed changed; 0 without them."""
    by_case = [row.timed.calibration if row.timed else () for row in rows]
    if not all(by_case):
        return 0.0
    arithmetic = [median(entry.arithmetic_us for entry in rounds) for rounds in by_case]
    memory = [median(entry.memory_us or 0.0 for entry in rounds) for rounds in by_case]
    return max(spread(arithmetic), spread(memory) if all(memory) else 0.0)


def figure3(evidence: Evidence, n_c: int, over_paged: float, over_star: float) -> Judgement:
    """ChunkAttn's token rate over those of the faster PagedAttn and the faster PagedAttn*."""
    point = evidence.point(n_p=2048, n_s=2048, n_c=n_c)
    fastest_paged = point.fastest(PAGED, CHUNK) if point else None
    fastest_star = point.fastest(STAR, CHUNK) if point else None
    if point is None or fastest_paged is None or fastest_star is None:
        return absent(f"ChunkAttn, PagedAttn and PagedAttn* at n_p = n_s = 2048 up to n_c = {n_c}", "figure3")
    return _ratios(
        {
            f"over {point.label(fastest_star[0])}": (fastest_star[1], over_star),
            f"over {point.label(fastest_paged[0])}": (fastest_paged[1], over_paged),
        }
    )


def decay(evidence: Evidence) -> Judgement:
    """The speed-up over the faster PagedAttn* from one n_c to the next."""
    speedups: list[tuple[int, Figure]] = []
    for point in evidence.points(n_p=2048, n_s=2048, n_c=...):
        fastest_star = point.fastest(STAR, CHUNK)
        if fastest_star is not None:
            speedups.append((point.axes["n_c"], fastest_star[1]))
    speedups.sort(key=lambda pair: pair[0])
    if len(speedups) < 3:
        return absent("ChunkAttn and PagedAttn* at n_p = n_s = 2048, at three or more n_c", "figure3")
    words = ", ".join(f"{speedup.value:.2f}x at {n_c}" for n_c, speedup in speedups)
    first, last = speedups[0][1], speedups[-1][1]
    grows = any(after.low > before.high for (_, before), (_, after) in pairwise(speedups))
    figures = [last, *(speedup for _, speedup in speedups)]
    if grows or last.low >= first.high:
        return judged("does not hold", words, figures)
    return judged("holds" if last.high < first.low else "cannot tell", words, figures)


def figure4_peak(evidence: Evidence) -> Judgement:
    """The batch size at which the token rate of implementations without sharing is highest."""
    points = sorted(evidence.points(n_p=2048, n_s=2048, batch_size=...), key=lambda point: point.axes["batch_size"])
    peaks: dict[str, tuple[int, list[Row]]] = {}
    for name in _AGNOSTIC:
        rates = [
            (row.derived.token_rate, point.axes["batch_size"], row)
            for point in points
            if (row := point.rows.get(name)) is not None and row.derived.token_rate is not None
        ]
        if len(rates) > 2:
            b = max(rates, key=lambda rate: rate[0])[1]
            label = next(point.label(name) for point in points if name in point.rows)
            peaks[label] = (b, [row for _, _, row in rates])
    if not peaks:
        return absent("implementations that do not share, at n_p = n_s = 2048 and three batch sizes", "figure4")
    words = ", ".join(f"{label} at {b}" for label, (b, _) in peaks.items())
    sizes = [float(b) for b, _ in peaks.values()]
    keys = tuple(dict.fromkeys(row.facts.key for _, rows in peaks.values() for row in rows))
    reason = f"the token rate is highest for {words} sequences"
    least, most = min(sizes), max(sizes)
    common = least if least == most else None
    if common == 16:
        return Judgement("holds", reason, common, least, most, keys)
    return Judgement("different here", f"{reason}; {_HERE}", common, least, most, keys)


def figure4_growth(evidence: Evidence) -> Judgement:
    """ChunkAttn's token rate at 96 sequences over its rate at 16. The two are timed minutes apart."""
    points = [evidence.point(n_p=2048, n_s=2048, batch_size=b) for b in (16, 96)]
    rows = [point.rows[CHUNK] for point in points if point is not None]
    if len(rows) < 2:
        return absent("ChunkAttn with 16 and with 96 sequences at n_p = n_s = 2048", "figure4")
    (low, value, high), (low_many, value_many, high_many) = (_rates(row) for row in rows)
    figure = Figure(value_many / value, low_many / high, high_many / low, tuple(rows))
    words = f"{figure.value:.2f} times the token rate"
    return decided(figure, _GROWTH, words, [], f"{_HERE}: 16 sequences already keep few cores busy")


def _rates(row: Row) -> tuple[float, float, float]:
    """Token rate with its interval: (low, value, high)."""
    tokens, us = row.facts.batch_size * 1e6, row.derived.latency_us
    assert us is not None
    return tokens / (row.derived.high_us or us), tokens / us, tokens / (row.derived.low_us or us)


def _over_star(evidence: Evidence) -> dict[str, Figure]:
    """Latency of the faster PagedAttn* over ChunkAttn's at each length with everything shared, smallest first."""
    speedups = {}
    for n_p in _LENGTHS:
        point = evidence.point(n_p=n_p, n_s=n_p)
        fastest_star = point.fastest(STAR, CHUNK) if point else None
        if point is not None and fastest_star is not None:
            speedups[f"over {point.label(fastest_star[0])} at {n_p}"] = fastest_star[1]
    return dict(sorted(speedups.items(), key=lambda pair: pair[1].value))


def _at_least(speedups: Mapping[str, Figure], paper: float) -> Judgement:
    return _ratios({name: (figure, paper) for name, figure in speedups.items()})


def _ratios(ratios: Mapping[str, tuple[Figure, float]]) -> Judgement:
    """Judge measured ratios, each against the paper's, which it must reach; the paper prints one decimal.

    The one that is the furthest below, or the least above, decides.
    """
    words = ", ".join(f"{figure.value:.2f}x {name}" for name, (figure, _) in ratios.items())
    worst, paper = min(ratios.values(), key=lambda entry: entry[0].value / entry[1])
    figures = [figure for figure, _ in ratios.values()]
    cause = f"above 1, but below the paper's: {_HERE}" if worst.high > 1 else ""
    return decided(worst, Stated("at least", paper, 1), words, figures, cause)


def _table3(what: str) -> Judgement:
    return absent(what, "table3")


JUDGES: Mapping[str, Judge] = {
    "T3-star": star,
    "T3-naive": naive,
    "T3-hwcache": hardware_cache,
    "T3-noregress": no_regression,
    "T3-agnostic": agnostic,
    "ABS-speedup": abstract,
    "F3-512": partial(figure3, n_c=512, over_paged=3.6, over_star=2.0),
    "F3-2048": partial(figure3, n_c=2048, over_paged=2.3, over_star=1.5),
    "F3-decay": decay,
    "F4-peak": figure4_peak,
    "F4-growth": figure4_growth,
}
