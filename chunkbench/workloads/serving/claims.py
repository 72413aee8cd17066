"""Claims on servers under load: Table 4, Figure 5, and what a prefix tree costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

from chunkbench.analysis.derive import Row
from chunkbench.analysis.ratio import ratio
from chunkbench.paper.claims.evidence import Evidence
from chunkbench.paper.claims.judgement import Bound, Figure, Judge, Judgement, Stated, absent, decided
from chunkbench.workloads.serving.metrics import METRICS
from chunkbench.workloads.serving.objective import SustainedRate, objective_s, spots, sustained_rate
from chunkbench.workloads.serving.result import ServingResult

OURS, THEIRS, RADIX = "chunk_llama", "vllm", "chunk_llama_radix"
_HERE = "a smaller model, shorter answers and this machine's ratio of prefill to decoding differ from the paper's"


@dataclass(frozen=True)
class _Pair:
    """Our system and vLLM at a point."""

    n_p: int
    n_s: int
    load: int | None
    ours: Row
    theirs: Row

    @property
    def overloaded(self) -> bool:
        """Whether requests come faster than vLLM answers them: then both batches hold all that wait. Table 4 is below
        that."""
        return self.load is not None and self.load > 100


def no_regression(evidence: Evidence) -> Judgement:
    """Normalized latency of ChunkLlama over vLLM's with nothing shared; the highest ratio decides."""
    figures = []
    for pair in _pairs(evidence):
        if pair.n_s or pair.overloaded:
            continue
        latency = ratio(pair.ours.facts, pair.theirs.facts, 0.95)
        if latency is not None:
            figures.append((pair, Figure(latency.value, latency.low, latency.high, (pair.ours, pair.theirs))))
    if not figures:
        return absent("ChunkLlama and vLLM at n_s = 0", "table4")
    words = ", ".join(f"{figure.value:.2f} at {_place(pair)}" for pair, figure in figures)
    figures.sort(key=lambda entry: -entry[1].value)
    reason = f"normalized latency of ChunkLlama over vLLM's: {words}"
    return decided(figures[0][1], Stated("at most", 1.03, 2), reason, [figure for _, figure in figures])


def kv_memory(evidence: Evidence) -> Judgement:
    """How much less peak K/V memory ChunkLlama takes than vLLM, with the whole prompt shared."""
    return _reduction(evidence, "peak K/V memory", "peak_kv_bytes", 0.70)


def batch(evidence: Evidence) -> Judgement:
    """How much smaller ChunkLlama's peak batch is than vLLM's, with the whole prompt shared."""
    return _reduction(evidence, "peak batch", "peak_batch", 0.20)


def sustained(evidence: Evidence, n_p: int, paper: float) -> Judgement:
    """Request rate that ChunkLlama sustains under the objective, over vLLM's, with the whole prompt shared."""
    pairs = [pair for pair in _pairs(evidence) if pair.n_p == n_p]
    objective = objective_s((pair.theirs for pair in pairs), n_p)
    shared = [pair for pair in pairs if pair.n_s == n_p]
    if objective is None or len(shared) < 2:
        return absent(f"ChunkLlama and vLLM at n_p = n_s = {n_p} at several rates, and vLLM at n_s = 0", "figure5")
    ours, theirs = (
        sustained_rate(spots(getattr(pair, side) for pair in shared), objective) for side in ("ours", "theirs")
    )
    rows = tuple(row for pair in shared for row in (pair.ours, pair.theirs))
    keys = tuple(row.facts.key for row in rows)
    limit = f"{objective * 1e3:.3g} ms/token"
    if ours is None or theirs is None:
        name = "ChunkLlama" if ours is None else "vLLM"
        return Judgement("different here", f"{name} does not meet {limit} at any measured rate; {_HERE}", rows=keys)
    words = f"{_words(ours)} against {_words(theirs)} requests/s below {limit}"
    if theirs.at_least and ours.at_least:
        return Judgement("cannot tell", f"{words}: both meet it at all measured rates", rows=keys)
    gain = ours.per_s / theirs.per_s
    bound: Bound = "at least" if ours.at_least else "at most" if theirs.at_least else ""
    if theirs.at_least:  # ours does not meet it at all rates, so the gain is below 1
        return Judgement("different here", f"{words}; {_HERE}", gain, gain, gain, keys, bound)
    if Stated("at least", paper, 1).verdict(gain, gain) == "holds":
        return Judgement("holds", words, gain, gain, gain, keys, bound)
    if ours.at_least:
        return Judgement("cannot tell", f"{words}: the highest rate is too low to tell", gain, gain, gain, keys, bound)
    return Judgement("different here", f"{words}; {_HERE}", gain, gain, gain, keys)


