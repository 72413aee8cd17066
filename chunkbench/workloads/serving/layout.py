"""Reports a serving run: the paper's Table 4 for this machine, and figures that explain the latencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import geometric_mean
from typing import TYPE_CHECKING

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store import Manifest
from chunkbench.report.layout import Layout, Report
from chunkbench.report.metric import Metric
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import NOTHING, count, extent, ms_of_s, percent, significant, times
from chunkbench.report.printed import table4
from chunkbench.report.quantities import Quantity, normalized_latency, paper, quantities
from chunkbench.report.view import Body, View
from chunkbench.workloads.serving import claims, constrained, constrained_claims, gap, sustained
from chunkbench.workloads.serving.machine_share import best_rates, bound_by, least_step_s, machine_share
from chunkbench.workloads.serving.metrics import METRICS
from chunkbench.workloads.serving.objective import goodput_per_s, objective_s
from chunkbench.workloads.serving.result import EqualAnswers, ServingResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEGEND = (
    "normalized latency = (last token - due) / tokens, mean over the requests of an arrival seed, median over seeds; "
    "time counts from when a request was due, so queueing is included (section 4.2 of the paper)",
    "first token = first token - due; each token = (last - first) / (tokens - 1); medians over seeds",
    (
        "peak K/V = largest number of bytes in blocks or chunks that live requests refer to, without those kept for "
        "later requests; saved by sharing = 1 - this peak / the peak of the same server without sharing"
    ),
    "overhead = the part of a step outside of the model: scheduling, tree, plan, sampling; prefix tree = the part of "
    "overhead for match, join, append, leave, evict, without plan, K and V",
)


_MACHINE = (
    "least time of a step = weights read once, and K/V as the server reads it, or FLOPs, at the highest rates probed "
    "in the run, summed over products, attention and head; its share of the gap = this time / the median gap between "
    "tokens"
)
_NEAR_TIE = (
    "equal answers = greedy answers in float32 with the tokens that transformers generates, compared before the "
    "clock starts; near tie = at the first different token, the two best logits of transformers differ by less than "
    "{}, the error of float32"
)


def body(view: View) -> Body:
    if constrained.asked(view):
        tables = (*constrained.tables(view), _servers(view))
        return Body(constrained.headline(view), tables, legend=constrained.LEGEND, timing=_timing(view))
    objectives = {n_p: objective_s(view.rows, n_p) for n_p in {group.axes["n_p"] for group in view.groups}}
    known = {n_p: objective for n_p, objective in objectives.items() if objective is not None}
    equal = _equal_answers(view)
    parts = gap.tables(view)
    tables = (*sustained.tables(view, known), _latency(view, known), _servers(view), *parts, *_answers(view, equal))
    errors = [entry.near_tie_below for entry in equal.values()]
    ties = [_NEAR_TIE.format(f"{max(errors):.1g}"), *_said(view, equal)] if errors else []
    rows = [row.facts for row in view.rows]
    bounded = any(isinstance(facts, ServingResult) and facts.machine_limits is not None for facts in rows)
    legend = (
        *_LEGEND,
        *([sustained.LEGEND] if known else []),
        *([_MACHINE] if bounded else []),
        *([gap.LEGEND] if parts else []),
        *ties,
    )
    return Body(_headline(view), tables, legend=legend, timing=_timing(view))


def _latency(view: View, objectives: Mapping[int, float]) -> Table:
    """A table of latencies for every system at every point."""

    def goodput(group: Group, row: Row) -> Cell:
        objective = objectives.get(group.axes["n_p"])
        if objective is None or not isinstance(row.facts, ServingResult):
            return Cell(NOTHING)
        return Cell(significant(goodput_per_s(row.facts, objective), 3))

    def machine(told: Callable[[ServingResult], str]) -> Callable[[Group, Row], Cell]:
        return lambda group, row: Cell(told(row.facts) if isinstance(row.facts, ServingResult) else NOTHING)

    best = best_rates(row.facts for row in view.rows)
    latency, seeds, ratio = normalized_latency(view.columns.name(view.baseline))
    requests = ("first_token_p50", "first_token_p99", "per_token_p50", "per_token_p99", "gap_s", "answered_per_s")
    lines: list[Quantity | Metric] = [
        latency,
        seeds,
        ratio,
        ("  the same, paper", lambda group, row: Cell(times(_paper_ratio(group, row, view.baseline)), "quiet")),
        *(METRICS[name] for name in requests),
        ("  answered within the objective", goodput),
        ("least time of a step, ms", machine(lambda facts: ms_of_s(least_step_s(facts, best)))),
        ("  its share of the gap", machine(lambda facts: percent(machine_share(facts, best)))),
        ("  bound by", machine(lambda facts: bound_by(facts, best) or NOTHING)),
    ]
    return quantities(view, "Latency under load", lines)


def _equal_answers(view: View) -> dict[str, EqualAnswers]:
    """System -> comparison of its answers with those of transformers, if the experiment asked for one."""
    rows = [row.facts for group in view.groups for row in group.rows.values()]
    found = {row.implementation: row.equal_answers for row in rows if isinstance(row, ServingResult)}
    return {name: entry for name in view.columns.ids if (entry := found.get(name)) is not None}


def _answers(view: View, equal: Mapping[str, EqualAnswers]) -> list[Table]:
    """A table that says how many answers of each system equal those of transformers."""
    if not equal:
        return []
    columns = (
        Column[tuple[str, EqualAnswers]]("system", lambda line: view.columns.name(line[0]), align="left"),
        Column[tuple[str, EqualAnswers]]("equal answers", lambda line: _equal(line[1])),
    )
    return [Table("The same questions to all systems, greedy, in float32", columns, tuple(equal.items()))]


def _said(view: View, equal: Mapping[str, EqualAnswers]) -> list[str]:
    """Lines with one of the questions, and every different answer with the systems that gave it."""
    question = " ".join(next(iter(equal.values())).question.split())
    answers: dict[str, list[str]] = {}
    for name, entry in equal.items():
        answers.setdefault(" ".join(entry.answer.split()), []).append(view.columns.name(name))
    return [f"one of the questions: {question}", *(f"{', '.join(names)}: {said}" for said, names in answers.items())]


def _equal(equal: EqualAnswers) -> str:
    if not equal.compared:
        return "no token ids"
    ties = f", {count(equal.near_ties, 'near tie')}" if equal.near_ties else ""
    return f"{equal.compared - equal.near_ties - equal.different} of {equal.compared}{ties}"


def _servers(view: View) -> Table:
    """A table of what the servers did: memory, batch, cached tokens and step times."""
    lines: list[Quantity | Metric] = [
        METRICS["peak_kv_bytes"],
        ("  saved by sharing", lambda group, row: Cell(percent(saved_by_sharing(group, row)))),
        METRICS["peak_process_bytes"],
        METRICS["peak_batch"],
        ("  the same, paper", paper(lambda group, row: _paper(group, row, "peak_batch_size"))),
        *(METRICS[name] for name in ("cached_share", "step_s", "overhead_s", "tree_s")),
    ]
    return quantities(view, "Memory, batch and steps of the servers", lines)


_ALONE = {
    "chunk_llama": "chunk_llama_no_sharing",
    "chunk_llama_radix": "chunk_llama_no_sharing",
    "vllm_prefix_caching": "vllm",
}
"""System whose sequences share K/V -> the same server without sharing."""


def saved_by_sharing(group: Group, row: Row) -> float | None:
    """Share of the peak K/V memory that sharing saves: 1 - that of this system / that of the same server without
    sharing. None if one of them is not known. Figure 15 of the PagedAttention paper has the mean over time instead.
    """
    alone = group.rows.get(_ALONE.get(row.facts.implementation, ""))
    peaks = [METRICS["peak_kv_bytes"].value(one.facts) for one in (row, alone) if one is not None]
    return 1 - peaks[0] / peaks[1] if len(peaks) == 2 and peaks[0] is not None and peaks[1] else None


def _paper(group: Group, row: Row, column: str, system: str | None = None) -> str | None:
    """The paper's Table 4 for a system at this n_p and n_s; None if it has no such row."""
    if group.axes["samples"] or group.axes["beams"]:
        return None
    wanted = system or row.facts.implementation  # the paper's systems have the same ids
    printed = table4().get((group.axes["n_p"], group.axes["n_s"], wanted))
    return printed[column] if printed else None


