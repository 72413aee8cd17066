"""The report of replays: latencies, use of memory, cache hits and computed tokens, beside the paper's Table 4."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store import Manifest
from chunkbench.report.layout import Layout, Report
from chunkbench.report.metric import Metric
from chunkbench.report.model import Cell, Table
from chunkbench.report.numbers import NOTHING, count, extent, percent, significant, times
from chunkbench.report.quantities import Quantity, normalized_latency, paper, quantities
from chunkbench.report.view import Body, Line, View
from chunkbench.workloads.replay import claims, paged_claims, prefill_claims
from chunkbench.workloads.replay.metrics import METRICS
from chunkbench.workloads.replay.printed import (
    OBJECTIVE_S,
    SYSTEMS,
    printed,
    rate_over_exact,
    rate_ratios,
    rates_by_seed,
    stated_by_paged_attention,
)
from chunkbench.workloads.replay.result import TAKEN, ReplayResult
from chunkbench.workloads.serving.objective import SustainedRate, shares_one_prefix, sustained_rate
from chunkbench.workloads.serving.sustained import PAPER_OBJECTIVE_S, paper_rates, rate_cell, rates_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OPTIMUM = "belady"
_LEGEND = (
    "a replay: requests, a scheduler and a cache manager on a virtual clock; nothing was measured, except the rate "
    "of copies where a manager swaps",
    "normalized latency = (last token - due) / tokens, mean over requests, median over arrival seeds",
    "used, reserved, internal, external: shares of the memory that sequences have taken, mean over time. used: holds "
    "tokens; reserved: will hold tokens later; internal fragmentation: allocated, but no token will come; external "
    "fragmentation: in gaps",
    (
        "saved by sharing: slots that sequences would need without sharing and do not take, over the tokens of all "
        "sequences"
    ),
    "cached: prompt tokens that a request found in the cache when it was first admitted; computed, over the least: "
    "computed prompt tokens, counted again after a preemption, over the distinct tokens of all prompts",
)
_OF_OPTIMUM = (
    "cached, of the optimum: cached tokens over those that belady caches. Belady knows all future requests, and no "
    "other choice of blocks to evict caches more. Trees have chunks of another size"
)
_ANSWERS = (
    "requests have several answers of one length to one prompt. Beam search: after each token, each new beam "
    "continues a parent that is drawn with equal chances; real beams follow the model's scores, which no trace has"
)


def body(view: View) -> Body:
    answers = any(group.axes["samples"] or group.axes["beams"] for group in view.groups)
    tables = (*_sustained(view), _latency(view), _memory(view), _computed(view))
    return Body(
        _headline(view),
        tables,
        legend=(*_LEGEND, *([_OF_OPTIMUM] if _OPTIMUM in view.columns.ids else []), *([_ANSWERS] if answers else [])),
        timing=_timing(view),
    )


def _sustained(view: View) -> list[Table]:
    return [*_sustained_of_lengths(view), *_sustained_of_traffic(view)]


def _sustained_of_lengths(view: View) -> list[Table]:
    """Tables of sustained rates for prompts of equal length that share one prefix: the paper's Figure 5 in numbers."""
    known = [group for group in view.groups if group.axes["n_p"] and group.axes["rate"]]
    points = [group for group in known if shares_one_prefix(group.axes)]
    blocks = []
    for n_p, n_s in sorted({(group.axes["n_p"], group.axes["n_s"]) for group in points}):
        groups = [group for group in points if (group.axes["n_p"], group.axes["n_s"]) == (n_p, n_s)]
        if len(groups) < 2:
            continue
        names = view.columns.ids
        stated = paper_rates(n_p) if n_s == n_p else {}
        printed_rates = {name: stated.get(SYSTEMS.get(name, "")) for name in names}
        texts = {name: NOTHING if rate is None else significant(rate, 3) for name, rate in printed_rates.items()}
        rates = {name: _sustained_rate(groups, name, PAPER_OBJECTIVE_S) for name in names}
        lines = [Line("requests per second", {name: rate_cell(rate) for name, rate in rates.items()})]
        if stated:
            lines.append(Line("  the same, paper (measured)", {name: Cell(texts[name], "quiet") for name in names}))
        blocks.append(((str(n_p), str(n_s)), lines))
    title = f"Rates sustained below {PAPER_OBJECTIVE_S * 1e3:.0f} ms/token in the replay"
    return rates_table(view, title, (("n_p",), ("n_s",)), blocks)


