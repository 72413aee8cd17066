"""Claims on decode attention: Table 3, Figures 3 and 4, the abstract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from chunkbench.analysis.derive import Row
from chunkbench.analysis.points import measured as timed
from chunkbench.analysis.statistics import spread
from chunkbench.paper.claims.evidence import PAGED, STAR, Evidence
from chunkbench.paper.claims.judgement import Figure, Judgement, Verdict, absent, judged

CHUNK = "chunk_attn"
_LENGTHS = (1024, 2048, 4096)
_HERE = "this machine's proportion of arithmetic to bandwidth, and its PagedAttn, are not those of the paper's A100"
_INDEPENDENT = 0.03
_ROUNDED = 0.05
"""The text rounds its ratios to one digit."""
_GROWTH = 1.45
_UNCLEAR = "less than the paper's, but by no more than the rounds scatter: measure longer"
_AGNOSTIC = ("naive", "xformers", "flash_attn", *PAGED)


def star(evidence: Evidence) -> Judgement:
    """Against the faster PagedAttn*, the whole prompt shared."""
    found = _over_star(evidence)
    return _at_least(found, 2.8) if found else _table3("ChunkAttn beside PagedAttn* at n_s = n_p")


def abstract(evidence: Evidence) -> Judgement:
    """The same figures against the abstract's range, which is not the section's."""
    found = _over_star(evidence)
    if not found:
        return _table3("ChunkAttn beside PagedAttn* at n_s = n_p")
    own = _at_least(found, 3.2)
    paper = "the paper's own Table 3 gives 2.76 to 3.22 over PagedAttn* and 6.35 to 6.79 over PagedAttn"
    return Judgement(own.verdict, f"{own.reason}; {paper}", own.measured, own.low, own.high, own.rows)


def naive(evidence: Evidence) -> Judgement:
    """Both halves at 4096 shared tokens."""
    place = evidence.place(n_p=4096, n_s=4096)
    over_chunk = place.ratio("naive", CHUNK) if place else None
    other = place.fastest(STAR, CHUNK) if place else None
    if place is None or over_chunk is None or other is None:
        return _table3("Naive, PagedAttn* and ChunkAttn at n_p = n_s = 4096")
    over_star = place.ratio("naive", other[0])
    if over_star is None:
        return _table3("Naive beside PagedAttn*")
    reached = {f"over {CHUNK}": (over_chunk, 6.6), f"over {place.label(other[0])}": (over_star, 2.1)}
    return _several({name.replace(CHUNK, "ChunkAttn"): pair for name, pair in reached.items()})


def hardware_cache(evidence: Evidence) -> Judgement:
    """1 - PagedAttn* / PagedAttn of the same kernel: the largest of those measured."""
    place = evidence.place(n_p=4096, n_s=4096)
    found = []
    for shared, private in zip(STAR, PAGED, strict=True):
        one = place.ratio(shared, private) if place else None
        if place is not None and one is not None:
            found.append((place.label(shared), Figure(1 - one.value, 1 - one.high, 1 - one.low, one.rows)))
    if not found:
        return _table3("PagedAttn and PagedAttn* at n_p = n_s = 4096")
    found.sort(key=lambda pair: -pair[1].value)
    words = " and ".join(f"{figure.value:.0%} for {label}" for label, figure in found)
    best = found[0][1]
    verdict: Verdict = "does not hold" if best.low <= 0 else "holds" if best.value <= 0.57 else "different here"
    more = "" if verdict != "different here" else f": more than the paper's 52%; {_HERE}"
    return judged(verdict, f"physical sharing alone takes {words} off{more}", [figure for _, figure in found])


def no_regression(evidence: Evidence) -> Judgement:
    """ChunkAttn over the faster PagedAttn* with nothing shared: the worst of the lengths."""
    found = []
    for n_p in _LENGTHS:
        place = evidence.place(n_p=n_p, n_s=0)
        other = place.fastest(STAR, CHUNK) if place else None
        one = place.ratio(CHUNK, other[0]) if place and other else None
        if one is not None:
            found.append((n_p, one))
    if not found:
        return _table3("ChunkAttn beside PagedAttn* at n_s = 0")
    found.sort(key=lambda pair: -pair[1].value)
    words = ", ".join(f"{one.value:.2f} at n_p = {n_p}" for n_p, one in sorted(found))
    worst = found[0][1]
    verdict: Verdict = "does not hold" if worst.low > 1 else "holds"
    doubt = " (the interval of the worst reaches 1)" if worst.low <= 1 < worst.value else ""
    reason = f"ChunkAttn's latency over the faster PagedAttn*'s: {words}{doubt}"
    return judged(verdict, reason, [one for _, one in found])


def agnostic(evidence: Evidence) -> Judgement:
    """(largest - smallest) / smallest over n_s, of each implementation at each length.

    Points with other n_s are measured minutes apart: what is no more than the machine's own speed changed by meanwhile,
    as its yardsticks tell, says nothing of n_s.
    """
    found: list[tuple[str, Figure, bool]] = []
    for n_p in _LENGTHS:
        places = list(evidence.places(n_p=n_p, n_s=...))
        for name in _AGNOSTIC:
            there = [place for place in places if name in place.rows and timed(place.rows[name].facts)]
            rows = [place.rows[name] for place in there]
            if len(rows) < 2:
                continue
            latencies = [row.derived.latency_us or 0.0 for row in rows]
            lows, highs = [row.derived.low_us or 0.0 for row in rows], [row.derived.high_us or 0.0 for row in rows]
            least = max(0.0, max(lows) / min(highs) - 1)
            value = Figure(spread(latencies), least, max(highs) / min(lows) - 1, tuple(rows))
            possible = least <= max(_INDEPENDENT, _drift(rows))
            found.append((f"{there[0].label(name)} at {n_p}", value, possible))
    if not found:
        return _table3("implementations that do not share, at several n_s")
    worst = max(found, key=lambda one: one[1].value)
    words = f"the latencies differ by up to {worst[1].value:.0%} over n_s ({worst[0]})"
    if worst[1].value <= _INDEPENDENT:
        return judged("holds", words, [worst[1], *(one[1] for one in found)])
    if all(possible for _, _, possible in found):
        doubt = "no more than the rounds scatter or the machine's own speed changed between points: "
        doubt += "this run can neither show 3% nor rule it out"
        return judged("not measured", f"{words}, {doubt}", [worst[1]])
    clear = max((one for one in found if not one[2]), key=lambda one: one[1].low)
    reason = f"{clear[0]}: at least {clear[1].low:.0%} between two n_s"
    return judged(
        "does not hold", f"{words}; {reason}, more than rounds and the machine's own speed explain", [clear[1]]
    )


def _drift(rows: Sequence[Row]) -> float:
    """By how much the yardsticks beside these cases differ, as `spread` has it; 0 where a run has none."""
    several = [row.facts.yardsticks for row in rows]
    if not all(several):
        return 0.0
    arithmetic = [median(one.arithmetic_us for one in yardsticks) for yardsticks in several]
    memory = [median(one.memory_us or 0.0 for one in yardsticks) for yardsticks in several]
    return max(spread(arithmetic), spread(memory) if all(memory) else 0.0)


def figure3(evidence: Evidence, n_c: int, over_paged: float, over_star: float) -> Judgement:
    """Token rates over the faster PagedAttn and the faster PagedAttn*."""
    place = evidence.place(n_p=2048, n_s=2048, n_c=n_c)
    paged = place.fastest(PAGED, CHUNK) if place else None
    other = place.fastest(STAR, CHUNK) if place else None
    if place is None or paged is None or other is None:
        return absent(f"ChunkAttn, PagedAttn and PagedAttn* at n_p = n_s = 2048 to n_c = {n_c}", "figure3")
    return _several(
        {
            f"over {place.label(other[0])}": (other[1], over_star),
            f"over {place.label(paged[0])}": (paged[1], over_paged),
        }
    )


def decay(evidence: Evidence) -> Judgement:
    """The speed-up over the faster PagedAttn* from one n_c to the next."""
    found: list[tuple[int, Figure]] = []
    for place in evidence.places(n_p=2048, n_s=2048, n_c=...):
        other = place.fastest(STAR, CHUNK)
        if other is not None:
            found.append((place.axes["n_c"], other[1]))
    found.sort(key=lambda pair: pair[0])
    if len(found) < 3:
        return absent("ChunkAttn beside PagedAttn* at n_p = n_s = 2048, to three n_c at least", "figure3")
    words = ", ".join(f"{one.value:.2f}x at {n_c}" for n_c, one in found)
    first, last = found[0][1], found[-1][1]
    grows = [after for (_, before), (after, one) in pairwise(found) if one.low > before.high]
    figures = [last, *(one for _, one in found)]
    if grows or last.value >= first.value:
        return judged("does not hold", words, figures)
    return judged("holds", words, figures)


def figure4_peak(evidence: Evidence) -> Judgement:
    """Where the token rate of those that do not share is highest."""
    places = sorted(evidence.places(n_p=2048, n_s=2048, batch_size=...), key=lambda place: place.axes["batch_size"])
    peaks: dict[str, tuple[int, list[Row]]] = {}
    for name in _AGNOSTIC:
        rates = [
            (row.derived.token_rate, place.axes["batch_size"], row)
            for place in places
            if (row := place.rows.get(name)) is not None and row.derived.token_rate is not None
        ]
        if len(rates) > 2:
            b = max(rates, key=lambda rate: rate[0])[1]
            label = next(place.label(name) for place in places if name in place.rows)
            peaks[label] = (b, [row for _, _, row in rates])
    if not peaks:
        return absent("implementations that do not share, at n_p = n_s = 2048 and three batch sizes", "figure4")
    words = ", ".join(f"{label} at {b}" for label, (b, _) in peaks.items())
    at = [float(b) for b, _ in peaks.values()]
    used = tuple(row for _, rows in peaks.values() for row in rows)
    figure = Figure(median(at), min(at), max(at), used)
    reason = f"the token rate is highest for {words} sequences"
    if min(at) == max(at) == 16:
        return judged("holds", reason, [figure])
    return judged("different here", f"{reason}; {_HERE}", [figure])


def figure4_growth(evidence: Evidence) -> Judgement:
    """ChunkAttn's token rate at 96 over that at 16 sequences; the two were timed minutes apart."""
    few, many = (evidence.place(n_p=2048, n_s=2048, batch_size=b) for b in (16, 96))
    rows = [place.rows[CHUNK] for place in (few, many) if place is not None]
    if len(rows) < 2:
        return absent("ChunkAttn with 16 and with 96 sequences at n_p = n_s = 2048", "figure4")
    (low, value, high), (low_many, value_many, high_many) = (_rates(row) for row in rows)
    figure = Figure(value_many / value, low_many / high, high_many / low, tuple(rows))
    words = f"{figure.value:.2f} times the token rate"
    if figure.value >= _GROWTH - _ROUNDED:
        return judged("holds", words, [figure])
    if figure.high >= _GROWTH:
        return judged("not measured", f"{words}, {_UNCLEAR}", [figure])
    return judged("different here", f"{words}; {_HERE}: few cores are busy with 16 sequences already", [figure])