def bookkeeping(evidence: Evidence) -> Judgement:
    """Share of the steps' time that the tree of our engine with retention takes; the largest decides. The value is the
    median over the arrival seeds, and the interval their range."""
    found: dict[str, tuple[str, Figure]] = {}  # where runs share a point, the last one counts
    for point in evidence.groups:
        row = point.rows.get(RADIX)
        if row is None or not isinstance(row.facts, ServingResult) or row.derived.latency_us is None:
            continue
        servers = [measured.server for measured in row.facts.measurements if measured.server]
        shares = [facts.tree_s / facts.step_s for facts in servers if facts.tree_s and facts.step_s]
        if shares:
            axes = {name: point.axes[name] for name in ("n_p", "n_s", "load", "clients")}
            place = ", ".join(f"{name} = {value}" for name, value in axes.items() if value is not None)
            found[repr(point.axes)] = place, Figure(median(shares), min(shares), max(shares), (row,))
    if not found:
        return absent("the steps of ChunkLlama, radix, with the time of its prefix tree", "table4")
    words = ", ".join(f"{figure.value:.2%} at {place}" for place, figure in found.values())
    figures = sorted((figure for _, figure in found.values()), key=lambda figure: -figure.value)
    cause = "the steps of a smaller model are shorter"
    return decided(figures[0], Stated("at most", 0.003, 3), f"share of the steps' time: {words}", figures, cause)


def _reduction(evidence: Evidence, what: str, metric: str, least: float) -> Judgement:
    found = []
    for pair in _pairs(evidence):
        if pair.n_s != pair.n_p or pair.overloaded:
            continue
        mine, other = (METRICS[metric].value(row.facts) for row in (pair.ours, pair.theirs))
        if mine is not None and other:
            saved = 1 - mine / other
            found.append((pair, Figure(saved, saved, saved, (pair.ours, pair.theirs))))
    if not found:
        return absent(f"the {what} of ChunkLlama and vLLM at n_s = n_p", "table4")
    words = ", ".join(f"{figure.value:.0%} at {_place(pair)}" for pair, figure in found)
    found.sort(key=lambda entry: entry[1].value)
    worst, reason = found[0][1], f"ChunkLlama's {what} is smaller than vLLM's by {words}"
    cause = _HERE if worst.value > 0 else ""
    return decided(worst, Stated("at least", least, 2), reason, [figure for _, figure in found], cause)


def _pairs(evidence: Evidence) -> Iterator[_Pair]:
    """The points where both systems were measured under load; where runs share a point, the last one counts."""
    pairs: dict[str, _Pair] = {}
    for point in evidence.groups:
        axes, ours, theirs = point.axes, point.rows.get(OURS), point.rows.get(THEIRS)
        if ours is None or theirs is None or not (ours.derived.latency_us and theirs.derived.latency_us):
            continue
        if isinstance(axes["n_p"], int) and axes["n_s"] is not None:
            pairs[repr(axes)] = _Pair(axes["n_p"], axes["n_s"], axes["load"], ours, theirs)
    return iter(pairs.values())


def _words(rate: SustainedRate) -> str:
    return f"{'at least ' if rate.at_least else ''}{rate.per_s:.3g}"


def _place(pair: _Pair) -> str:
    return f"n_p = {pair.n_p}" + (f", load {pair.load}%" if pair.load is not None else "")


JUDGES: Mapping[str, Judge] = {
    "F5-1024": partial(sustained, n_p=1024, paper=1.6),
    "F5-2048": partial(sustained, n_p=2048, paper=2.3),
    "T4-kv": kv_memory,
    "T4-batch": batch,
    "T4-noregress": no_regression,
    "RA-bookkeeping": bookkeeping,
}