_SAME = ("traffic", "samples", "beams", "n_s", "prompts", "memory", "schedule", "batch_size", "block_size")
"""Axes that tell comparisons of rates apart. Points with equal values on these axes belong to one comparison."""


def _sustained_of_traffic(view: View) -> list[Table]:
    """Tables of sustained rates for traffic at several rates: the PagedAttention paper's Figures 12, 14, 16 and 17 in
    numbers.
    """
    known = [group for group in view.groups if group.axes["traffic"] and group.axes["rate"]]
    alike: dict[tuple[Any, ...], list[Group]] = {}
    for group in known:
        alike.setdefault(tuple(group.axes[name] for name in _SAME), []).append(group)
    blocks = []
    for groups in alike.values():
        if len(groups) < 2:
            continue
        rows = {name: [group.rows[name] for group in groups if name in group.rows] for name in view.columns.ids}
        rates = {name: _median_rate(of_one) for name, of_one in rows.items()}
        found = {
            name: rate_ratios(of_one, rows[view.baseline], OBJECTIVE_S)
            for name, of_one in rows.items()
            if name != view.baseline and view.baseline in rows
        }
        ratios = {name: times(median(of_seeds)) for name, of_seeds in found.items() if of_seeds}
        stated = {name: rate_over_exact(groups[0].axes, name) for name in rates}
        lines = [Line("requests per second", {name: rate_cell(rate) for name, rate in rates.items()})]
        if ratios:
            cells = {name: Cell(ratios.get(name, NOTHING)) for name in rates}
            lines.append(Line(f"  over {view.columns.name(view.baseline)}", cells))
        if any(stated.values()) and view.baseline == "contiguous_exact":
            texts = {name: Cell(text or NOTHING, "quiet") for name, text in stated.items()}
            lines.append(Line("  the same, PagedAttention (measured)", texts))
        axes = groups[0].axes
        answers = (
            f"{axes['samples']} samples" if axes["samples"] else f"{axes['beams']} beams" if axes["beams"] else "1"
        )
        blocks.append(((axes["traffic"], answers, str(axes["n_s"] or 0)), lines))
    title = f"Rates sustained below {OBJECTIVE_S * 1e3:.0f} ms/token in the replay"
    return rates_table(view, title, (("traffic",), ("answers",), ("n_s",)), blocks)


def _median_rate(rows: Sequence[Row]) -> SustainedRate | None:
    """Median sustained rate over the arrival seeds; a lower bound if the rate of any seed is a lower bound."""
    known = [rate for rate in rates_by_seed(rows, OBJECTIVE_S) if rate]
    if not known:
        return None
    return SustainedRate(median(rate.per_s for rate in known), any(rate.at_least for rate in known))


def _sustained_rate(groups: Sequence[Group], name: str, objective_s: float) -> SustainedRate | None:
    rows = [(group.axes["rate"] / 60, group.rows[name].derived.latency_us) for group in groups if name in group.rows]
    return sustained_rate([(rate, us / 1e6) for rate, us in rows if us is not None], objective_s)


def _latency(view: View) -> Table:
    latency, seeds, ratio = normalized_latency(view.columns.name(view.baseline))
    lines: list[Quantity | Metric] = [
        latency,
        seeds,
        _printed("normalized_latency_ms_per_token"),
        ratio,
        METRICS["first_token_p50"],
        METRICS["first_token_p99"],
        (METRICS["refused"].label, _refused),
    ]
    return quantities(view, "Replayed latency", lines)


