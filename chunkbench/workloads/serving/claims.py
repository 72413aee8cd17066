"""Judges of claims on servers under load: Table 4, Figure 5, and the cost of a prefix tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.claims.evidence import Evidence, Judge, latency_ratio
from chunkbench.report.claims.judgement import Bound, Figure, Judgement, Stated, absent, judged, listed
from chunkbench.report.claims.judges import bounded
from chunkbench.report.numbers import extent
from chunkbench.workloads.serving.metrics import METRICS
from chunkbench.workloads.serving.objective import SustainedRate, objective_s, spots, sustained_rate
from chunkbench.workloads.serving.result import ServingResult

OURS, THEIRS, RADIX = "chunk_llama", "vllm", "chunk_llama_radix"
_HERE = "a smaller model, shorter answers and this machine's ratio of prefill to decoding differ from the paper's"
_ANSWER_TOKENS = 512
"""Tokens of an answer in the paper's Table 4."""
_STATED_S = 0.040
"""The objective of the paper's Figure 5, in seconds per token."""


def sustained(evidence: Evidence, n_p: int, stated: Stated) -> Judgement:
    """Judges the highest request rate that meets the objective: ChunkLlama's divided by vLLM's, with the whole prompt
    shared. The claim can hold only with the paper's own objective.
    """
    pairs = [pair for pair in evidence.last(_pair) if pair.axes["n_p"] == n_p]
    objective = objective_s((pair.rows[THEIRS] for pair in pairs), n_p)
    shared = [pair.rows for pair in pairs if pair.axes["n_s"] == n_p]
    if objective is None or len(shared) < 2:
        return absent(f"ChunkLlama and vLLM at n_p = n_s = {n_p} at several rates, and vLLM at n_s = 0", "figure5")
    our_rate, vllm_rate = (sustained_rate(spots(rows[name] for rows in shared), objective) for name in (OURS, THEIRS))
    keys = tuple(rows[name].facts.key for rows in shared for name in (OURS, THEIRS))
    limit = f"{objective * 1e3:.3g} ms/token"
    if our_rate is None or vllm_rate is None:
        names = [name for name, rate in (("ChunkLlama", our_rate), ("vLLM", vllm_rate)) if rate is None]
        words = f"no measured rate of {' or '.join(names)} meets {limit}"
        if our_rate is None:
            return Judgement("does not hold" if vllm_rate else "cannot tell", words, rows=keys)
        return Judgement("different here", f"{words}; {_HERE}", rows=keys)
    words = f"{_words(our_rate)} against {_words(vllm_rate)} requests/s below {limit}"
    if vllm_rate.at_least and our_rate.at_least:
        return Judgement("cannot tell", f"{words}: both meet the objective at all measured rates", rows=keys)
    gain = our_rate.per_s / vllm_rate.per_s
    bound: Bound = "at least" if our_rate.at_least else "at most" if vllm_rate.at_least else ""
    reached = stated.verdict(gain, gain) == "holds"
    of_the_text = round(objective, 3) == _STATED_S
    if reached and of_the_text:
        return Judgement("holds", words, gain, gain, gain, keys, bound)
    if our_rate.at_least and not reached:
        return Judgement("cannot tell", f"{words}: the highest rate is too low to tell", gain, gain, gain, keys, bound)
    if gain <= 1:
        return Judgement("does not hold", words, gain, gain, gain, keys, bound)
    says = "" if of_the_text else f"; the text says {_STATED_S * 1e3:.0f} ms/token"
    return Judgement("different here", f"{words}{says}; {_HERE}", gain, gain, gain, keys, bound)


def no_regression(evidence: Evidence, stated: Stated) -> Judgement:
    """Judges the normalized latency of ChunkLlama divided by vLLM's, with nothing shared. The worst point decides."""
    found = evidence.last(_latency)
    words = "normalized latency of ChunkLlama over vLLM's: {each}"
    return bounded(found, stated, words, ("ChunkLlama and vLLM at n_s = 0", "table4"))


def latency(evidence: Evidence, stated: Stated) -> Judgement:
    """Judges by which fraction ChunkLlama's normalized latency is smaller than vLLM's, with the whole prompt shared."""
    return _smaller(evidence.last(_saved_latency), "normalized latency", stated)


def peak_kv(evidence: Evidence, stated: Stated) -> Judgement:
    """Judges by which fraction ChunkLlama's peak K/V memory is smaller than vLLM's, with the whole prompt shared."""
    return _smaller(evidence.last(partial(_saved, "peak_kv_bytes")), "peak K/V memory", stated)


def peak_batch(evidence: Evidence, stated: Stated) -> Judgement:
    """Judges by which fraction ChunkLlama's peak batch is smaller than vLLM's, with the whole prompt shared.

    A point where a batch reaches its limit cannot prove the claim. If there is such a point, the verdict is "cannot
    tell", unless another point refutes the claim.
    """
    found = evidence.last(partial(_saved, "peak_batch"))
    capped = [figure for figure in found if any(_capped(row) for row in figure.rows)]
    free = [figure for figure in found if figure not in capped]
    if not capped or any(stated.verdict(figure.low, figure.high) == "wrong" for figure in free):
        return _smaller(free, "peak batch", stated)
    reason = f"ChunkLlama's peak batch is smaller than vLLM's by {listed(capped, '{:.0%}')}, but there one of the two "
    reason += "is all requests of an arrival seed, or the most sequences of a step: the cap decides, not the system"
    return judged("cannot tell", reason, stated.worst_first(capped))