def _rates(row: Row) -> tuple[float, float, float]:
    """Token rate with its interval: low, value, high."""
    b, found = row.facts.batch_size * 1e6, row.derived
    assert found.latency_us is not None
    return b / (found.high_us or found.latency_us), b / found.latency_us, b / (found.low_us or found.latency_us)


def _over_star(evidence: Evidence) -> dict[str, Figure]:
    """Latency of the faster PagedAttn* over ChunkAttn's, by length, least first."""
    found = {}
    for n_p in _LENGTHS:
        place = evidence.place(n_p=n_p, n_s=n_p)
        other = place.fastest(STAR, CHUNK) if place else None
        if place is not None and other is not None:
            found[f"over {place.label(other[0])} at {n_p}"] = other[1]
    return dict(sorted(found.items(), key=lambda pair: pair[1].value))


def _at_least(found: Mapping[str, Figure], paper: float) -> Judgement:
    return _several({name: (figure, paper) for name, figure in found.items()})


def _several(found: Mapping[str, tuple[Figure, float]]) -> Judgement:
    """Speed-ups that shall reach the paper's, each its own; the first stands for them."""
    words = ", ".join(f"{figure.value:.2f}x {name}" for name, (figure, _) in found.items())
    figures: Sequence[Figure] = [figure for figure, _ in found.values()]
    if all(figure.value >= paper - _ROUNDED for figure, paper in found.values()):
        return judged("holds", words, figures)
    if all(figure.low > 1 for figure in figures):
        short = [name for name, (figure, paper) in found.items() if figure.value < paper - _ROUNDED]
        if all(found[name][0].high >= found[name][1] for name in short):
            return judged("not measured", f"{words}: {', '.join(short)} {_UNCLEAR}", figures)
        less = f"{words}: faster, but by less than in the paper {', '.join(short)}; {_HERE}"
        return judged("different here", less, figures)
    return judged("does not hold", words, figures)


def _table3(what: str) -> Judgement:
    return absent(what, "table3")