def _refused(_: Group, row: Row) -> Cell:
    return METRICS["refused"].cell(row) if METRICS["refused"].value(row.facts) else Cell(NOTHING)


def _memory(view: View) -> Table:
    lines: list[Quantity | Metric] = [
        METRICS["peak_kv_bytes"],
        _printed("peak_kv_cache_gb"),
        METRICS["peak_batch"],
        _printed("peak_batch_size"),
        METRICS["mean_batch"],
        _paged_attention("mean_batch"),
        *(line for kind in TAKEN for line in (METRICS[kind], _paged_attention(kind))),
        METRICS["saved"],
        _paged_attention("saved"),
        METRICS["prompt_share"],
    ]
    return quantities(view, "Memory in the replay", lines)


def _computed(view: View) -> Table:
    cached, *others = (METRICS[name] for name in ("hit_share", "over_bound", "preemptions", "evicted_blocks"))
    lines: list[Quantity | Metric] = [cached, ("  cached, of the optimum", _of_optimum), *others]
    return quantities(view, "Cached and computed prompt tokens in the replay", lines)


def _of_optimum(group: Group, row: Row) -> Cell:
    """Cached prompt tokens over those of the optimum at the same point; empty if the optimum has none."""
    optimum, cached = group.rows.get(_OPTIMUM), METRICS["hit_share"]
    share, best = cached.value(row.facts), cached.value(optimum.facts) if optimum is not None else None
    return Cell(percent(share / best) if share is not None and best else NOTHING)


def _paged_attention(metric: str) -> Quantity:
    """A line with the values of this metric that the PagedAttention paper prints at each point."""

    def stated(group: Group, row: Row) -> str | None:
        value = stated_by_paged_attention(group.axes, row.facts.implementation, metric)
        return None if value is None else METRICS[metric].unit.text(value)

    return "    the same, PagedAttention (measured)", paper(stated)


def _printed(column: str) -> Quantity:
    return "  the same, paper (measured)", paper(lambda group, row: printed(group, row, column))


def _headline(view: View) -> str:
    parts = []
    for name in view.columns.ids:
        if name == view.baseline:
            continue
        ratios = [
            row.derived.ratio_to_baseline
            for group in view.groups
            if (row := group.rows.get(name)) is not None and row.derived.ratio_to_baseline is not None
        ]
        if ratios:
            parts.append(f"{view.columns.name(name)} {times(geometric_mean(ratios))}")
    base = view.columns.name(view.baseline)
    if not parts:
        return ""
    return f"Replayed normalized latency over {base}'s, geometric mean over points: {'; '.join(parts)}."


def _timing(view: View) -> str:
    facts = [row.facts for group in view.groups for row in group.rows.values() if isinstance(row.facts, ReplayResult)]
    replays = [fact for fact in facts if fact.replays]
    if not replays:
        return "nothing was timed"
    seeds = max(len(fact.replays) for fact in replays)
    requests = extent(seed.requests for fact in replays for seed in fact.replays)
    models: dict[str, list[str]] = {}
    for fact in replays:
        models.setdefault(fact.step_time, []).append(fact.label)
    named = [f"step times of {', '.join(dict.fromkeys(labels))}: {words}" for words, labels in models.items()]
    return "; ".join(
        [
            f"replayed on a virtual clock, not measured: {count(seeds, 'arrival seed')} of {requests} requests",
            *(named if len(models) > 1 else [f"step times: {words}" for words in models]),
        ]
    )


def _draw(report: Report, manifest: Manifest) -> Figure | None:
    from chunkbench.workloads.replay.figure import draw

    return draw(report, manifest)


LAYOUT = Layout(body, _draw, METRICS, {**claims.JUDGES, **paged_claims.JUDGES, **prefill_claims.JUDGES})