def _smaller(found: Sequence[Figure], what: str, stated: Stated) -> Judgement:
    """Judges a share by which ChunkLlama needs less than vLLM.

    With shorter answers than the paper's, the shared prompt is a larger part of a request, and sharing saves more. So
    such a share cannot show that the claim holds.
    """
    words = f"ChunkLlama's {what} is smaller than vLLM's by {{each}}"
    needs = f"the {what} of ChunkLlama and vLLM at n_s = n_p", "table4"
    judgement = bounded(found, stated, words, needs, "{:.0%}", _HERE, 0)
    tokens = {row.facts.n_c for figure in found for row in figure.rows if isinstance(row.facts, ServingResult)}
    if judgement.verdict not in ("holds", "more than stated") or tokens == {_ANSWER_TOKENS}:
        return judgement
    reason = f"{judgement.reason}; answers have {extent(tokens)} tokens, in the text {_ANSWER_TOKENS}"
    return replace(judgement, verdict="different here", reason=reason)


def bookkeeping(evidence: Evidence, stated: Stated) -> Judgement:
    """Judges the fraction of the steps' time that our engine's prefix tree takes if chunks are retained. The largest
    fraction decides.
    """
    needs = "the steps of ChunkLlama, radix, with the time of its prefix tree", "table4"
    cause = "the steps of a smaller model are shorter"
    return bounded(evidence.last(_tree_share), stated, "share of the steps' time: {each}", needs, "{:.2%}", cause)


def _latency(point: Group) -> Figure | None:
    return latency_ratio(point.rows, OURS, THEIRS, _place(point.axes)) if _in_table4(point, 0) else None


def _saved_latency(point: Group) -> Figure | None:
    if not _in_table4(point, point.axes["n_p"]):
        return None
    over = latency_ratio(point.rows, OURS, THEIRS, _place(point.axes))
    return over.saved if over else None


def _capped(row: Row) -> bool:
    """Whether the largest batch of an arrival seed is all its requests, or the most sequences of a step."""
    seeds = row.facts.measurements if isinstance(row.facts, ServingResult) else ()
    caps = [(seed.server.peak_batch, len(seed.requests)) for seed in seeds if seed.server]
    return any(peak in (requests, row.facts.batch_size) for peak, requests in caps)


def _saved(metric: str, point: Group) -> Figure | None:
    if not _in_table4(point, point.axes["n_p"]):
        return None
    pair = point.rows[OURS], point.rows[THEIRS]
    mine, other = (METRICS[metric].value(row.facts) for row in pair)
    return Figure.counted(1 - mine / other, *pair, place=_place(point.axes)) if mine is not None and other else None


def _tree_share(point: Group) -> Figure | None:
    """Share of the prefix tree in the steps' time: median and range over the arrival seeds."""
    row = point.rows.get(RADIX)
    if row is None or not isinstance(row.facts, ServingResult):
        return None
    servers = [measured.server for measured in row.facts.measurements if measured.server]
    shares = [facts.tree_s / facts.step_s for facts in servers if facts.tree_s and facts.step_s]
    axes = {name: point.axes[name] for name in ("n_p", "n_s", "load", "clients")}
    place = ", ".join(f"{name} = {value}" for name, value in axes.items() if value is not None)
    return Figure.of_repeats(shares, [row], f"at {place}") if shares else None


def _pair(point: Group) -> Group | None:
    """The point, if our system and vLLM were both measured there under load, with one answer to a prompt; else
    None."""
    rows = [point.rows.get(name) for name in (OURS, THEIRS)]
    one_length = isinstance(point.axes["n_p"], int) and point.axes["n_s"] is not None
    if point.axes["samples"] or point.axes["beams"]:
        return None
    return point if one_length and all(row and row.derived.latency_us for row in rows) else None


def _in_table4(point: Group, n_s: int) -> bool:
    """Whether requests share n_s tokens and arrive at most as fast as vLLM can answer them. Beyond that rate all
    waiting requests would fill both batches.
    """
    return _pair(point) is not None and point.axes["n_s"] == n_s and (point.axes["load"] or 0) <= 100


def _words(rate: SustainedRate) -> str:
    return f"{'at least ' if rate.at_least else ''}{rate.per_s:.3g}"


def _place(axes: Mapping[str, Any]) -> str:
    return f"at n_p = {axes['n_p']}" + (f", load {axes['load']}%" if axes["load"] is not None else "")


JUDGES: Mapping[str, Judge] = {
    "F5-1024": partial(sustained, n_p=1024, stated=Stated("at least", 1.6, 1)),
    "F5-2048": partial(sustained, n_p=2048, stated=Stated("at least", 2.3, 1)),
    "T4-kv": partial(peak_kv, stated=Stated("at least", 0.70, 2, most=0.90)),
    "T4-batch": partial(peak_batch, stated=Stated("at least", 0.20, 2, most=0.40)),
    "T4-latency": partial(latency, stated=Stated("at least", 0.30, 2, most=0.38)),
    "T4-noregress": partial(no_regression, stated=Stated("at most", 1.03, 2)),
    "RA-bookkeeping": partial(bookkeeping, stated=Stated("at most", 0.003, 3)),
}