def _paper_ratio(group: Group, row: Row, baseline: str) -> float | None:
    own = _paper(group, row, "normalized_latency_ms_per_token")
    base = _paper(group, row, "normalized_latency_ms_per_token", baseline)
    return float(own) / float(base) if own and base else None


def _headline(view: View) -> str:
    parts = []
    for name in view.columns.ids:
        if not view.columns.competes(name, view.baseline):
            continue
        for words in ("nothing shared", "a part shared", "everything shared"):
            ratios = [
                row.derived.ratio_to_baseline
                for group in view.groups
                if (row := group.rows.get(name)) is not None
                and row.derived.ratio_to_baseline is not None
                and words == _shared(group.axes["n_p"], group.axes["n_s"])
            ]
            if ratios:
                parts.append(f"{view.columns.name(name)} {times(geometric_mean(ratios))} with {words}")
    base = view.columns.name(view.baseline)
    means = f"Normalized latency over {base}'s, geometric mean over points: {'; '.join(parts)}." if parts else ""
    return f"{means} {view.variants_ahead()}".strip()


def _shared(n_p: int, n_s: int | None) -> str:
    if n_s is None:
        return "a tree of prompts"
    return "nothing shared" if n_s == 0 else "everything shared" if n_s == n_p else "a part shared"


def _timing(view: View) -> str:
    rows = [row for group in view.groups for row in group.rows.values()]
    facts = [row.facts for row in rows if isinstance(row.facts, ServingResult) and row.facts.measurements]
    if not facts:
        return ""
    seeds = max(len(fact.measurements) for fact in facts)
    sent = extent(len(m.requests) for fact in facts for m in fact.measurements)
    short = [fact for fact in facts if any(len(m.requests) < (fact.asked_requests or 0) for m in fact.measurements)]
    asked = extent(fact.asked_requests or 0 for fact in short)
    fewer = f" (the experiment asks for {asked}; the budget allows no more)" if short else ""
    rates = {round(fact.requests_per_s, 3) for fact in facts if fact.requests_per_s}
    late = max((r.sent or 0.0) - r.due for fact in facts for m in fact.measurements for r in m.requests)
    references = dict.fromkeys(fact.reference for fact in facts if fact.reference)
    wanted = view.experiment.arrival_seeds
    fewest = min((len(fact.us_per_token) for fact in facts if fact.us_per_token), default=wanted)
    cut = f" (the experiment asks for {wanted}; the budget allows as few as {fewest})" if fewest < wanted else ""
    parts = [
        f"{count(seeds, 'arrival seed')}{cut} of {sent} requests{fewer}, {'open' if rates else 'closed'} loop",
        "the systems take turns, and a seed's requests are the same for all",
        *([f"{min(rates):g} to {max(rates):g} requests/s"] if rates else []),
        *(f"load is a share of the capacity of {name}: requests/s with closed-loop clients" for name in references),
        "no prompt of an earlier measurement comes again, so prefix caches begin empty",
        f"requests left the client at most {late * 1e3:.1f} ms after they were due",
    ]
    sampled = sorted({fact.label for fact in facts for m in fact.measurements if m.server and m.server.sampled})
    if sampled:
        parts.append(f"peaks of {', '.join(sampled)} are from samples")
    return "; ".join(parts)


def _draw(report: Report, manifest: Manifest) -> Figure | None:
    from chunkbench.workloads.serving.figure import draw

    return draw(report, manifest)


LAYOUT = Layout(body, _draw, METRICS, {**claims.JUDGES, **constrained_claims.JUDGES})
